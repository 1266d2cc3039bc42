"""Administration of transactions: one function per verb, as in `admin`.

What coordinators know (`list_transactions`, `describe_transactions`) and what partitions know (`describe_producers`)
should agree. Where a partition has a transaction open that no coordinator will ever end, it is hanging: readers of
committed records stop there for ever. `find_hanging` looks for such, `abort_transaction` ends one in its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.client import admin
from moldau.client.cluster import ClusterClient
from moldau.client.connection import Connection
from moldau.client.coordinators import KeyType, to_coordinators
from moldau.client.metadata import PartitionInfo
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError, TopicPartition

TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
# What has begun and is not over.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
# As Kafka's tool assumes, where brokers do not tell transaction.max.timeout.ms.
MAX_TIMEOUT_MS = 15 * 60_000
# How many partitions are asked about at once.
PARTITIONS_PER_REQUEST_MAX = 500
# Only older producers are fenced: nothing will be written with the id that comes back.
_FENCING_TIMEOUT_MS = 1
_DURATION_FROM = 1
_PATTERN_FROM = 2


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`start_ms` is None without an open transaction; `partitions` are those that wait for their end."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition knows of a producer. None: no coordinator wrote yet, no transaction is open."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction as one partition has it open."""

    partition: TopicPartition
    producer: ProducerState
    transactional_id: str | None = None


# -- coordinators ------------------------------------------------------------------------------------------------------


async def list_transactions(
    client: ClusterClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    older_than_ms: int = -1,
    pattern: str | None = None,
) -> list[TransactionListing]:
    """The transactional ids of all coordinators by name; all filters must match. `pattern` is a regular expression of
    RE2 for the whole id."""

    async def ask(node: int) -> list[TransactionListing]:
        return await client.retry(lambda: _list_on(client, node, states, producer_ids, older_than_ms, pattern))

    nodes = (await client.metadata([])).nodes
    listed = await asyncio.gather(*map(ask, nodes))
    return sorted((one for some in listed for one in some), key=lambda one: one.transactional_id)


async def _list_on(
    client: ClusterClient,
    node: int,
    states: Sequence[str],
    producer_ids: Sequence[int],
    older_than_ms: int,
    pattern: str | None,
) -> list[TransactionListing]:
    from moldau.protocol.messages.list_transactions import ListTransactionsRequest

    connection = await client.connection_to(node)
    version = connection.version_for(ListTransactionsRequest.API_KEY)
    for is_asked, name, since in (
        (older_than_ms >= 0, "duration", _DURATION_FROM),
        (pattern is not None, "pattern", _PATTERN_FROM),
    ):
        if is_asked and version < since:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{connection}: the broker cannot list transactions by {name}"
            )
    request = ListTransactionsRequest(list(states), list(producer_ids), older_than_ms, pattern)
    response = await connection.request(request, version=version)
    if response.error_code:
        code = ErrorCode(response.error_code)
        if code is ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise KafkaError(code, f"{pattern!r} is no regular expression of RE2")
        raise KafkaError(code, f"broker {node} does not list its transactions: {code.name}")
    if response.unknown_state_filters:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"broker {node} knows no state {', '.join(response.unknown_state_filters)}"
        )
    return [
        TransactionListing(one.transactional_id, one.producer_id, one.transaction_state, node)
        for one in response.transaction_states
    ]


