"""The files of an exported topic: one directory a partition, one file a range of offsets.

    DIR/topic=orders/partition=0/offsets-00000000000000000000-00000000000000999999.parquet

Names of directories are those that Spark, DuckDB and others read as columns. A file has the records of the offsets that
its name says, both included, and is complete as soon as it has its name. Ranges begin at multiples of a number, so
that an export that is run again writes the same files; one that reaches further replaces the last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from moldau.cli.errors import CommandError
from moldau.kernel import TopicPartition

_NAME = re.compile(r"offsets-(\d{20})-(\d{20})\.(parquet|jsonl)")
# What a pipeline's sink writes where one offset has several rows: no records of a topic.
_SHARED = re.compile(r"offsets-\d{20}-\d{20}-batch-\d+\.parquet")
_PARTITION = re.compile(r"partition=(\d+)")


class FileFormat(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"


class TopicFile(NamedTuple):
    """`end` is the offset behind the last."""

    where: TopicPartition
    start: int
    end: int
    format: str

    @property
    def path(self) -> str:
        """Relative to the directory of the export."""
        name = f"offsets-{self.start:020d}-{self.end - 1:020d}.{self.format}"
        return f"topic={self.where.topic}/partition={self.where.partition}/{name}"


def plan_files(where: TopicPartition, start: int, end: int, records_per_file: int, file_format: str) -> list[TopicFile]:
    """Ranges that cover [start, end)."""
    files = []
    while start < end:
        stop = min((start // records_per_file + 1) * records_per_file, end)
        files.append(TopicFile(where, start, stop, file_format))
        start = stop
    return files


def find_files(directory: str, topic: str | None = None) -> Iterator[TopicFile]:
    """What an export left in a directory, in order; of one topic, if it is given."""
    for entry in sorted(os.listdir(directory)):
        if not entry.startswith("topic=") or (topic is not None and entry != f"topic={topic}"):
            continue
        found = []
        for inner in os.listdir(f"{directory}/{entry}"):
            matched = _PARTITION.fullmatch(inner)
            if matched is None:
                continue
            where = TopicPartition(entry.removeprefix("topic="), int(matched[1]))
            for name in os.listdir(f"{directory}/{entry}/{inner}"):
                parts = _NAME.fullmatch(name)
                if _SHARED.fullmatch(name):
                    raise CommandError(
                        f"{directory}/{entry}/{inner}/{name} has other rows of offsets that another file has, too: a "
                        f"pipeline wrote them; `moldau pipeline unload parquet:{directory}` sends them all"
                    )
                if parts is not None:
                    found.append(TopicFile(where, int(parts[1]), int(parts[2]) + 1, parts[3]))
        yield from sorted(found)


def remove_parts(directory: str, file: TopicFile) -> None:
    """Shorter files of an earlier export whose records are all in this one."""
    for other in find_files(directory, file.where.topic):
        is_part = other.where == file.where and file.start <= other.start and other.end <= file.end
        if is_part and other != file and other.format == file.format:
            os.unlink(f"{directory}/{other.path}")


def require_arrow() -> None:
    try:
        import moldau.protocol.columnar  # noqa: F401
    except ImportError:
        raise CommandError(
            "Parquet needs numpy and pyarrow: pip install 'moldau[arrow]', or use --format jsonl"
        ) from None
