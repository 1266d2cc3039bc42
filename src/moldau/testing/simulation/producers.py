"""Producers of the simulation. Each writes down what it did and only what it knows about the outcome.

A commit that was answered happened. One that was refused did not, unless an earlier attempt got no answer. A
transaction for which nobody ever asked to commit never happens. All else is unknown.

Two generations speak: the first adds partitions before it writes and keeps its epoch; the second (KIP-890) leaves
adding to the broker and gets a new epoch with every end. The first has no defence against an end that arrives when the
next transaction has begun (KAFKA-17754), so only its batches, which are verified, linger in the network.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from moldau.kernel import ErrorCode
from moldau.protocol.batches import Record, build_batch
from moldau.protocol.message import Message
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.testing.dice import SeededDice
from moldau.testing.history import History, Operation, Partition
from moldau.testing.simulation.client import NoAnswer, SimulatedClient, by_topic, fetch_committed

# How often a client tries before it gives up: what it then leaves behind is for others to clear away.
ATTEMPTS_MAX = 60
ATTEMPTS = (1, 3, ATTEMPTS_MAX)
BACKOFF_MS_MAX = 400
GROUP, TRANSACTION = 0, 1
TIMEOUTS_MS = (1_500, 4_000, 10_000, 60_000)

RETRIABLE = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        # Of clusters.
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
# Refusals that say nothing about whether it happened all the same.
UNSURE = frozenset(
    (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
FENCED = frozenset((ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING))


class Fenced(Exception):
    """This instance is over: a newer one, or a timeout, or nobody knows."""


class Abortable(Exception):
    """This transaction is over, the instance is not."""


class World(Protocol):
    """What clients share."""

    dice: SeededDice
    history: History
    partitions: list[Partition]
    is_calm: bool
    transaction_timeouts_ms: tuple[int, ...]

    def client(self, name: str) -> Any: ...

    def before_end(self) -> None:
        """A transaction is about to be ended: a good moment for faults."""
        ...


class Producer:
    """Ids, sequences and retries."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._dice = world.dice
        self.name = name
        self._client = world.client(name)
        self._transactional_id: str | None = None
        self._producer_id = self._epoch = -1
        self._sequences: dict[Partition, int] = {}
        self._produce_version = 11
        self._retriable: frozenset[int] = RETRIABLE
        self._lingers = True
        self._sent_count = 0

    def _adopt(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._producer_id, self._epoch = producer_id, epoch
            self._sequences.clear()

    def next_value(self) -> str:
        self._sent_count += 1
        return f"{self.name}-{self._sent_count}"

    async def _pause(self, ms_max: int = BACKOFF_MS_MAX) -> None:
        await asyncio.sleep((1 + self._dice.below(ms_max)) / 1000)

    def _attempts(self) -> int:
        return ATTEMPTS[self._dice.below(len(ATTEMPTS))]

    async def _ask(self, request: Message, version: int, read_code: Any, attempts: int = ATTEMPTS_MAX) -> Any:
        """Until there is an answer that is not `RETRIABLE`; NoAnswer when there was none in all attempts."""
        unsure = False
        for _ in range(attempts):
            try:
                response = await self._client.ask(request, version, lingers=self._lingers)
            except NoAnswer as lost:
                unsure |= lost.was_sent
            else:
                code = read_code(response)
                if code not in RETRIABLE:
                    return response, code, unsure
                unsure |= code in UNSURE
            await self._pause()
        raise NoAnswer(unsure)

    async def find_coordinator(self, key: str, kind: int) -> None:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        try:
            await self._ask(request, 5, lambda response: response.coordinators[0].error_code)
        except NoAnswer:
            raise Fenced from None

    async def initialize(self, *, goes_on: bool = False) -> None:
        if self._transactional_id is not None and not goes_on:
            await self.find_coordinator(self._transactional_id, TRANSACTION)
        timeouts_ms = self._world.transaction_timeouts_ms
        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=timeouts_ms[self._dice.below(len(timeouts_ms))],
        )
        if goes_on:
            request.producer_id, request.producer_epoch = self._producer_id, self._epoch
        try:
            response, code, _ = await self._ask(request, 4, lambda response: response.error_code)
        except NoAnswer:
            raise Fenced from None
        if code:
            raise Fenced
        self._adopt(response.producer_id, response.producer_epoch)

    async def _produce(self, operation: Operation, writes: dict[Partition, list[str]]) -> None:
        """One request; each partition's batch is sent again, as it is, until it is answered."""
        batches: dict[Partition, bytes] = {}
        for partition, values in writes.items():
            for value in values:
                operation.send(partition, value)
            batches[partition] = bytes(
                build_batch(
                    [Record(place, 1_700_000_000_000, None, value.encode()) for place, value in enumerate(values)],
                    producer_id=self._producer_id,
                    producer_epoch=self._epoch,
                    base_sequence=self._sequences.get(partition, 0),
                    transactional=self._transactional_id is not None,
                )
            )
            self._sequences[partition] = self._sequences.get(partition, 0) + len(values)
        for _ in range(self._attempts()):
            for partition, code in (await self._send_batches(operation, batches, writes)).items():
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    del batches[partition]
                elif code in FENCED:
                    raise Fenced
                elif code not in self._retriable:
                    raise Abortable(ErrorCode(code).name)
            if not batches:
                return
            await self._pause()
        raise Abortable("no answer")

    async def _send_batches(
        self, operation: Operation, batches: dict[Partition, bytes], writes: dict[Partition, list[str]]
    ) -> dict[Partition, int]:
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=topic,
                    partition_data=[
                        ProduceRequest.PartitionProduceData(index=index, records=batches[topic, index])
                        for index in indexes
                    ],
                )
                for topic, indexes in by_topic(list(batches)).items()
            ],
        )
        try:
            response = await self._client.ask(request, self._produce_version)
        except NoAnswer:
            return {}
        codes: dict[Partition, int] = {}
        for topic in response.responses:
            for answer in topic.partition_responses:
                partition = (topic.name, answer.index)
                codes[partition] = answer.error_code
                if not answer.error_code and answer.base_offset >= 0:
                    _place(operation, partition, writes[partition], answer.base_offset)
        return codes


