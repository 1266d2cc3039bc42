"""Before a partition takes the first batch of a transaction, the transaction's coordinator must know of the partition.

A batch that comes late, when its transaction is over, would otherwise open one that nobody ends, and readers of
committed records would wait there for ever (KIP-890). So the first batch of a producer is a question to the
coordinator. What a partition remembers while the answer is under way:

- that there is a question: a marker that comes meanwhile ends the transaction, so that the answer is about the past,
  and the batch is refused;
- the lowest sequence that asked: a later batch must not become the first because an earlier one was refused, also when
  it was on its way while that one was answered. So this is remembered until a transaction opens or ends here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.kernel import ErrorCode, KafkaError, ProducerIdAndEpoch, TopicPartition
from moldau.storage import ProducerStates

if TYPE_CHECKING:
    from moldau.broker.node import Node
    from moldau.broker.partition import Partition

# Producers of a partition that are remembered after their questions are answered; the oldest are forgotten.
PRODUCERS_REMEMBERED_MAX = 1000
# Whoever is told this does not try again.
_FATAL = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_EPOCH)
_UNREACHABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class Claim(NamedTuple):
    """A producer says that what it writes is part of its transaction."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    # The second generation lets the partition's leader add the partition (KIP-890); the first has added it before.
    adds_partitions: bool
    # Whether the client knows TRANSACTION_ABORTABLE; others are told INVALID_TXN_STATE.
    knows_abortable: bool


class Verification:
    """Questions of one producer: so many are under way."""

    __slots__ = ("bumps_epochs", "count", "epoch", "is_remembered", "sequence_min")

    def __init__(self, epoch: int, sequence: int, bumps_epochs: bool) -> None:
        self.epoch = epoch
        self.sequence_min = sequence
        # Whether the producer begins every transaction with an epoch of its own, hence with sequence 0.
        self.bumps_epochs = bumps_epochs
        self.count = 0
        self.is_remembered = False

    def ask(self, epoch: int, sequence: int) -> None:
        self.count += 1
        if epoch > self.epoch:
            self.epoch, self.sequence_min = epoch, sequence
        elif epoch == self.epoch:
            self.sequence_min = min(self.sequence_min, sequence)


class Verifications:
    """Those of one partition; its producers are an argument, because its log may move."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(
        self, producers: ProducerStates, producer: ProducerIdAndEpoch, sequence: int, *, bumps_epochs: bool
    ) -> Verification | None:
        """To be given back with `drop`; None when the transaction is open here already."""
        producer_id, epoch = producer
        if producers.has_open_transaction(producer_id, epoch):
            return None
        producers.check_coordinators_batch(producer_id, epoch)
        verification = self._by_producer.get(producer_id)
        if verification is None:
            verification = self._by_producer[producer_id] = Verification(epoch, sequence, bumps_epochs)
        verification.bumps_epochs = bumps_epochs
        verification.ask(epoch, sequence)
        return verification

    def check(
        self,
        producers: ProducerStates,
        producer: ProducerIdAndEpoch,
        sequence: int,
        verification: Verification | None,
    ) -> None:
        """The coordinator said yes, or was not asked (None): may the batch be appended now?"""
        producer_id, epoch = producer
        if producers.has_open_transaction(producer_id, epoch):
            return
        if verification is None or self._by_producer.get(producer_id) is not verification:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
        if sequence < 0:
            return
        state = producers.get(producer_id)
        has_written = state is not None and state.batches
        if sequence > verification.sequence_min or (verification.bumps_epochs and sequence and not has_written):
            first = 0 if verification.bumps_epochs else verification.sequence_min
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {sequence} before {first}",
            )

    def drop(self, producer_id: int, verification: Verification, *, may_try_again: bool) -> None:
        """One question is answered, and its batch appended or refused."""
        verification.count -= 1
        verification.is_remembered |= may_try_again
        if verification.count or self._by_producer.get(producer_id) is not verification:
            return
        del self._by_producer[producer_id]
        if verification.is_remembered:
            self._by_producer[producer_id] = verification
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        if len(self._by_producer) > PRODUCERS_REMEMBERED_MAX:
            at_rest = (producer_id for producer_id, each in self._by_producer.items() if not each.count)
            self._by_producer.pop(next(at_rest))

    def forget(self) -> None:
        """Another leader may open and end transactions here: only what is under way counts from now on."""
        self._by_producer = {producer_id: each for producer_id, each in self._by_producer.items() if each.count}
        for each in self._by_producer.values():
            each.is_remembered = False

    def end(self, producer_id: int) -> None:
        """The producer's transaction was opened or ended here."""
        self._by_producer.pop(producer_id, None)