async def describe_transactions(
    client: ClusterClient, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    """What the coordinators know of each id, or the refusal."""
    return await to_coordinators(client, KeyType.TRANSACTION, transactional_ids, _describe, _refusal)


async def _describe(
    connection: Connection, node: int, transactional_ids: list[str]
) -> dict[str, TransactionDescription | KafkaError]:
    from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest

    response = await connection.request(DescribeTransactionsRequest(transactional_ids))
    return {
        one.transactional_id: _refusal(one.transactional_id, one.error_code, None)
        if one.error_code
        else TransactionDescription(
            one.transactional_id,
            node,
            one.transaction_state,
            one.producer_id,
            one.producer_epoch,
            one.transaction_timeout_ms,
            one.transaction_start_time_ms if one.transaction_start_time_ms >= 0 else None,
            tuple(sorted(TopicPartition(topic.topic, number) for topic in one.topics for number in topic.partitions)),
        )
        for one in response.transaction_states
    }


async def fence_producers(
    client: ClusterClient, transactional_ids: Iterable[str]
) -> dict[str, tuple[int, int] | KafkaError]:
    """Shut out whoever produces with these ids, and abort what they have open. The answers are the ids' new numbers."""
    return await to_coordinators(client, KeyType.TRANSACTION, transactional_ids, _fence, _refusal)


async def _fence(
    connection: Connection, node: int, transactional_ids: list[str]
) -> dict[str, tuple[int, int] | KafkaError]:
    from moldau.protocol.messages.init_producer_id import InitProducerIdRequest

    answers: dict[str, tuple[int, int] | KafkaError] = {}
    for transactional_id in transactional_ids:
        response = await connection.request(InitProducerIdRequest(transactional_id, _FENCING_TIMEOUT_MS))
        if response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:
            raise _refusal(transactional_id, response.error_code, None)  # asked again; to fence twice harms nobody
        if response.error_code:
            answers[transactional_id] = _refusal(transactional_id, response.error_code, None)
        else:
            answers[transactional_id] = response.producer_id, response.producer_epoch
    return answers


def _refusal(transactional_id: str, error_code: int, message: str | None) -> KafkaError:
    code = ErrorCode(error_code)
    if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return KafkaError(code, f"no coordinator knows transactional id {transactional_id!r}")
    return KafkaError(code, f"transactional id {transactional_id!r}: {message or code.name}")


# -- partitions --------------------------------------------------------------------------------------------------------


async def describe_producers(
    client: ClusterClient, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[ProducerState, ...]]:
    """The producers that the leaders of partitions remember, by producer id."""
    from moldau.protocol.messages.describe_producers import DescribeProducersRequest

    def build(asked: list[PartitionInfo]) -> DescribeProducersRequest:
        return DescribeProducersRequest(
            [
                DescribeProducersRequest.TopicRequest(topic, [one.partition for one in infos])
                for topic, infos in admin.infos_by_topic(asked)
            ]
        )

    asked = list(dict.fromkeys(partitions))
    found: dict[TopicPartition, tuple[ProducerState, ...]] = {}
    for start in range(0, len(asked), PARTITIONS_PER_REQUEST_MAX):
        answers = await admin.to_leaders(client, asked[start : start + PARTITIONS_PER_REQUEST_MAX], build)
        for where, answer in answers.items():
            states = sorted(map(_producer_state, answer.active_producers), key=lambda state: state.producer_id)
            found[where] = tuple(states)
    return {where: found[where] for where in asked}


def _producer_state(state: Any) -> ProducerState:
    return ProducerState(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch if state.coordinator_epoch >= 0 else None,
        state.current_txn_start_offset if state.current_txn_start_offset >= 0 else None,
    )


async def open_transactions(client: ClusterClient, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
    """Every transaction that is open in one of the partitions, with the id of whom coordinators know."""
    described = await describe_producers(client, partitions)
    found = [
        OpenTransaction(where, state)
        for where, states in described.items()
        for state in states
        if state.transaction_start_offset is not None
    ]
    if not found:
        return []
    producer_ids = sorted({one.producer.producer_id for one in found})
    listed = await list_transactions(client, producer_ids=producer_ids)
    names = {one.producer_id: one.transactional_id for one in listed}
    return [OpenTransaction(one.partition, one.producer, names.get(one.producer.producer_id)) for one in found]


async def hanging_among(client: ClusterClient, transactions: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Those that no coordinator will end: it knows no id for the producer, or does not count the partition among those
    that wait for their end."""
    asked = list(transactions)
    ids = {one.transactional_id for one in asked if one.transactional_id is not None}
    described = await describe_transactions(client, ids)

    def is_hanging(one: OpenTransaction) -> bool:
        if one.transactional_id is None:
            return True
        found = described[one.transactional_id]
        if isinstance(found, KafkaError):
            if found.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return True
            raise found
        return one.partition not in found.partitions

    return [one for one in asked if is_hanging(one)]


async def find_hanging(
    client: ClusterClient, partitions: Iterable[TopicPartition], *, now_ms: int, older_than_ms: int
) -> list[OpenTransaction]:
    """Transactions that nothing was written to for so long, and that no coordinator will end."""
    opened = await open_transactions(client, partitions)
    return await hanging_among(
        client, [one for one in opened if now_ms - one.producer.last_timestamp_ms > older_than_ms]
    )


async def partitions_with_leader(
    client: ClusterClient, topics: Iterable[str] | None = None, *, broker: int | None = None
) -> list[TopicPartition]:
    """All partitions that can be asked now, internal topics included; of the given topics, led by the given broker."""
    metadata = await client.metadata(topics)
    return sorted(
        TopicPartition(topic.name, info.partition)
        for topic in metadata.topics.values()
        if not topic.error
        for info in topic.partitions
        if info.leader != NO_LEADER and broker in (None, info.leader)
    )


async def max_timeout_ms(client: ClusterClient) -> int:
    """The longest time-out that a broker allows a transaction (`transaction.max.timeout.ms`)."""
    key = "transaction.max.timeout.ms"
    longest = [MAX_TIMEOUT_MS]
    for node in (await client.metadata([])).nodes:
        try:
            entries = await admin.describe_configs(client, admin.ResourceType.BROKER, str(node), [key])
        except KafkaError:
            continue  # who looks for transactions need not be allowed to see configs
        longest += [int(entry.value) for entry in entries if entry.name == key and entry.value is not None]
    return max(longest)


async def abort_transaction(
    client: ClusterClient, where: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Write an abort marker into one partition, past the coordinator: for a transaction that hangs, and no other."""
    from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest

    def build(info: PartitionInfo) -> WriteTxnMarkersRequest:
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(where.topic, [where.partition])
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id, producer_epoch, False, [topic], max(0, coordinator_epoch)
        )
        return WriteTxnMarkersRequest([marker])

    response = await client.to_leader(where.topic, where.partition, build)
    for marker in response.markers:
        for topic in marker.topics:
            for one in topic.partitions:
                if one.error_code:
                    raise _abort_refusal(where, producer_id, producer_epoch, coordinator_epoch, one.error_code)


def _abort_refusal(
    where: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int, error_code: int
) -> KafkaError:
    code = ErrorCode(error_code)
    texts = {
        ErrorCode.INVALID_PRODUCER_EPOCH: f"producer {producer_id} wrote with a later epoch than {producer_epoch}",
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: f"a coordinator of a later epoch than {coordinator_epoch} wrote",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "this user may not write markers: grant Alter on the cluster",
    }
    return KafkaError(code, f"{where}: {texts.get(code, code.name)}")
