"""The load of a simulated world: instances of transactional ids, transformers, readers; and the last look at it all."""

from __future__ import annotations

import asyncio
from typing import Any

from moldau.kernel import ErrorCode
from moldau.testing.dice import SeededDice
from moldau.testing.history import History, Partition
from moldau.testing.loop import SeededLoop
from moldau.testing.simulation.client import Fetched, NoAnswer, fetch_committed
from moldau.testing.simulation.producers import TIMEOUTS_MS, TransactionalProducer, Transformer, read_group_offset

INPUTS: list[Partition] = [("input", 0), ("input", 1)]
OUTPUT: Partition = ("output", 0)
GROUP = "transformers"
TRANSFORM = "transform"
# How often the last reader, and nobody else, tries.
LAST_ATTEMPTS_MAX = 40


class Load:
    """What worlds share. Clients see it as their `World`."""

    loop: SeededLoop
    dice: SeededDice
    history: History
    # Where producers write, and what only transformers write.
    partitions: list[Partition]
    outputs: tuple[Partition, ...] = (OUTPUT,)
    is_calm: bool
    # The highest generation of transactional clients that this cluster knows.
    transaction_version: int
    transaction_timeouts_ms: tuple[int, ...] = TIMEOUTS_MS

    def client(self, name: str) -> Any:
        raise NotImplementedError

    def before_end(self) -> None:
        raise NotImplementedError

    def violate(self, what: str) -> None:
        raise NotImplementedError

    # -- while faults happen -------------------------------------------------------------------------------------------

    async def own(self, transactional_id: str) -> None:
        """Instances of a transactional id, each fencing those before it; some begin while the last one goes on."""
        generation = 1 + self.dice.below(self.transaction_version)
        instances: list[asyncio.Task[None]] = []
        while not self.is_calm:
            producer = self._make_instance(transactional_id, len(instances) + 1, generation)
            task = self.loop.create_task(producer.run(1 + self.dice.below(8)))
            instances.append(task)
            if self.dice.chance(25):
                await asyncio.sleep((1 + self.dice.below(3_000)) / 1000)
            else:
                await task
            if self.dice.chance(20):
                await asyncio.sleep((1 + self.dice.below(5_000)) / 1000)
        await asyncio.gather(*instances)

    def _make_instance(self, transactional_id: str, number: int, generation: int) -> TransactionalProducer:
        if transactional_id != TRANSFORM:
            return TransactionalProducer(self, transactional_id, number, generation)
        return Transformer(self, transactional_id, number, generation, group=GROUP, inputs=INPUTS, output=OUTPUT)

    async def read(self, name: str) -> None:
        """Poll committed records at random moments, now and then as a new reader from the start."""
        number = 0
        while not self.is_calm:
            number += 1
            process = f"{name}.{number}"
            client = self.client(process)
            positions = dict.fromkeys([*self.partitions, *self.outputs], 0)
            self.history.assign(process, positions)
            seen: dict[Partition, tuple[int, int]] = {}
            for _ in range(4 + self.dice.below(12)):
                wanted = {each: offset for each, offset in positions.items() if self.dice.chance(60)}
                await self._poll(process, client, wanted, positions, seen)
                await asyncio.sleep((1 + self.dice.below(800)) / 1000)

    async def _poll(
        self,
        process: str,
        client: Any,
        wanted: dict[Partition, int],
        positions: dict[Partition, int],
        seen: dict[Partition, tuple[int, int]],
    ) -> None:
        if not wanted:
            return
        with self.history.plain(process) as operation:
            try:
                found = await fetch_committed(client, wanted, self.dice.below(2) * 300)
            except NoAnswer:
                return
            for partition, each in found.items():
                if each.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self.violate(f"{partition}: offset {wanted[partition]} was read before and is out of range now")
                if each.error:
                    continue
                for offset, value in each.records:
                    operation.poll(partition, offset, value)
                positions[partition] = each.next_offset
                self.check_seen(partition, (each.high_watermark, each.last_stable_offset), seen)
            operation.succeeded()

    def check_seen(self, partition: Partition, told: tuple[int, int], seen: dict[Partition, tuple[int, int]]) -> None:
        before = seen.get(partition, (0, 0))
        if told[1] > told[0] or told[0] < before[0] or told[1] < before[1]:
            self.violate(f"{partition}: (high watermark, last stable offset) {told} were told after {before}")
        seen[partition] = told

    # -- when it is over -----------------------------------------------------------------------------------------------

    async def final_read(self) -> None:
        client = self.client("final")
        found: dict[Partition, list[tuple[int, str]]] = {}
        for partition in [*self.partitions, *self.outputs]:
            records, position = found.setdefault(partition, []), 0
            while True:
                each = await self._fetch_at_last(client, partition, position)
                records += each.records
                if each.next_offset == position:
                    break
                position = each.next_offset
            if position != each.high_watermark:
                self.violate(f"{partition}: readers stand at {position}, the high watermark is {each.high_watermark}")
        self.history.final_read("final", found)
        if self.outputs:
            await self._check_exactly_once(client, found)

    async def _fetch_at_last(self, client: Any, partition: Partition, position: int) -> Fetched:
        problem = "no answer"
        for _ in range(LAST_ATTEMPTS_MAX):
            try:
                found = await fetch_committed(client, {partition: position}, 0)
            except NoAnswer:
                found = {}
            if partition in found:
                if not found[partition].error:
                    return found[partition]
                problem = ErrorCode(found[partition].error).name
            await asyncio.sleep(0.2)
        raise AssertionError(f"{partition} cannot be read at {position}: {problem}")

    async def _check_exactly_once(self, client: Any, found: dict[Partition, list[tuple[int, str]]]) -> None:
        """What the transformers read, up to where their group stands, is in the output once each, in order."""
        made = [value.partition(">")[0] for _, value in found[OUTPUT]]
        for source in INPUTS:
            offset = await read_group_offset(self, client, "final offsets", GROUP, source)
            if offset is None:
                self.violate(f"{source}: no stable offset of the group")
                continue
            expected = [value for at, value in found[source] if at < offset]
            known = {value for _, value in found[source]}
            actual = [value for value in made if value in known]
            if expected != actual:
                self.violate(f"{source}: read up to {offset}, {expected} became {actual}")