class Verified:
    """Batches of a claim on their way into partitions: `ask` the coordinator, `check` each, append, `close`."""

    def __init__(self, node: Node, claim: Claim) -> None:
        self._node = node
        self._claim = claim
        self._is_required = claim.adds_partitions or node.settings.flag("transaction.partition.verification.enable")
        self._open: dict[TopicPartition, tuple[Partition, Verification]] = {}
        self._refusals: dict[TopicPartition, KafkaError] = {}

    @property
    def must_ask(self) -> bool:
        return bool(self._open)

    def asks_about(self, partition: Partition) -> bool:
        return TopicPartition(partition.topic, partition.index) in self._open

    def begin(self, partition: Partition, sequence: int) -> None:
        """A batch for the partition, with its first sequence."""
        claim, where = self._claim, TopicPartition(partition.topic, partition.index)
        if not self._is_required or where in self._open:
            return
        try:
            producers = partition.log.producers
            begun = partition.verifications.begin(
                producers, claim.producer, sequence, bumps_epochs=claim.adds_partitions
            )
        except KafkaError as refusal:
            self._refusals[where] = refusal
            return
        if begun is not None:
            self._open[where] = (partition, begun)

    async def ask(self) -> None:
        claim = self._claim
        codes = await self._node.transactions.ask_coordinator(
            claim.transactional_id,
            claim.producer,
            frozenset(self._open),
            bumps_epochs=claim.adds_partitions,
            only_verifies=not claim.adds_partitions,
        )
        for where, code in codes.items():
            if code:
                self._refusals[where] = _refusal(code, claim)

    def require_accepted(self, partition: Partition) -> None:
        """KafkaError when the coordinator refused."""
        refusal = self._refusals.get(TopicPartition(partition.topic, partition.index))
        if refusal is not None:
            raise refusal

    def check(self, partition: Partition, sequence: int) -> None:
        """KafkaError when what was true at `begin`, or what the coordinator accepted, is not true any more."""
        if self._is_required:
            _, verification = self._open.get(TopicPartition(partition.topic, partition.index), (None, None))
            partition.verifications.check(partition.log.producers, self._claim.producer, sequence, verification)

    def close(self) -> None:
        producer_id, epoch = self._claim.producer
        for where, (partition, verification) in self._open.items():
            if partition.log.producers.has_open_transaction(producer_id, epoch):
                partition.verifications.end(producer_id)
                continue
            refusal = self._refusals.get(where)
            may_try_again = refusal is None or refusal.code not in _FATAL
            partition.verifications.drop(producer_id, verification, may_try_again=may_try_again)
        self._open.clear()


def _refusal(code: ErrorCode, claim: Claim) -> KafkaError:
    """A producer knows a partition's errors, not a coordinator's."""
    if code in _UNREACHABLE or (code == ErrorCode.CONCURRENT_TRANSACTIONS and not claim.adds_partitions):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction."
            f" Underlying error: {ErrorCode(code).name}",
        )
    if code == ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code == ErrorCode.TRANSACTION_ABORTABLE and not claim.knows_abortable:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    return KafkaError(code)
