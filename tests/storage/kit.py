"""Small makers that the storage tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.protocol.batches import Record, build_batch, iterate_batches
from moldau.storage import LogConfig, PartitionLog
from moldau.testing.dice import SeededDice
from moldau.testing.disk import SimulatedDisk

NOW_MS = 1_700_000_000_000
DIRECTORY = "data/orders-0"


def new_disk(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(SeededDice(seed))
    disk.make_directories("data")
    return disk


def batch(
    count: int = 1, *, timestamp: int = NOW_MS, key: bytes | None = b"k", value: bytes = b"v" * 20, **fields: Any
) -> bytearray:
    records = [Record(index, timestamp + index, key, value) for index in range(count)]
    return build_batch(records, **fields)


def idempotent(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7, **fields: Any) -> bytearray:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


def open_log(
    disk: SimulatedDisk,
    *,
    recovery_point: int = 0,
    start_offset: int = 0,
    clean: bool = False,
    topic_id: bytes | None = None,
    say: Callable[[str], None] | None = None,
    **config: Any,
) -> PartitionLog:
    return PartitionLog.open(
        disk,
        DIRECTORY,
        LogConfig(**config),
        now_ms=NOW_MS,
        recovery_point=recovery_point,
        start_offset=start_offset,
        clean=clean,
        topic_id=topic_id,
        say=say,
    )


def append(log: PartitionLog, count: int = 1, *, epoch: int = 0, now_ms: int = NOW_MS, **fields: Any) -> int:
    return log.append_as_leader(batch(count, **fields), epoch, now_ms).base_offset


def fill(log: PartitionLog, batches: int, **fields: Any) -> None:
    for _ in range(batches):
        append(log, **fields)


def flush(log: PartitionLog) -> None:
    task = log.flush_task()
    if task is not None:
        task.run()
        log.complete_flush(task)


def offsets(log: PartitionLog) -> list[tuple[int, int]]:
    """(base, last) of every batch, read from the start."""
    found = []
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, offset_max=log.end_offset)
        assert piece is not None
        found += [(header.base_offset, header.last_offset) for header, _ in iterate_batches(piece.read())]
        offset = piece.next_offset
    return found


def content(log: PartitionLog) -> bytes:
    data = b""
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, offset_max=log.end_offset)
        assert piece is not None
        data += piece.read()
        offset = piece.next_offset
    return data
