"""What commands print: tables for people, JSON for programs, progress and questions on stderr.

On a terminal a table is drawn by rich; into a pipe or file go the same columns, aligned with spaces and without
colour, so that `awk '{print $1}'` works and nothing depends on the window's width.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from moldau.cli.errors import EXIT_ERROR, CommandError
from moldau.cli.options import Output

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Row = Mapping[str, Any]
# Work that takes less than this shows no bar.
PROGRESS_AFTER_SECONDS = 0.5
PROGRESS_EVERY_SECONDS = 0.1


def say(message: str) -> None:
    """A remark that is not the command's answer."""
    print(message, file=sys.stderr, flush=True)


def colour_allowed() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show_rows(output: Output, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Print rows; `columns` maps titles to the rows' keys. JSON has every key, also those without a column."""
    if output is Output.JSON:
        print(json.dumps([dict(row) for row in rows], indent=2, ensure_ascii=False))
    elif output is Output.JSONL:
        for row in rows:
            print(json_line(row))
    else:
        show_table(columns, rows)


def show_object(output: Output, value: Row) -> bool:
    """Print one object as JSON; False when a table is wanted, which the caller draws."""
    if output is Output.TABLE:
        return False
    print(json_line(value) if output is Output.JSONL else json.dumps(value, indent=2, ensure_ascii=False))
    return True


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def show_table(columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    cells = [[cell_text(row.get(key)) for key in columns.values()] for row in rows]
    if not sys.stdout.isatty():
        print_aligned(list(columns), cells)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for title, key in columns.items():
        numeric = bool(rows) and all(isinstance(row.get(key), int | float) for row in rows)
        table.add_column(title, justify="right" if numeric else "left", overflow="fold")
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    Console(highlight=False).print(table)


def print_aligned(titles: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    lines = [list(titles), *(list(line) for line in cells)]
    # A cell is one line and never empty, so that columns can be counted.
    lines = [[" ".join(cell.split()) or "-" for cell in line] for line in lines]
    widths = [max(len(line[index]) for line in lines) for index in range(len(titles))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


def show_fields(title: str, fields: Row) -> None:
    """A heading with `name: value` lines, in the same shape on a terminal and in a pipe."""
    print(title)
    width = max(len(name) for name in fields) + 1
    for name, value in fields.items():
        print(f"  {f'{name}:'.ljust(width)} {cell_text(value)}")


def cell_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def bytes_text(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; scripts have decided already."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done; give --yes to go on without the question", EXIT_ERROR)


class Progress:
    """A bar on stderr when that is a terminal and the work is long; otherwise nothing at all."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._shown = sys.stderr.isatty()
        self._next = time.monotonic() + PROGRESS_AFTER_SECONDS
        self._bar: RichProgress | None = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, completed: int, note: str = "") -> None:
        """Call it as often as you like."""
        if not self._shown:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_EVERY_SECONDS
        if self._bar is None:
            self._start()
        assert self._bar is not None
        self._bar.update(self._task, completed=completed, note=note)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")]
        columns.append(TimeElapsedColumn() if self._total is None else TimeRemainingColumn())
        # Transient: what stays on the screen is the command's own summary.
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._what, total=self._total, note="")
        self._bar.start()


class JsonEntries:
    """A stream of objects: lines for jsonl, one array for json, without holding it."""

    def __init__(self, output: Output) -> None:
        self._array = output is Output.JSON
        self._count = 0

    def encode(self, texts: Iterable[str]) -> bytes:
        if not self._array:
            return "".join(f"{text}\n" for text in texts).encode()
        # A line is whole as soon as its object is, so that a live array can be watched.
        lines = []
        for text in texts:
            lines.append(f"{',' if self._count else '['}{text}\n")
            self._count += 1
        return "".join(lines).encode()

    def end(self) -> bytes:
        if not self._array:
            return b""
        return b"]\n" if self._count else b"[]\n"


def write(data: bytes | memoryview) -> None:
    """Bytes to stdout, at once."""
    stream = sys.stdout.buffer
    stream.write(data)
    stream.flush()


def is_pipe(stream: Any) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def close_stdout_quietly() -> None:
    """Nobody reads any more: what is still buffered must not raise again when the interpreter ends."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass
