"""`moldau log verify` and `moldau log repair`: what is damaged in a data directory, and keeping the rest of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from moldau.cli.errors import EXIT_ERROR, CommandError
from moldau.cli.options import Output, OutputFormat, Yes

if TYPE_CHECKING:
    from moldau.kernel import TopicPartition
    from moldau.storage import LogDirectory

Path = Annotated[
    str,
    typer.Argument(metavar="DIR", help="A data directory, or a partition's directory in one.", show_default=False),
]


class _Found(NamedTuple):
    """A partition and the data directory that it is in."""

    root: LogDirectory
    partition: TopicPartition


def verify(path: Path, output: OutputFormat = Output.TABLE) -> None:
    """Check batches, checksums, offsets, indexes, snapshots and checkpoints; exit 1 when data is lost.

    Reads only. Stop the broker first: what it is writing at the moment looks like damage.
    """
    from moldau.cli.output import Progress, say, show_rows
    from moldau.storage import LOST

    found = list(_partitions(path))
    rows: list[dict[str, Any]] = list(_checkpoints({each.root.path: each.root for each in found}.values()))
    with Progress("verifying", _bytes_of(found)) as progress:
        done = 0
        for each in found:
            seen = _verify(each, lambda at, done=done: progress.update(done + at, f"{done + at} bytes"))
            rows += [_row(each, finding) for finding in seen]
            done += _bytes_of([each])
    columns = {"PARTITION": "partition", "FILE": "file", "BYTE": "position", "EFFECT": "effect", "REASON": "reason"}
    if rows or output is not Output.TABLE:
        show_rows(output, columns, rows)
    lost = sorted({row["partition"] for row in rows if row["effect"] == LOST})
    say(f"{len(found)} partitions, {done} bytes of segments: " + (f"{len(lost)} damaged" if lost else "all whole"))
    if lost:
        say("restore them from a copy, or keep what is whole with: moldau log repair DIR/TOPIC-PARTITION")
        raise typer.Exit(EXIT_ERROR)


def repair(
    path: Path,
    cut: Annotated[
        bool, typer.Option("--cut", help="Keep nothing behind the first damage, instead of all that is whole.")
    ] = False,
    yes: Yes = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Keep what is whole of damaged partitions, after saying what is lost; the broker must be stopped.

    Damaged files stay beside the new ones as .damaged, and moldau-repair.log says what was done.
    """
    from moldau.broker.host import SystemDisk
    from moldau.cli.output import confirm, say, show_rows
    from moldau.storage import LOST, LogDirectoryError, repair_partition

    found = list(_partitions(path))
    root = found[0].root if found else None
    if root is None:
        raise CommandError(f"{path}: there are no partitions here")
    try:
        root.lock()
    except LogDirectoryError as error:
        raise CommandError(f"{error}; stop the broker first", EXIT_ERROR) from None
    try:
        damaged = [each for each in found if any(one.effect == LOST for one in _verify(each))]
        if not damaged:
            say("nothing is damaged, nothing was done")
            return
        for each in damaged:
            for line in _losses(each, cut=cut):
                say(line)
        confirm(f"Repair {len(damaged)} partitions and lose this?", yes=yes)
        rows = []
        for each in damaged:
            for done in repair_partition(SystemDisk(), root, each.partition, cut=cut):
                rows.append({"partition": str(each.partition), **_fields(done)})
            _write_down(root, each, rows)
        columns = {"PARTITION": "partition", "FILE": "file", "KEPT": "bytes_kept", "DROPPED": "bytes_dropped"}
        show_rows(output, {**columns, "SAVED AS": "saved_as"}, rows)
    finally:
        root.unlock()


def _partitions(path: str) -> Iterator[_Found]:
    from moldau.broker.host import SystemDisk
    from moldau.storage import LogDirectory, parse_directory_name

    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise CommandError(f"{path}: there is no such directory")
    disk, name = SystemDisk(), os.path.basename(path)
    parsed = parse_directory_name(name)
    has_segments = any(each.endswith(".log") for each in os.listdir(path))
    if parsed is not None and not parsed.kind and has_segments:
        yield _Found(LogDirectory(disk, os.path.dirname(path)), parsed.partition)
        return
    root = LogDirectory(disk, path)
    for each in root.partition_directories():
        if not each.kind:
            yield _Found(root, each.partition)


def _checkpoints(roots: Iterable[LogDirectory]) -> Iterator[dict[str, Any]]:
    from moldau.storage import LOST, LogDirectoryError

    for root in roots:
        for read in (root.read_recovery_points, root.read_log_start_offsets, root.read_high_watermarks):
            try:
                read()
            except LogDirectoryError as error:
                yield {"partition": "-", "file": root.path, "position": 0, "effect": LOST, "reason": str(error)}


def _verify(found: _Found, on_bytes: Any = lambda at: None) -> Iterator[Any]:
    from moldau.storage import LogDirectoryError, verify_partition

    try:
        recovery_point = found.root.read_recovery_points().get(found.partition, 0)
    except LogDirectoryError:
        recovery_point = None
    return verify_partition(found.root.disk, found.root.partition_path(found.partition), recovery_point, on_bytes)


def _bytes_of(found: list[_Found]) -> int:
    total = 0
    for each in found:
        with os.scandir(each.root.partition_path(each.partition)) as entries:
            total += sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
    return total


def _fields(value: Any) -> dict[str, Any]:
    import dataclasses

    return dataclasses.asdict(value)


def _row(found: _Found, finding: Any) -> dict[str, Any]:
    return {"partition": str(found.partition), **_fields(finding)}


def _losses(found: _Found, *, cut: bool) -> Iterator[str]:
    """One line for each thing that goes."""
    from moldau.storage import LOST

    for finding in _verify(found):
        if finding.effect != LOST:
            continue
        until = str(finding.next_offset - 1) if finding.next_offset >= 0 else "the segment's end"
        offsets = f"offsets {finding.first_offset} to {until}" if finding.first_offset >= 0 else "the whole segment"
        yield f"{found.partition}: {offsets} will be lost ({finding.size} bytes of {finding.file}: {finding.reason})"
        if cut:
            yield f"{found.partition}: everything behind that goes too (--cut)"
            return


def _write_down(root: LogDirectory, found: _Found, rows: list[dict[str, Any]]) -> None:
    import time

    from moldau.storage import REPAIR_LOG

    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with open(f"{root.path}/{REPAIR_LOG}", "a", encoding="utf-8") as file:
        for row in rows:
            if row["partition"] == str(found.partition):
                fields = " ".join(f"{name}={value}" for name, value in row.items())
                file.write(f"{stamp} partition_repaired {fields}\n")
