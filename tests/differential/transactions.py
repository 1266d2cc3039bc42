"""What scenarios of transactions share: producers that both sides know, requests in the form of every version, and how
to wait for what Kafka finishes after it has answered.

Kafka answers EndTxn when the outcome is written, and writes the markers afterwards; until then it refuses the next step
with CONCURRENT_TRANSACTIONS. Scenarios ask again until that is over, and compare what comes then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.kernel import ErrorCode
from moldau.protocol.message import Message, Struct
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.differential.batches import batch
from tests.differential.pair import Pair, Side

TRANSACTION_KIND = 1
TIMEOUT_MS = 60_000
# Over by itself: the coordinator is being found, loads, has no block of ids, or still writes markers.
PASSING = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
FINISHED = ("Empty", "CompleteCommit", "CompleteAbort")


def codes(value: Any) -> Iterator[int]:
    """Every error code of an answer."""
    if isinstance(value, Struct):
        for name in value.__slots__:
            field = getattr(value, name)
            if name.endswith("error_code"):
                yield field
            else:
                yield from codes(field)
    elif isinstance(value, list):
        for item in value:
            yield from codes(item)


def settled(answer: Any) -> bool:
    return not PASSING.intersection(codes(answer))


@dataclass(frozen=True)
class Producer:
    """A transactional id with the producer id and epoch that one side gave it."""

    transactional_id: str
    producer_id: int
    epoch: int

    def changed(self, **fields: Any) -> Producer:
        return Producer(**{**vars(self), **fields})


Topics = dict[str, list[int]]
Build = Callable[[Producer], Message]


class Transactions(Pair):
    """A pair whose clusters have finalized the same transaction.version."""

    def __init__(self, left: Side, right: Side, prefix: str, level: int) -> None:
        super().__init__(left, right, prefix)
        self.level = level

    def create(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None, *, batches: Sequence[bytes] = ()
    ) -> str:
        # For ever: the records are old, and Kafka looks for old ones now and then.
        return super().create(name, partitions, {"retention.ms": "-1", **(configs or {})}, batches=batches)

    # -- the stage: not compared ---------------------------------------------------------------------------------------

    def init(self, name: str = "id", timeout_ms: int = TIMEOUT_MS) -> str:
        """A transactional id of the scenario's own with a producer on both sides; also fences the one before."""
        transactional_id = self.topic(name)
        for side in self.sides:
            ready(side, transactional_id)
            answer = side.ask_until(InitProducerIdRequest(transactional_id, timeout_ms), 4, settled)
            assert answer.error_code == 0, (side.name, answer)
            learn(side, transactional_id, answer)
        return transactional_id

    def begin(self, transactional_id: str, topics: Topics) -> None:
        for side in self.sides:
            answer = side.ask_until(add_partitions(3, producer(side, transactional_id), topics), 3, settled)
            assert not any(codes(answer)), (side.name, answer)

    def send(self, transactional_id: str, topic: str, *values: bytes, sequence: int = 0, partition: int = 0) -> None:
        for side in self.sides:
            request = transactional(producer(side, transactional_id), topic, sequence, *values, partition=partition)
            answer = side.ask_until(request, 11, settled)
            assert not any(codes(answer)), (side.name, answer)

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """By the version that clients use at this level, and until the markers are written."""
        for side in self.sides:
            version = 5 if self.level >= 2 else 4
            answer = side.ask_until(end(producer(side, transactional_id), commit=commit), version, settled)
            assert answer.error_code == 0, (side.name, answer)
            if version >= 5:
                learn(side, transactional_id, answer)
            wait_until_finished(side, transactional_id)

    # -- questions -----------------------------------------------------------------------------------------------------

    def ask_as(self, transactional_id: str, build: Build, version: int, **more: Any) -> tuple[Any, Any]:
        """A question of the producer that each side knows under a transactional id, asked until it is settled."""
        more.setdefault("until", settled)
        return self.ask(lambda side: build(producer(side, transactional_id)), version, **more)


