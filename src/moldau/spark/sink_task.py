"""One task's part of a write: Arrow batches in, records in topics, and a note of what went where.

Runs in a Python worker of an executor. Batches are gathered until they are worth encoding: rows for many partitions
would otherwise make many small record batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from moldau.client import ClusterClient, Identity, Producer, transaction_admin
from moldau.client.column_writer import ColumnWriter
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.spark import clients
from moldau.spark.exactly_once import several_tasks
from moldau.spark.sink_columns import HEADERS, KEY, NULL_TOPIC, PARTITION, TOPIC, VALUE, SinkSchemaError
from moldau.spark.sink_options import SinkOptions

logger = logging.getLogger(__name__)

GATHERED_BYTES_MAX = 8 << 20
# Rows that no broker will take, however often they are sent.
REFUSALS = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True)
class Membership:
    """A transaction that a task writes in: the driver began it and will end it."""

    transactional_id: str
    identity: Identity
    transaction_version: int


@dataclass(slots=True)
class Written(WriterCommitMessage):
    """What one task wrote, for the driver."""

    record_counts: dict[TopicPartition, int] = field(default_factory=dict)
    membership: Membership | None = None
    stage_id: int = -1
    refusal: str | None = None  # why the rows cannot be written, however often they are tried
    failure: str | None = None  # what went wrong, for the driver to do the batch again


def write_rows(options: SinkOptions, batches: Iterable[Any], membership: Membership | None = None) -> Written:
    """Write everything and wait until it arrived; raises the first failure."""

    async def send(writer: ColumnWriter, rows: Any) -> None:
        for topic, chosen in by_topic(options.topic, rows):
            columns = [column_of(chosen, name) for name in (KEY, VALUE, HEADERS, PARTITION)]
            await writer.write(topic, *columns)

    # No shuffle has brought all of a partition's rows here: another task, or an earlier attempt, may have some.
    return send_all(options, batches, membership, send, check_unwritten)


Check = Callable[[ClusterClient, Membership, TopicPartition], Coroutine[Any, Any, None]]


async def check_unwritten(client: ClusterClient, membership: Membership, where: TopicPartition) -> None:
    """A second writer's first batches have the first one's numbers: brokers would say "delivered" and drop them."""
    states = (await transaction_admin.describe_producers(client, [where]))[where]
    if any((one.producer_id, one.producer_epoch) == membership.identity for one in states):
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{where} has records of this transaction already")


def send_all(
    options: SinkOptions,
    batches: Iterable[Any],
    membership: Membership | None,
    send: Callable[[ColumnWriter, Any], Coroutine[Any, Any, None]],
    check: Check | None = None,
) -> Written:
    """Give the batches, gathered to tables, to `send`, with a writer for this task alone. Of a transaction's partitions
    each is looked at by `check` before it is written to."""

    async def open_writer(client: ClusterClient) -> tuple[Producer, ColumnWriter]:
        config = options.producer_config(membership.transactional_id if membership else None)
        producer = Producer(client, config)
        if membership is None:
            return producer, ColumnWriter(producer)
        producer.join_transaction(membership.identity, membership.transaction_version)
        return producer, ColumnWriter(producer, None if check is None else partial(check, client, membership))

    tables = gathered(batches)
    table = next(tables, None)
    if table is None:
        return Written({}, membership)
    producer, writer = clients.run(options.bootstrap, open_writer)
    loop = clients.process_loop()
    try:
        while table is not None:
            loop.call(send(writer, table))
            table = next(tables, None)
        loop.call(writer.finish())
    except BaseException:
        loop.call(producer.close(0))
        raise
    loop.call(producer.close())
    return Written(dict(writer.record_counts), membership)


WriteRows = Callable[[SinkOptions, Iterator[Any], Membership], Written]


def write_or_refuse(
    options: SinkOptions,
    batches: Iterator[Any],
    membership: Membership,
    write: WriteRows = write_rows,
    *,
    is_only_writer: bool = False,
) -> Written:
    """As `write_rows`, but what goes wrong is told to the driver as an answer: Spark gives a task that raises another
    attempt, which may not write, and its words would be all that is heard. For whoever is its partitions' only writer
    a gap in the sequences is a broker's failure, and the batch is done again."""
    try:
        return write(options, batches, membership)
    except SinkSchemaError as error:
        return Written(membership=membership, refusal=str(error))
    except KafkaError as error:
        if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_only_writer:
            # Sequences of this task begin at 0: another one's are there already.
            return Written(membership=membership, refusal=several_tasks(str(error)))
        if error.code in REFUSALS:
            return Written(membership=membership, refusal=str(error))
        return _failed(membership, error)
    except Exception as error:
        return _failed(membership, error)


def _failed(membership: Membership, error: Exception) -> Written:
    logger.warning("task_failed transactional_id=%s", membership.transactional_id, exc_info=error)
    return Written(membership=membership, failure=f"{type(error).__name__}: {error}")


def column_of(rows: Any, name: str) -> Any:
    return rows.column(name).combine_chunks() if name in rows.schema.names else None


def by_topic(topic: str | None, rows: Any) -> Iterator[tuple[str, Any]]:
    if topic is not None:
        yield topic, rows
        return
    topics = rows.column(TOPIC)
    for name in pc.unique(topics).to_pylist():
        if name is None:
            raise SinkSchemaError(NULL_TOPIC)
        yield name, rows.filter(pc.equal(topics, name))


def gathered(batches: Iterable[Any]) -> Iterator[Any]:
    held: list[Any] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= GATHERED_BYTES_MAX:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)
