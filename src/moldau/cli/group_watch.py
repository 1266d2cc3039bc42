"""`moldau group lag --watch`: a table that is drawn again and again, with rates and the time to drain."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moldau.cli.group_lag import LAG_COLUMNS, check_lag, group_lags, lag_rows, lag_summary, total_text
from moldau.cli.options import Output

if TYPE_CHECKING:
    from moldau.client import ClusterClient
    from moldau.client.group_admin import GroupLag
    from moldau.kernel import TopicPartition

WATCH_COLUMNS = LAG_COLUMNS | {"IN/S": "produced_per_second", "OUT/S": "consumed_per_second", "DRAINED_IN": "drain"}
# Members commit every few seconds, so one interval would show nothing or a leap.
RATE_WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Records a second into and out of a partition, or a whole group."""

    produced: float
    consumed: float

    def drain_seconds(self, lag: int) -> float | None:
        """Until the lag is gone at this rate; None when it does not shrink."""
        if lag <= 0:
            return 0.0
        gained = self.consumed - self.produced
        return lag / gained if gained > 0 else None


class LagHistory:
    """What a group's partitions were at in the last seconds, and the rates that follow from it."""

    def __init__(self, window_seconds: float = RATE_WINDOW_SECONDS) -> None:
        self._window_seconds = window_seconds
        self._looks: deque[tuple[float, dict[TopicPartition, tuple[int, int]]]] = deque()

    def add(self, now: float, found: GroupLag) -> None:
        known = {
            one.partition: (one.committed, one.end)
            for one in found.partitions
            if one.committed is not None and one.end is not None
        }
        self._looks.append((now, known))
        while len(self._looks) > 2 and now - self._looks[0][0] > self._window_seconds:
            self._looks.popleft()

    def rate(self, partition: TopicPartition) -> Rate | None:
        """None until the partition was seen twice."""
        seen = [(when, known[partition]) for when, known in self._looks if partition in known]
        if len(seen) < 2 or seen[-1][0] <= seen[0][0]:
            return None
        (began, (committed, end)), (now, (committed_now, end_now)) = seen[0], seen[-1]
        return Rate((end_now - end) / (now - began), (committed_now - committed) / (now - began))

    def total(self) -> Rate | None:
        rates = [rate for one in self._looks[-1][1] if (rate := self.rate(one)) is not None] if self._looks else []
        if not rates:
            return None
        return Rate(sum(rate.produced for rate in rates), sum(rate.consumed for rate in rates))


async def looks(
    client: ClusterClient, groups: Sequence[str], interval: float, count: int | None
) -> AsyncIterator[list[GroupLag]]:
    import asyncio

    done = 0
    while True:
        yield await group_lags(client, groups)
        done += 1
        if count is not None and done >= count:
            return
        await asyncio.sleep(interval)


async def show_looks(looks: AsyncIterator[list[GroupLag]], output: Output, lag_max: int | None) -> None:
    """Draw every look in place of the one before; into a pipe, one after the other."""
    import time

    from moldau.cli.output import json_line

    histories: dict[str, LagHistory] = {}
    screen = _screen() if output is Output.TABLE and sys.stdout.isatty() else None
    try:
        async for found in looks:
            for one in found:
                histories.setdefault(one.group.group_id, LagHistory()).add(time.monotonic(), one)
            rows = [_watched(one, histories[one.group.group_id]) for one in found]
            if output is Output.JSONL:
                print("\n".join(map(json_line, rows)), flush=True)
            elif screen is not None:
                screen.update(_drawing(rows), refresh=True)
            else:
                _print_look(rows)
            check_lag(found, lag_max)
    finally:
        if screen is not None:
            screen.stop()


def _watched(found: GroupLag, history: LagHistory) -> dict[str, Any]:
    partitions = [
        row | _rate_fields(history.rate(one.partition), one.lag)
        for row, one in zip(lag_rows(found), found.partitions, strict=True)
    ]
    return lag_summary(found) | _rate_fields(history.total(), found.total) | {"partitions": partitions}


def _rate_fields(rate: Rate | None, behind: int | None) -> dict[str, Any]:
    if rate is None or behind is None:
        return {"produced_per_second": None, "consumed_per_second": None, "drain_seconds": None}
    drain = rate.drain_seconds(behind)
    return {
        "produced_per_second": round(rate.produced, 1),
        "consumed_per_second": round(rate.consumed, 1),
        "drain_seconds": None if drain is None else round(drain, 1),
    }


def drain_text(fields: dict[str, Any]) -> str:
    if fields["produced_per_second"] is None:
        return "-"
    if fields["drain_seconds"] is None:
        return "never"
    seconds = round(fields["drain_seconds"])
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def _look_line(group: dict[str, Any]) -> str:
    total = total_text(group["total_lag"], group["partitions"])
    line = f"{group['group']}  {group['state']}  total lag {total}"
    if group["produced_per_second"] is None:
        return line
    return (
        f"{line}, {group['produced_per_second']} in and {group['consumed_per_second']} out a second, "
        f"drained in {drain_text(group)}"
    )


def _table_rows(group: dict[str, Any]) -> list[dict[str, Any]]:
    return [row | {"drain": drain_text(row)} for row in group["partitions"]]


def _print_look(groups: list[dict[str, Any]]) -> None:
    from moldau.cli.output import show_table

    for group in groups:
        print(_look_line(group))
        show_table(WATCH_COLUMNS, _table_rows(group))
        print(flush=True)


def _screen() -> Any:
    from rich.console import Console
    from rich.live import Live

    screen = Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="ellipsis")
    screen.start()
    return screen


def _drawing(groups: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from moldau.cli.output import cell_text

    parts: list[Any] = []
    for group in groups:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
        for title, key in WATCH_COLUMNS.items():
            table.add_column(title, justify="left" if key in ("topic", "client") else "right", overflow="fold")
        for row in _table_rows(group):
            table.add_row(*(Text(cell_text(row[key])) for key in WATCH_COLUMNS.values()))
        parts += [Text(_look_line(group), style="bold"), table, Text("")]
    return Group(*parts)
