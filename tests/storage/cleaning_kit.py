"""A whole cleaning in one call, and what a log holds afterwards."""

from __future__ import annotations

from moldau.protocol.batches import Record, iterate_batches, iterate_records
from moldau.storage import PartitionLog
from moldau.storage.cleaning.job import Cleaned, run
from moldau.storage.cleaning.swap import announce, retire
from moldau.storage.transaction_index import AbortedTransaction
from moldau.testing.disk import SimulatedDisk

MAP_BYTES = 1 << 20


def clean_log(
    log: PartitionLog,
    disk: SimulatedDisk,
    cleaned_to: int | None,
    now_ms: int,
    *,
    map_bytes: int = MAP_BYTES,
    last_stable_offset: int | None = None,
) -> int | None:
    """As the broker does it, step by step; how far the log is clean then, None when there was nothing to clean."""
    bound = log.last_stable_offset_bound
    stable = log.end_offset if bound is None else bound
    dirt = log.dirt(cleaned_to, stable if last_stable_offset is None else last_stable_offset, now_ms)
    if not dirt.dirty_bytes:
        return None
    for done in run(log.cleaning_job(dirt, now_ms, map_bytes), disk):
        if isinstance(done, Cleaned):
            return done.cleaned_to
        if done.is_same:
            continue
        announce(disk, log.directory, done.old_bases[0])
        switched = log.switch_to_cleaned(done.old_bases, done.size, now_ms)
        assert switched is not None
        log.settle_cleaned(switched, retire(disk, log.directory, switched.old))
    raise AssertionError("a job ends with how far it came")


def stored(log: PartitionLog) -> list[Record]:
    """Every record of the log but markers, as a reader that goes from its start to its end gets them."""
    return _records(log, [])


def committed(log: PartitionLog) -> list[Record]:
    """What is left of them for who reads only what was committed: it goes by the log's list of aborted transactions."""
    return _records(log, log.aborted_transactions(log.start_offset, log.end_offset))


def _records(log: PartitionLog, aborted: list[AbortedTransaction]) -> list[Record]:
    records: list[Record] = []
    to_come = sorted(aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, offset_max=log.end_offset)
        if piece is None:
            break
        for header, batch in iterate_batches(piece.read()):
            while to_come and to_come[0].first_offset <= header.last_offset:
                dropped.add(to_come.pop(0).producer_id)
            if header.is_control:
                dropped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in dropped):
                records += iterate_records(batch)
        assert piece.next_offset > offset, "a reader would never get past this"
        offset = piece.next_offset
    return [record for record in records if record.offset >= log.start_offset]
