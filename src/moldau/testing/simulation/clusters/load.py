"""What clients of a cluster do besides transactions: pipelined writes, commits of a group, questions for ends."""

from __future__ import annotations

import asyncio

from moldau.kernel import ErrorCode
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.testing.history import Partition
from moldau.testing.simulation.client import NoAnswer, by_topic
from moldau.testing.simulation.load import Load
from moldau.testing.simulation.producers import RETRIABLE, Abortable, Fenced, Producer, World

BATCHES_MAX = 4
PAUSE_MS_MAX = 250
COMMIT_PAUSE_MS_MAX = 400
COMMITTERS = "committers"
LATEST = -1


class PipelinedProducer(Producer):
    """Idempotent: several batches under way at the same time, which may come again and in any order."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._retriable = RETRIABLE | {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}

    async def run(self) -> None:
        try:
            await self.initialize()
            while not self._world.is_calm:
                await self._write()
                await self._pause(PAUSE_MS_MAX)
        except (Fenced, Abortable):
            return

    async def _write(self) -> None:
        partitions, dice = self._world.partitions, self._dice
        chosen = partitions[dice.below(len(partitions))]
        batches = [[self.next_value() for _ in range(1 + dice.below(2))] for _ in range(1 + dice.below(BATCHES_MAX))]
        outcomes = await asyncio.gather(
            *(self._write_batch(chosen, values) for values in batches), return_exceptions=True
        )
        problems = [each for each in outcomes if each is not None]
        if problems:
            raise problems[0]

    async def _write_batch(self, partition: Partition, values: list[str]) -> None:
        with self._world.history.plain(self.name) as operation:
            try:
                await self._produce(operation, {partition: values})
                operation.succeeded()
            except (Fenced, Abortable) as error:
                problem: Exception | None = error
            else:
                problem = None
        if problem is not None:
            raise problem


async def write_plainly(world: Load, name: str) -> None:
    number = 0
    while not world.is_calm:
        number += 1
        await PipelinedProducer(world, f"{name}.{number}").run()


async def commit_and_look(world: Load, partition: Partition) -> None:
    """The only member of a group commits ever higher offsets: what it was told is committed stays so."""
    client = world.client(COMMITTERS)
    offset = acknowledged = 0
    topic, index = partition
    while not world.is_calm:
        await asyncio.sleep((1 + world.dice.below(COMMIT_PAUSE_MS_MAX)) / 1000)
        offset += 1
        kinds = OffsetCommitRequest
        place = kinds.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        commit = OffsetCommitRequest(
            group_id=COMMITTERS, topics=[kinds.OffsetCommitRequestTopic(name=topic, partitions=[place])]
        )
        look = OffsetFetchRequest(
            group_id=COMMITTERS,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[index])],
        )
        try:
            response = await client.ask(commit, 8, lingers=False)
            if not response.topics[0].partitions[0].error_code:
                acknowledged = offset
            if world.dice.chance(50):
                response = await client.ask(look, 7)
                found = response.topics[0].partitions[0] if not response.error_code else None
                if found is not None and not found.error_code and max(found.committed_offset, 0) < acknowledged:
                    world.violate(f"{COMMITTERS} stand at {found.committed_offset}, {acknowledged} was acknowledged")
        except NoAnswer:
            continue


async def ask_for_ends(world: Load) -> None:
    """The latest offset never falls, whoever leads (KIP-207).

    A leader that is cut off does not know of the next one. A client that does never goes back to it.
    """
    client = world.client("ends")
    known: dict[Partition, tuple[int, int]] = {}  # in which epoch, and the offset
    while not world.is_calm:
        await asyncio.sleep((1 + world.dice.below(COMMIT_PAUSE_MS_MAX)) / 1000)
        kinds = ListOffsetsRequest
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                kinds.ListOffsetsTopic(
                    name=topic,
                    partitions=[kinds.ListOffsetsPartition(partition_index=each, timestamp=LATEST) for each in indexes],
                )
                for topic, indexes in by_topic(world.partitions).items()
            ],
        )
        try:
            response = await client.ask(request, 7)
        except NoAnswer:
            continue
        for topic in response.topics:
            for each in topic.partitions:
                partition = topic.name, each.partition_index
                epoch, offset = known.get(partition, (0, 0))
                if each.error_code or each.leader_epoch < epoch:
                    continue
                if each.offset < offset:
                    world.violate(f"{partition}: the latest offset was {offset} and is {each.offset} now")
                known[partition] = each.leader_epoch, each.offset