def _place(operation: Operation, partition: Partition, values: list[str], base_offset: int) -> None:
    """Write down the offsets that the broker told."""
    offsets = {value: base_offset + place for place, value in enumerate(values)}
    operation.sends = [
        sent._replace(offset=offsets[str(sent.value)])
        if sent.partition == partition and sent.value in offsets
        else sent
        for sent in operation.sends
    ]


class PlainProducer(Producer):
    """Idempotent, without transactions."""

    async def run(self) -> None:
        try:
            await self.initialize()
            while not self._world.is_calm:
                await self.write()
                await self._pause(1_500)
        except (Fenced, Abortable):
            return

    async def write(self) -> None:
        partitions = self._world.partitions
        with self._world.history.plain(self.name) as operation:
            try:
                await self._produce(operation, {partitions[self._dice.below(len(partitions))]: [self.next_value()]})
            except (Fenced, Abortable) as problem:
                failed: Exception | None = problem
            else:
                failed = None
                operation.succeeded()
        if failed is not None:
            raise failed


class TransactionalProducer(Producer):
    """One instance of a transactional id, of the first generation or the second."""

    def __init__(self, world: World, transactional_id: str, instance: int, generation: int) -> None:
        super().__init__(world, f"{transactional_id}.{instance}")
        self._transactional_id = transactional_id
        self._bumps_epochs = self._lingers = generation == 2
        self._produce_version = 12 if self._bumps_epochs else 11
        self._added: set[Partition] = set()

    async def run(self, transactions: int) -> None:
        try:
            await self.initialize()
            for _ in range(transactions):
                if self._world.is_calm:
                    return
                await self.transact()
                if self._dice.chance(50):
                    await self._pause(600)
        except Fenced:
            return

    async def transact(self) -> None:
        """Begin, write, end; Fenced when this instance is over."""
        is_over = False
        must_initialize = False
        with self._world.history.transaction(self.name) as operation:
            self._added.clear()
            try:
                try:
                    await self._write_all(operation)
                except Abortable:
                    must_initialize = not self._bumps_epochs
                    await self._end(operation, committed=False)
                else:
                    await self._end(operation, committed=self._dice.chance(70))
            except Fenced:
                is_over = True
        if is_over:
            raise Fenced
        if must_initialize:
            await self.initialize(goes_on=self._dice.chance(50))

    async def _write_all(self, operation: Operation) -> None:
        try:
            for _ in range(1 + self._dice.below(3)):
                partitions = self._world.partitions
                chosen = {partitions[self._dice.below(len(partitions))] for _ in range(1 + self._dice.below(2))}
                await self._write(
                    operation,
                    {each: [self.next_value() for _ in range(1 + self._dice.below(3))] for each in sorted(chosen)},
                )
                if self._dice.chance(4):
                    await self._pause(12_000)  # longer than some timeouts: a zombie, perhaps
                if self._dice.chance(3):
                    raise Fenced  # the client dies and leaves its transaction open
        except (Fenced, Abortable):
            # Nobody asked to commit it, so nobody will.
            operation.failed()
            raise

    async def _write(self, operation: Operation, writes: dict[Partition, list[str]]) -> None:
        new = [each for each in writes if each not in self._added]
        if new and not self._bumps_epochs:
            await self._add_partitions(new)
        requests = [writes]
        if self._dice.chance(30):
            # A second request behind the first, without waiting: whatever happens, it must not come before it.
            requests.append({each: [self.next_value()] for each in writes})
        outcomes = await asyncio.gather(
            *(self._produce(operation, request) for request in requests), return_exceptions=True
        )
        problems = [each for each in outcomes if each is not None]
        if problems:
            raise next((each for each in problems if isinstance(each, Fenced)), problems[0])

    async def _add_partitions(self, partitions: list[Partition]) -> None:
        assert self._transactional_id is not None
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ],
        )
        await self._step(
            request,
            3,
            lambda response: response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        self._added.update(partitions)

    async def _step(self, request: Message, version: int, read_code: Any) -> None:
        """A request in the middle of a transaction, that may be repeated."""
        try:
            _, code, _ = await self._ask(request, version, read_code)
        except NoAnswer:
            raise Abortable("no answer") from None
        if code in FENCED:
            raise Fenced
        if code:
            raise Abortable(ErrorCode(code).name)

    async def _end(self, operation: Operation, *, committed: bool) -> None:
        assert self._transactional_id is not None
        self._world.before_end()
        if not committed:
            operation.failed()
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        try:
            response, code, unsure = await self._ask(
                request, 5 if self._bumps_epochs else 4, lambda response: response.error_code, self._attempts()
            )
        except NoAnswer as lost:
            if committed and not lost.was_sent:
                operation.failed()
            raise Fenced from None
        if code:
            if not unsure:
                operation.failed()
            raise Fenced
        if committed:
            operation.succeeded()
        if self._bumps_epochs:
            self._adopt(response.producer_id, response.producer_epoch)


class Transformer(TransactionalProducer):
    """Reads on where its group stands, writes what it made of it, and moves the group, all in one transaction."""

    def __init__(
        self,
        world: World,
        transactional_id: str,
        instance: int,
        generation: int,
        *,
        group: str,
        inputs: list[Partition],
        output: Partition,
    ) -> None:
        super().__init__(world, transactional_id, instance, generation)
        self._group = group
        self._inputs = inputs
        self._output = output
        self._source = inputs[0]
        self._next_offset = 0
        self._read: list[tuple[int, str]] = []

    async def initialize(self, *, goes_on: bool = False) -> None:
        await super().initialize(goes_on=goes_on)
        await self.find_coordinator(self._group, GROUP)

    async def transact(self) -> None:
        self._source = self._inputs[self._dice.below(len(self._inputs))]
        if await self._read_on():
            await super().transact()
        else:
            await self._pause(1_000)

    async def _read_on(self) -> bool:
        """Whether there is something new."""
        history = self._world.history
        offset = await read_group_offset(self._world, self._client, self.name, self._group, self._source)
        if offset is None:
            return False
        history.assign(self.name, {self._source: max(offset, 0)})
        with history.plain(self.name) as operation:
            try:
                found = (await fetch_committed(self._client, {self._source: max(offset, 0)}, 0))[self._source]
            except NoAnswer:
                return False
            self._read = found.records[: 1 + self._dice.below(4)]
            for each_offset, value in self._read:
                operation.poll(self._source, each_offset, value)
            operation.succeeded()
        if not self._read:
            return False
        self._next_offset = self._read[-1][0] + 1
        return True

    async def _write_all(self, operation: Operation) -> None:
        try:
            self._sent_count += 1
            # Another attempt is another value, so that one can tell which of them is read.
            made = [f"{value}>{self.name}-{self._sent_count}.{place}" for place, (_, value) in enumerate(self._read)]
            is_first = self._dice.chance(50)
            if is_first:
                await self._commit_offset(operation)
            await self._write(operation, {self._output: made})
            if not is_first:
                await self._commit_offset(operation)
        except (Fenced, Abortable):
            operation.failed()
            raise

    async def _commit_offset(self, operation: Operation) -> None:
        assert self._transactional_id is not None
        operation.commit_offset(self._group, self._source, self._next_offset)
        if not self._bumps_epochs:
            add = AddOffsetsToTxnRequest(
                transactional_id=self._transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=self._group,
            )
            await self._step(add, 3, lambda response: response.error_code)
        topic, index = self._source
        request = TxnOffsetCommitRequest(
            transactional_id=self._transactional_id,
            group_id=self._group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=self._next_offset
                        )
                    ],
                )
            ],
        )
        await self._step(
            request, 5 if self._bumps_epochs else 4, lambda response: response.topics[0].partitions[0].error_code
        )


async def read_group_offset(
    world: World, client: SimulatedClient, name: str, group: str, partition: Partition
) -> int | None:
    """The stable offset, -1 where there is none; None when nobody would tell."""
    topic, index = partition
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[index])],
        require_stable=True,
    )
    with world.history.plain(name) as operation:
        try:
            response = await client.ask(request, 7)
        except NoAnswer:
            return None
        if response.error_code:
            return None
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            return None
        offset: int = answer.committed_offset
        operation.read_offset(group, partition, offset if offset >= 0 else None)
        operation.succeeded()
    return offset
