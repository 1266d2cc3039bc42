"""CRC32C of any buffer."""

from __future__ import annotations

from google_crc32c import extend, value

from moldau.kernel import Buffer

# The library takes `bytes` only, so other buffers are copied, piece by piece to stay inside the processor's cache.
PIECE_BYTES = 1 << 16


def crc32c(data: Buffer) -> int:
    """The Castagnoli checksum as record batches carry it."""
    size = len(data)
    if size <= PIECE_BYTES:
        return value(bytes(data))  # type: ignore[no-any-return]
    checksum = 0
    with memoryview(data) as view:
        for start in range(0, size, PIECE_BYTES):
            checksum = extend(checksum, bytes(view[start : start + PIECE_BYTES]))
    return checksum
