"""The record that ends a transaction on a partition: a control batch of its own, COMMIT or ABORT."""

from __future__ import annotations

import struct
from typing import NamedTuple

from moldau.kernel import Buffer
from moldau.protocol.batches import (
    CorruptBatchError,
    Record,
    build_batch,
    control_key,
    control_kind,
    iterate_records,
)

ABORT, COMMIT = 0, 1
_VALUE = struct.Struct(">hi")
_VALUE_VERSION = 0


class Marker(NamedTuple):
    """`coordinator_epoch` fences a coordinator that does not know yet that it was replaced."""

    committed: bool
    coordinator_epoch: int


def build_marker(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> bytearray:
    value = _VALUE.pack(_VALUE_VERSION, marker.coordinator_epoch)
    record = Record(0, now_ms, control_key(COMMIT if marker.committed else ABORT), value)
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )


def read_marker(batch: Buffer) -> Marker | None:
    """None for a control batch that was emptied, or that is of another kind."""
    record = next(iter(iterate_records(batch)), None)
    if record is None:
        return None
    kind = control_kind(record.key)
    if kind not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatchError("end-of-transaction marker without a coordinator epoch")
    return Marker(kind == COMMIT, _VALUE.unpack_from(record.value)[1])
