"""Arrow columns into topics: placed, encoded and sent batch by batch through a `Producer`.

Keyed records go where Java's default partitioner puts them; those without a key stay with one partition for a batch's
worth of bytes and then go to the next (KIP-480, KIP-794). Needs numpy and pyarrow (`pip install moldau[arrow]`), so
only code that has columns imports it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from moldau.client.accumulator import RecordMetadata
from moldau.client.column_partitioner import NO_PARTITION, partitions_of_keys
from moldau.client.producer import Producer
from moldau.client.settings import ProducerSettings
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import HEADER_BYTES
from moldau.protocol.columnar import encode_batches

Partitions = npt.NDArray[np.int32]
BeforeFirst = Callable[[TopicPartition], Awaitable[None]]


class ColumnWriter:
    """Writes columns with a producer, and counts what went where. `finish` says whether all of it arrived."""

    def __init__(self, producer: Producer, before_first: BeforeFirst | None = None) -> None:
        """`before_first` is waited for before a partition's first batch is sent."""
        self.record_counts: Counter[TopicPartition] = Counter()
        self._before_first = before_first
        self._producer = producer
        self._batch_bytes_max = encoded_bytes_max(producer.settings)
        self._sticky: dict[str, _Sticky] = {}
        self._failure: Exception | None = None

    async def write(self, topic: str, key: Any, value: Any, headers: Any = None, partition: Any = None) -> None:
        """Send the rows; waits only for room. `partition` is a column of numbers, null where the key decides."""
        if self._failure is not None:
            raise self._failure
        partition_count = await self._producer.partition_count(topic)
        partitions = self._place(topic, key, value, partition, partition_count)
        for number, parts in rows_by_partition(partitions, partition_count, [key, value, headers]):
            await self._send(TopicPartition(topic, number), *parts)

    async def send(self, where: TopicPartition, batch: bytearray) -> None:
        """Send a record batch as `encode_batches` makes it."""
        if self._failure is not None:
            raise self._failure
        if self._before_first is not None and where not in self.record_counts:
            await self._before_first(where)
        self.record_counts[where] += int.from_bytes(batch[HEADER_BYTES - 4 : HEADER_BYTES])
        await self._producer.send_encoded(where.topic, where.partition, batch, self._on_delivery)
        # What is encoded leaves while the next is being encoded.
        await asyncio.sleep(0)

    async def finish(self) -> None:
        """Wait until everything arrived; raises the first failure."""
        await self._producer.flush()
        if self._failure is not None:
            raise self._failure

    # -- placing -------------------------------------------------------------------------------------------------------

    def _place(self, topic: str, key: Any, value: Any, partition: Any, partition_count: int) -> Partitions:
        placed = given_partitions(topic, key, partition, len(value), partition_count)
        rows = np.flatnonzero(placed == NO_PARTITION)
        if len(rows):
            sticky = self._sticky.get(topic)
            if sticky is None:
                sticky = self._sticky[topic] = _Sticky(random.randrange(partition_count), self._batch_bytes_max)
            sizes = pc.binary_length(value).fill_null(0).to_numpy(zero_copy_only=False)
            placed[rows] = sticky.place(sizes[rows], partition_count)
        return placed

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send(self, where: TopicPartition, key: Any, value: Any, headers: Any) -> None:
        settings = self._producer.settings
        for batch in encode_batches(
            key,
            value,
            headers=headers,
            timestamp=time.time_ns() // 1_000_000,
            bytes_max=self._batch_bytes_max,
            compression=settings.compression_type,
            compression_level=settings.compression_level,
            transactional=settings.transactional_id is not None,
        ):
            await self.send(where, batch)

    def _on_delivery(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        if error is not None and self._failure is None:
            self._failure = error


def encoded_bytes_max(settings: ProducerSettings) -> int:
    """How large a batch may be: there is room for a record at least."""
    return max(settings.batch_bytes_max, HEADER_BYTES + 1)


def given_partitions(topic: str, key: Any, partition: Any, row_count: int, partition_count: int) -> Partitions:
    """Where the partition column or the key puts each row; NO_PARTITION where neither says so."""
    placed = np.full(row_count, NO_PARTITION, np.int32)
    if partition is not None:
        given = partition.is_valid().to_numpy(zero_copy_only=False)
        placed = partition.fill_null(NO_PARTITION).to_numpy(zero_copy_only=False).astype(np.int32)
        wrong = np.flatnonzero(given & ((placed < 0) | (placed >= partition_count)))
        if len(wrong):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} has {partition_count} partitions, no partition {placed[wrong[0]]}",
            )
    open_rows = placed == NO_PARTITION
    if key is not None and open_rows.any():
        placed = np.where(open_rows, partitions_of_keys(key, partition_count), placed)
    return placed


def rows_by_partition(
    partitions: Partitions, partition_count: int, columns: Sequence[Any]
) -> Iterator[tuple[int, list[Any]]]:
    """The columns of each partition's rows, in their order. A column may be None."""
    first = int(partitions[0]) if len(partitions) else 0
    if np.all(partitions == first):
        yield first, list(columns)
        return
    order = np.argsort(partitions, kind="stable")
    rows = pa.array(order)
    sorted_columns = [column.take(rows) if column is not None else None for column in columns]
    bounds = np.searchsorted(partitions[order], np.arange(partition_count + 1))
    for number in range(partition_count):
        start, stop = int(bounds[number]), int(bounds[number + 1])
        if start < stop:
            yield (
                number,
                [column.slice(start, stop - start) if column is not None else None for column in sorted_columns],
            )


class _Sticky:
    """Where a topic's records without key go next."""

    def __init__(self, partition: int, bytes_max: int) -> None:
        self._partition = partition
        self._bytes_max = bytes_max
        self._bytes = 0

    def place(self, sizes: npt.NDArray[Any], partition_count: int) -> Partitions:
        ends = self._bytes + np.cumsum(sizes, dtype=np.int64)
        turns = (ends - sizes) // self._bytes_max
        placed: Partitions = ((self._partition + turns) % partition_count).astype(np.int32)
        self._partition = int((self._partition + ends[-1] // self._bytes_max) % partition_count)
        self._bytes = int(ends[-1] % self._bytes_max)
        return placed
