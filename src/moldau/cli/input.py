"""Lines from a pipe, a terminal or a file, without blocking the event loop and without holding more than a piece."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from moldau.cli.errors import CommandError

PIECE_BYTES = 1 << 16
# A record of this size is far beyond what brokers take; more is no text by lines.
LINE_BYTES_MAX = 64 << 20


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Whole lines without their newline, as many as came at once; a last one may lack it."""
    unfinished: list[bytes] = []
    held = 0
    while piece := await _read(descriptor):
        if b"\n" not in piece:
            unfinished.append(piece)
            held += len(piece)
            if held > LINE_BYTES_MAX:
                raise CommandError(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB: is this a text file?")
            continue
        if unfinished:
            piece = b"".join([*unfinished, piece])
        lines = piece.split(b"\n")
        rest = lines.pop()
        unfinished, held = ([rest], len(rest)) if rest else ([], 0)
        yield lines
    if unfinished:
        yield [b"".join(unfinished)]


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
    except PermissionError:
        # A regular file is always readable; the loop gets its turn all the same.
        await asyncio.sleep(0)
        return os.read(descriptor, PIECE_BYTES)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, PIECE_BYTES)
