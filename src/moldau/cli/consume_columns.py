"""The values of many records by columns: what `moldau consume TOPIC --exit` prints, without an object for each of them.

Needs numpy and pyarrow, whose import takes longer than printing a few thousand records; so `consume` comes here only
with many, and does without where they are not installed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moldau.cli.errors import EXIT_ERROR, CommandError
from moldau.cli.output import Progress, write
from moldau.client import IsolationLevel
from moldau.kernel import TopicPartition
from moldau.spark import SourceError
from moldau.spark.clients import ClientTimes
from moldau.spark.offsets import OffsetRange
from moldau.spark.range_reader import ReadSettings, read_ranges

FETCH_BYTES_MAX = 8 << 20
FETCH_WAIT_MS_MAX = 500
POLL_TIMEOUT_MS = 60_000


async def copy_values(
    bootstrap: str, ranges: Mapping[TopicPartition, tuple[int, int]], isolation: IsolationLevel, null: bytes
) -> None:
    """Each value of [start, end) of each partition on a line of stdout."""
    settings = ReadSettings(
        bootstrap=bootstrap,
        times=ClientTimes(client_id="moldau-consume"),
        isolation=isolation,
        fetch_bytes_max=FETCH_BYTES_MAX,
        fetch_wait_ms_max=FETCH_WAIT_MS_MAX,
        fetch_bytes_min=1,
        poll_timeout_ms=POLL_TIMEOUT_MS,
        # Records that retention takes away while we read are no reason to stop.
        fail_on_data_loss=False,
        with_headers=False,
        topic_ids={},
    )
    pieces = read_ranges([OffsetRange(where, start, end) for where, (start, end) in ranges.items()], settings)
    shows_progress = not sys.stdout.isatty()
    done, total = 0, sum(end - start for start, end in ranges.values())
    try:
        with Progress("consuming", total if shows_progress else None) as progress:
            # A thread reads: it waits for brokers, and what a signal has to say is heard meanwhile.
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                write(lines_of(piece.column("value"), null))
                done += piece.num_rows
                if shows_progress:
                    progress.update(done, f"{done:,} records")
    except SourceError as error:
        raise CommandError(str(error), EXIT_ERROR) from None
    finally:
        await asyncio.to_thread(pieces.close)  # type: ignore[attr-defined]


def lines_of(values: Any, null: bytes) -> memoryview:
    """A binary column as bytes, a newline behind each value."""
    filled = pc.fill_null(values, pa.scalar(null, values.type))
    joined = pc.binary_join_element_wise(filled, b"", b"\n")
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("i")
    first, last = ends[joined.offset], ends[joined.offset + len(joined)]
    return memoryview(data)[first:last]
