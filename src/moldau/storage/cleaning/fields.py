"""The same as `located`, for thousands of records at once: where numpy is installed, a large job uses it.

A job's process pays for the import once, so a small job does without (`reader_for`). What is found is held to
`located` by a test on random records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from moldau.protocol.batches import CorruptBatchError
from moldau.storage.cleaning.located import Located

# What numpy's import costs is won back by so many bytes of records.
JOB_BYTES_MIN = 8 << 20
# A batch of fewer records is read faster one by one.
BATCH_RECORDS_MIN = 128
# Where more than one of so many records is wanted, reading all is faster than looking for them.
RECORDS_PER_PICK_MAX = 16


class Fields(NamedTuple):
    """Of all records of a batch, by place: as `Located` has them of one."""

    starts: list[int]
    ends: list[int]
    deltas: list[int]
    keys: list[bytes | None]
    has_values: list[bool]
    # Whether the records are numbered one by one.
    is_dense: bool

    def located(self) -> Iterator[Located]:
        return map(Located, self.starts, self.ends, self.deltas, self.keys, self.has_values)

    def at(self, places: Sequence[int]) -> list[Located]:
        starts, ends, deltas, keys, has_values, _ = self
        return [Located(starts[at], ends[at], deltas[at], keys[at], has_values[at]) for at in places]


ReadFields = Callable[[bytes, int], Fields]


def reader_for(job_bytes: int) -> ReadFields | None:
    """None: one by one is faster, or all that there is."""
    return read_fields if job_bytes >= JOB_BYTES_MIN and find_spec("numpy") is not None else None


def read_fields(data: bytes, count: int) -> Fields:
    """The records of `plain_records`."""
    import numpy as np

    from moldau.protocol.vectors import RecordFinder, read_varints, skip_varints

    view = np.frombuffer(data, np.uint8)
    try:
        ends = RecordFinder(data, view, 0).take(count)
        if ends[-1] > len(data):
            raise CorruptBatchError(f"records claim {ends[-1] - len(data)} bytes more than their batch has")
        starts = np.empty_like(ends)
        starts[0], starts[1:] = 0, ends[:-1]
        if np.any(view[starts] & 1):
            raise CorruptBatchError("a record claims a negative size")
        # A byte of attributes lies between the size and the time.
        deltas, at = read_varints(view, skip_varints(view, skip_varints(view, starts) + 1))
        sizes, begins = read_varints(view, at)
        key_ends = begins + np.maximum(sizes, 0)
        if np.any(key_ends >= ends):
            raise CorruptBatchError("a record's key is longer than the record")
        # A zigzag number is negative exactly when its lowest bit is set.
        has_values = (view[key_ends] & 1) == 0
    except (IndexError, OverflowError) as error:
        raise CorruptBatchError(f"records do not parse: {error}") from None
    spans = zip(begins.tolist(), key_ends.tolist(), strict=True)
    keys: list[bytes | None] = [data[begin:end] for begin, end in spans]
    for place in np.flatnonzero(sizes < 0).tolist():
        keys[place] = None
    is_dense = bool((deltas == np.arange(count)).all())
    return Fields(starts.tolist(), ends.tolist(), deltas.tolist(), keys, has_values.tolist(), is_dense)
