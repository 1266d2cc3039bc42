"""Which partitions a column of keys goes to: `partitioner.partition_of_key` for many keys at once.

Needs numpy and pyarrow (`pip install moldau[arrow]`), so only code that has columns imports it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.client.partitioner import murmur2

NO_PARTITION = -1

# Each step hashes one word of every key that has it, so a few long keys would make many steps for nearly none.
_STEP_BYTES_MAX = 256
_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)

Hashes = npt.NDArray[np.uint32]


def partitions_of_keys(keys: Any, partition_count: int) -> npt.NDArray[np.int32]:
    """The partition of each key of a binary or string column; NO_PARTITION for null, which is the caller's to place."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    partitions = np.full(len(keys), NO_PARTITION, np.int32)
    if pa.types.is_null(keys.type) or not len(keys):
        return partitions
    keys = keys.cast(pa.large_binary())
    hashed = murmur2_of_keys(keys)
    given = keys.is_valid().to_numpy(zero_copy_only=False)
    partitions[given] = ((hashed & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count))[given]
    return partitions


def murmur2_of_keys(keys: Any) -> Hashes:
    """The hash of each key of a large_binary column; of null, any."""
    _, offset_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    starts, lengths = offsets[:-1], np.diff(offsets)
    hashes = _SEED ^ lengths.astype(np.uint32)
    # Words and tails are read where they stand; the padding lets the last ones reach past the end.
    data = np.zeros(int(offsets[-1]) + 4, np.uint8)
    if data_buffer is not None:
        data[: offsets[-1]] = np.frombuffer(data_buffer, np.uint8)[: offsets[-1]]
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))

    rows = np.flatnonzero(lengths <= _STEP_BYTES_MAX)
    hashes[rows] = _murmur2(words, starts[rows], lengths[rows], hashes[rows])
    for row in np.flatnonzero(lengths > _STEP_BYTES_MAX):
        hashes[row] = murmur2(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return hashes


def _murmur2(
    words: npt.NDArray[Any], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], hashes: Hashes
) -> Hashes:
    for position in range(0, int(lengths.max(initial=0)) & ~3, 4):
        whole = lengths >= position + 4
        rows: slice | npt.NDArray[np.int64] = slice(None) if whole.all() else np.flatnonzero(whole)
        k = words[starts[rows] + position] * _M
        k ^= k >> np.uint32(24)
        hashes[rows] = hashes[rows] * _M ^ k * _M
    left = lengths & 3
    rows = np.flatnonzero(left)
    mask = (np.uint32(1) << (left[rows].astype(np.uint32) * np.uint32(8))) - np.uint32(1)
    tail = words[starts[rows] + (lengths[rows] & ~3)] & mask
    hashes[rows] = (hashes[rows] ^ tail) * _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    return hashes ^ hashes >> np.uint32(15)
