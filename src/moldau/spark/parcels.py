"""Rows on their way through a shuffle: encoded first, so that a few parcels of bytes travel and not each row.

Exactly once needs each output partition in one task. Rows are placed and encoded where they are computed, as record
batches without a producer; the task that has the output partition gives them its producer's numbers and sends them. The
placing is a function of the row, so that a task that Spark computes again sends the same rows to the same place.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from moldau.client import ClusterClient
from moldau.client.column_partitioner import NO_PARTITION
from moldau.client.column_writer import ColumnWriter, encoded_bytes_max, given_partitions, rows_by_partition
from moldau.kernel import TopicPartition
from moldau.protocol.columnar import encode_batches
from moldau.spark import clients
from moldau.spark.sink_columns import HEADERS, KEY, PARTITION, VALUE
from moldau.spark.sink_options import SinkOptions
from moldau.spark.sink_task import Membership, Written, by_topic, column_of, gathered, send_all

# A number for each row without key that is the same whenever the row is computed.
SPREAD = "__moldau_spread"
TARGET = "__moldau_target"
PARCELS = f"{TARGET} int, topic string, partition int, records binary"
_SCHEMA = pa.schema([(TARGET, pa.int32()), ("topic", pa.string()), ("partition", pa.int32()), ("records", pa.binary())])

PartitionCount = Callable[[str], int]


def target_of(topic: str, partition: int, task_count: int) -> int:
    """Which task writes an output partition; the partitions of a topic are dealt out evenly."""
    return (zlib.crc32(topic.encode()) + partition) % task_count


def encode_rows(
    options: SinkOptions, task_count: int, partition_count: PartitionCount, batches: Iterable[Any]
) -> Iterator[Any]:
    """Parcels of all rows, in `_SCHEMA`."""
    settings = options.producer_settings("any")
    for rows in gathered(batches):
        parcels: list[tuple[int, str, int, bytearray]] = []
        for topic, chosen in by_topic(options.topic, rows):
            count = partition_count(topic)
            columns = [column_of(chosen, name) for name in (KEY, VALUE, HEADERS)]
            partitions = _place(topic, columns[0], column_of(chosen, PARTITION), column_of(chosen, SPREAD), count)
            for partition, (key, value, headers) in rows_by_partition(partitions, count, columns):
                target = target_of(topic, partition, task_count)
                for records in encode_batches(
                    key,
                    value,
                    headers=headers,
                    timestamp=time.time_ns() // 1_000_000,
                    bytes_max=encoded_bytes_max(settings),
                    compression=settings.compression_type,
                    compression_level=settings.compression_level,
                    transactional=True,
                ):
                    parcels.append((target, topic, partition, records))
        columns_of_parcels = zip(*parcels, strict=True)
        arrays = [pa.array(one, field.type) for one, field in zip(columns_of_parcels, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _place(topic: str, key: Any, partition: Any, spread: Any, partition_count: int) -> npt.NDArray[np.int32]:
    placed = given_partitions(topic, key, partition, len(spread), partition_count)
    return np.where(
        placed == NO_PARTITION, spread.fill_null(0).to_numpy(zero_copy_only=False) % partition_count, placed
    )


def write_parcels(options: SinkOptions, batches: Iterable[Any], membership: Membership) -> Written:
    """Send what `encode_rows` made, and wait until it arrived; raises the first failure."""

    async def send(writer: ColumnWriter, parcels: Any) -> None:
        names = [parcels.column(name) for name in ("topic", "partition", "records")]
        for topic, partition, records in zip(*names, strict=True):
            where = TopicPartition(topic.as_py(), partition.as_py())
            await writer.send(where, bytearray(records.as_buffer()))

    return send_all(options, batches, membership, send)


def asked_partition_count(bootstrap: str, topic: str) -> int:
    async def ask(client: ClusterClient) -> int:
        # A topic that brokers make for us has no leaders at first.
        return len((await client.retry(lambda: client.topic(topic, allow_auto_create=True))).partitions)

    return clients.run(bootstrap, ask)
