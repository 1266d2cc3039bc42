"""Options that commands share, and how the values on a command line are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from moldau.cli.errors import usage

TIME_MS_MAX = 2**63 - 1
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Bootstrap = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap",
        "--bootstrap-server",
        "--broker-list",
        envvar="MOLDAU_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Any broker of the cluster, or several.",
    ),
]
OutputFormat = Annotated[Output, typer.Option("-o", "--output", help="How to print the answer.")]
Property = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="PROP=VALUE", help="A client property under Kafka's name; may be given several times."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def parse_pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """`k=v` texts, in order."""
    pairs: dict[str, str] = {}
    lead = f"{option} " if option else ""
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise usage(f"{lead}{text}: write it as {lead}key=value")
        pairs[key.strip()] = value.strip()
    return pairs


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-11-01T10:00` (local time unless it says), epoch milliseconds, or `10m` ago."""
    given = text.removeprefix("@").strip()
    try:
        ago_ms = _length_ms(given)
        if given.isascii() and given.isdigit():
            time_ms = int(given)
        elif ago_ms is not None:
            time_ms = max(now_ms - ago_ms, 0)  # nothing is older than that
        else:
            time_ms = round(datetime.fromisoformat(given).timestamp() * 1000)
        if time_ms > TIME_MS_MAX:
            raise OverflowError
    except (ValueError, OverflowError):
        raise usage(
            f"{text!r} is no time: write 2026-11-01T10:00 (local, or with Z or +02:00), milliseconds since 1970, "
            "or how long ago, such as 10m"
        ) from None
    if time_ms < 0:
        raise usage(f"{text!r} is before 1970, and no record is that old; the earliest is 1970-01-01T00:00Z")
    return time_ms


def parse_duration_ms(option: str, text: str) -> int:
    """`90s`, `15m`, `2h`."""
    length_ms = _length_ms(text.strip())
    if length_ms is None:
        raise usage(f"{option} {text}: write how long, such as 90s, 15m or 2h")
    return length_ms


def _length_ms(text: str) -> int | None:
    """None when it is no length, or longer than any clock can tell."""
    found = re.fullmatch(r"(\d{1,19})(ms|s|m|h|d)", text, re.ASCII)
    length_ms = int(found[1]) * _MS[found[2]] if found is not None else TIME_MS_MAX
    return length_ms if length_ms < TIME_MS_MAX else None


def time_text(timestamp_ms: int) -> str:
    """UTC with milliseconds; `-` for a record without a time."""
    if timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + (
            f"{timestamp_ms % 1000:03d}Z"
        )
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
