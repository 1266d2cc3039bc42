"""Records as bytes for stdout: formats as in kcat, columns, JSON, and the coloured lines of `moldau tail`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from moldau.cli.errors import usage
from moldau.cli.options import Output, time_text

if TYPE_CHECKING:
    from moldau.client import ConsumedRecord

VALUES_FORMAT = "%v\\n"
NULL = b"NULL"

Part = Callable[["ConsumedRecord"], bytes]

# What a terminal would obey instead of showing: everything below the blank but newline and tab, DEL, and C1.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_CONTROL_IN_LINE = _CONTROL | {ord("\n"): "\\n", ord("\t"): "\\t"}


class Renderer(Protocol):
    def render(self, records: Sequence[ConsumedRecord]) -> bytes: ...

    def end(self) -> bytes:
        """What closes the stream, if anything."""
        ...


def renderer_for(output: Output | None, format_: str | None, null: bool) -> Renderer:
    if output is not None and format_ is not None:
        raise usage(f"-f and -o {output} exclude each other")
    if output is Output.TABLE:
        return ColumnsRenderer()
    if output is not None:
        return JsonRenderer(output)
    return FormatRenderer(format_ if format_ is not None else VALUES_FORMAT, NULL if null else b"")


class FormatRenderer:
    """`-f`: the parts of a compiled format, joined."""

    def __init__(self, text: str, null: bytes) -> None:
        self._null = null
        self._parts = compile_format(text, null)
        self._only_values = text == VALUES_FORMAT
        self._is_terminal = sys.stdout.isatty()

    @property
    def null_of_plain_values(self) -> bytes | None:
        """What stands for a null value where nothing but values is printed, and as they are; None elsewhere."""
        return self._null if self._only_values and not self._is_terminal else None

    def render(self, records: Sequence[ConsumedRecord]) -> bytes:
        if self._only_values:
            null = self._null
            data = b"".join([(null if record.value is None else record.value) + b"\n" for record in records])
        else:
            parts = self._parts
            data = b"".join([part(record) for record in records for part in parts])
        if self._is_terminal:
            # A record must not drive the terminal.
            return data.decode(errors="backslashreplace").translate(_CONTROL).encode()
        return data

    def end(self) -> bytes:
        return b""


class ColumnsRenderer:
    """`-o table`: tabs, because widths cannot be known; a value's own tabs and newlines are escaped."""

    def __init__(self) -> None:
        self._started = False

    def render(self, records: Sequence[ConsumedRecord]) -> bytes:
        lines = [] if self._started else ["TOPIC\tPARTITION\tOFFSET\tTIME\tKEY\tVALUE"]
        self._started = True
        for record in records:
            place = f"{record.topic}\t{record.partition}\t{record.offset}\t{time_text(record.timestamp)}"
            lines.append(f"{place}\t{shown(record.key)}\t{shown(record.value)}")
        return "".join(f"{line}\n" for line in lines).encode()

    def end(self) -> bytes:
        return b""


class JsonRenderer:
    """`-o json`, `-o jsonl`."""

    def __init__(self, output: Output) -> None:
        from moldau.cli.output import JsonEntries

        self._entries = JsonEntries(output)

    def render(self, records: Sequence[ConsumedRecord]) -> bytes:
        from moldau.cli.record_lines import record_line

        return self._entries.encode(map(record_line, records))

    def end(self) -> bytes:
        return self._entries.end()


class LiveRenderer:
    """`moldau tail`: a line a record."""

    def __init__(self, *, coloured: bool) -> None:
        self._dim, self._place, self._key, self._header, self._off = (
            ("\x1b[2m", "\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[0m") if coloured else ("",) * 5
        )

    def render(self, records: Sequence[ConsumedRecord]) -> bytes:
        return "".join(map(self._line, records)).encode()

    def _line(self, record: ConsumedRecord) -> str:
        when = _clock_text(record.timestamp)
        line = (
            f"{self._dim}{when}{self._off} {self._place}{record.topic}-{record.partition}@{record.offset}{self._off} "
            f"{self._key}{shown(record.key)}{self._off} {shown(record.value)}"
        )
        for name, value in record.headers:
            line += f" {self._header}{name.translate(_CONTROL_IN_LINE)}={shown(value)}{self._off}"
        return line + "\n"

    def end(self) -> bytes:
        return b""


def shown(data: bytes | None) -> str:
    """Bytes on one line of text: UTF-8 with control characters escaped, other bytes as \\xNN, null as `-`."""
    if data is None:
        return "-"
    return data.decode(errors="backslashreplace").translate(_CONTROL_IN_LINE)


def _clock_text(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(max(timestamp_ms, 0) / 1000).strftime("%H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)


# -- formats -----------------------------------------------------------------------------------------------------------


def compile_format(text: str, null: bytes) -> list[Part]:
    """kcat's format as functions of a record; a usage error names what it does not know."""
    parts: list[Part] = []
    literal = bytearray()

    def flush() -> None:
        if literal:
            fixed = bytes(literal)
            parts.append(lambda record: fixed)
            literal.clear()

    position = 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        if character == "%":
            if following == "%":
                literal += b"%"
            elif following in _FIELDS:
                flush()
                parts.append(_FIELDS[following](null))
            else:
                raise usage(f"-f: %{following} is nothing; there are {' '.join('%' + name for name in _FIELDS)} and %%")
            position += 2
        elif character == "\\":
            escape, size = _escape(text, position)
            literal += escape
            position += size
        else:
            literal += character.encode()
            position += 1
    flush()
    return parts


def _escape(text: str, position: int) -> tuple[bytes, int]:
    following = text[position + 1 : position + 2]
    if following in ("n", "t", "r", "0", "\\"):
        return {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}[following], 2
    if following == "x":
        try:
            return bytes([int(text[position + 2 : position + 4], 16)]), 4
        except ValueError:
            raise usage("-f: write \\x with two hexadecimal digits, as in \\x1f") from None
    return b"\\", 1


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers_text(record: ConsumedRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (NULL if value is None else value) for name, value in record.headers)


_FIELDS: dict[str, Callable[[bytes], Part]] = {
    "t": lambda null: lambda record: record.topic.encode(),
    "p": lambda null: lambda record: b"%d" % record.partition,
    "o": lambda null: lambda record: b"%d" % record.offset,
    "k": lambda null: lambda record: null if record.key is None else record.key,
    "v": lambda null: lambda record: null if record.value is None else record.value,
    "s": lambda null: lambda record: null if record.value is None else record.value,
    "h": lambda null: _headers_text,
    "T": lambda null: lambda record: b"%d" % record.timestamp,
    "K": lambda null: lambda record: _size(record.key),
    "S": lambda null: lambda record: _size(record.value),
}