def ready(side: Side, transactional_id: str) -> None:
    """The coordinator of a transactional id is found and has loaded."""
    request = FindCoordinatorRequest(key_type=TRANSACTION_KIND, coordinator_keys=[transactional_id])
    side.ask_until(request, 6, settled)
    side.ask_until(DescribeTransactionsRequest([transactional_id]), 0, settled)


def learn(side: Side, transactional_id: str, answer: Any) -> None:
    """Take over the producer id and epoch of an answer, and call the id by its owner's name from now on."""
    side.notes[transactional_id] = Producer(transactional_id, answer.producer_id, answer.producer_epoch)
    same = f"<producer {sum(transactional_id in name for name in side.producer_names.values())} of {transactional_id}>"
    side.producer_names.setdefault(answer.producer_id, same)


def producer(side: Side, transactional_id: str) -> Producer:
    found = side.notes[transactional_id]
    assert isinstance(found, Producer)
    return found


def wait_until_finished(side: Side, transactional_id: str) -> None:
    side.ask_until(
        DescribeTransactionsRequest([transactional_id]),
        0,
        lambda answer: answer.transaction_states[0].transaction_state in FINISHED,
    )


# -- requests ----------------------------------------------------------------------------------------------------------


def add_partitions(version: int, *owners: Any, verify_only: bool = False) -> AddPartitionsToTxnRequest:
    """Pairs of a producer and its topics, as `add_partitions(3, producer, topics)`; several from version 4 on."""
    pairs = list(zip(owners[::2], owners[1::2], strict=True))
    if version <= 3:
        ((one, topics),) = pairs
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=one.transactional_id,
            v3_and_below_producer_id=one.producer_id,
            v3_and_below_producer_epoch=one.epoch,
            v3_and_below_topics=_topics(topics),
        )
    return AddPartitionsToTxnRequest(
        [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                one.transactional_id, one.producer_id, one.epoch, verify_only, _topics(topics)
            )
            for one, topics in pairs
        ]
    )


def _topics(topics: Topics) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(*each) for each in topics.items()]


def add_offsets(one: Producer, group: str) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(one.transactional_id, one.producer_id, one.epoch, group)


def commit_offsets(
    version: int,
    one: Producer,
    group: str,
    offsets: dict[str, dict[int, int]],
    member: tuple[int, str, str | None] = (-1, "", None),
    metadata: str | None = "m",
) -> TxnOffsetCommitRequest:
    request = TxnOffsetCommitRequest(one.transactional_id, group, one.producer_id, one.epoch)
    if version >= 3:
        request.generation_id, request.member_id, request.group_instance_id = member
    for topic, partitions in offsets.items():
        values = [
            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(index, offset, committed_metadata=metadata)
            for index, offset in partitions.items()
        ]
        request.topics.append(TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(topic, values))
    return request


def end(one: Producer, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(one.transactional_id, one.producer_id, one.epoch, commit)


def transactional(
    one: Producer, topic: str | bytes, sequence: int, *values: bytes, partition: int = 0, **options: Any
) -> ProduceRequest:
    """A batch of a producer; by topic id when the topic is given as bytes."""
    options = {"transactional": True, **options}
    data = batch(*values, producer_id=one.producer_id, producer_epoch=one.epoch, base_sequence=sequence, **options)
    each = ProduceRequest.PartitionProduceData(index=partition, records=data)
    named = ProduceRequest.TopicProduceData(partition_data=[each])
    if isinstance(topic, bytes):
        named.topic_id = topic
    else:
        named.name = topic
    return ProduceRequest(one.transactional_id, acks=-1, timeout_ms=10_000, topic_data=[named])


def only_of(field: str, prefix: str, names: Iterable[str] = ("transactional_id",)) -> Callable[[Any], Any]:
    """An edit that keeps the entries of the scenario's own ids: other tests share the brokers."""

    def edit(tree: Any) -> Any:
        kept = [each for each in tree[field] if any(str(each[name]).startswith(prefix) for name in names)]
        return {**tree, field: kept}

    return edit
