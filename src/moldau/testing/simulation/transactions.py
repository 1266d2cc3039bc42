"""Transactions under faults: one node that dies and comes back, producers of both generations, readers, and the judges.

    topics -> load and faults side by side -> calm, in which everything must come to rest -> final read -> verdict

The same seed gives the same run. `simulate_transactions(seed)` is one; its `Run` says what went wrong, if anything did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from moldau.cluster import TRANSACTION_VERSION
from moldau.kernel import ErrorCode
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau.testing.dice import SeededDice
from moldau.testing.disk import PowerLoss
from moldau.testing.history import Partition
from moldau.testing.history_check import check
from moldau.testing.loop import SeededLoop, run
from moldau.testing.simulation.client import SimulatedClient
from moldau.testing.simulation.invariants import Invariants, at_rest_problems
from moldau.testing.simulation.load import INPUTS, OUTPUT, TRANSFORM, Load
from moldau.testing.simulation.network import SimulatedNetwork
from moldau.testing.simulation.node import SimulatedNode
from moldau.testing.simulation.producers import PlainProducer
from moldau.testing.simulation.seed_run import Run

PORT = 9092
LOAD_MS = 10_000
STALL_MS_MAX = 9_000
# By then every timeout of a transaction, and what is tried again after it, is over.
REST_MS_MAX = 200_000
SAFE_DOWNGRADE = 2
STEPS_MAX = 200_000


class TransactionWorld(Load):
    """Everything of one run. Clients see it as their `World`."""

    def __init__(self, seed: int, run: Run) -> None:
        loop = self.loop = SeededLoop.running()
        self.run = run
        self.dice = SeededDice(f"world {seed}")
        self.history = run.history
        self.partitions: list[Partition] = [*INPUTS, ("other", 0)]
        self.is_calm = False
        self._kills_at_ends = self.dice.chance(60)
        # The cluster's; with 1 there are clients of the first generation only.
        self.transaction_version = 1 if self.dice.chance(20) else 2
        self.network = SimulatedNetwork(loop, SeededDice(f"network {seed}"))
        self.node = SimulatedNode(
            self.network, SeededDice(f"node {seed}"), port=PORT, settings=self._settings(), say=self.say
        )
        self.node.on_death = self._on_node_death
        self.invariants = Invariants(self.node, self.violate)
        loop.after_step = self.invariants.check
        loop.set_exception_handler(self._on_exception)

    def _settings(self) -> dict[str, str]:
        """A little different in each run."""
        dice = self.dice
        return {
            "log.roll.ms": str((800, 5_000, 604_800_000)[dice.below(3)]),
            "log.flush.offset.checkpoint.interval.ms": str((1_000, 60_000)[dice.below(2)]),
        }

    # -- what clients see ----------------------------------------------------------------------------------------------

    def client(self, name: str) -> SimulatedClient:
        return SimulatedClient(self.network, PORT, name)

    def before_end(self) -> None:
        if self._kills_at_ends and not self.is_calm and self.node.is_alive and self.dice.chance(7):
            self.node.kill_after(self.dice.below(12))

    def violate(self, what: str) -> None:
        if what not in self.run.problems:
            self.run.problems.append(what)
            self.say(f"PROBLEM {what}")

    def say(self, line: str) -> None:
        self.run.story.append(f"{self.loop.time():9.3f} {line}")

    def _on_exception(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, PowerLoss) or error is None:
            return
        self.violate(f"unhandled {error!r} ({context.get('message')})")

    # -- life and death of the node ------------------------------------------------------------------------------------

    def _on_node_death(self) -> None:
        self.loop.call_later((1 + self.dice.below(800)) / 1000, self._start_node, context=self.network.context)

    def _start_node(self) -> None:
        if self.node.is_alive:
            return
        if not self.is_calm and self.dice.chance(20):
            self.node.kill_at_start(self.dice.below(30))
        self.node.start()

    async def disturb(self) -> None:
        """Faults of the kinds that this seed has, one after the other."""
        dice = self.dice
        kinds = [kind for kind in (self._kill_after, self._kill_now, self._cut, self._restart) if dice.chance(60)]
        self.network.stall_percent = (0, 2, 10)[dice.below(3)]
        self.network.stall_ms_max = STALL_MS_MAX
        end = self.loop.time() + LOAD_MS / 1000
        while self.loop.time() < end:
            await asyncio.sleep((50 + dice.below(2_500)) / 1000)
            if kinds and self.node.is_alive and self.node.node is not None:
                await kinds[dice.below(len(kinds))]()

    async def _kill_after(self) -> None:
        self.node.kill_after(self.dice.below(40))

    async def _kill_now(self) -> None:
        self.node.kill()

    async def _cut(self) -> None:
        links = list(self.network.links)
        for link in links:
            if self.dice.chance(50):
                link.cut(keeps_answers=self.dice.chance(30))

    async def _restart(self) -> None:
        await self.node.stop()

    # -- load ----------------------------------------------------------------------------------------------------------

    async def create_topics(self) -> None:
        client = self.client("admin")
        counts: dict[str, int] = {}
        for topic, _ in [*self.partitions, OUTPUT]:
            counts[topic] = counts.get(topic, 0) + 1
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=count, replication_factor=1)
                for topic, count in counts.items()
            ]
        )
        response = await client.ask(request, 5)
        assert all(topic.error_code == ErrorCode.NONE for topic in response.topics)
        if self.transaction_version == 1:
            level = UpdateFeaturesRequest.FeatureUpdateKey(
                feature=TRANSACTION_VERSION, max_version_level=1, upgrade_type=SAFE_DOWNGRADE
            )
            response = await client.ask(UpdateFeaturesRequest(feature_updates=[level]), 2)
            assert response.error_code == ErrorCode.NONE

    # -- the end -------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """No more faults, and nothing new is begun."""
        self.is_calm = True
        self.network.stall_percent = 0
        self.node.never_kill()

    async def rest(self) -> None:
        """Everything must be over soon, by itself."""
        await asyncio.sleep(STALL_MS_MAX / 1000)  # what lingers in the network arrives
        end = self.loop.time() + REST_MS_MAX / 1000
        while self.loop.time() < end:
            await asyncio.sleep(1)
            problems = at_rest_problems(self.node)
            if not problems:
                return
        for problem in problems:
            self.violate(f"not at rest: {problem}")

    async def live(self) -> None:
        self.node.start()
        await self.create_topics()
        owners = [self.own(each) for each in ("a", "b", TRANSFORM)]
        load: list[Coroutine[Any, Any, None]] = [*owners, self.read("reader"), PlainProducer(self, "plain").run()]
        tasks = [self.loop.create_task(each) for each in load]
        await self.disturb()
        self.calm()
        await asyncio.gather(*tasks)
        await self.rest()
        if not self.run.problems:
            await self.final_read()


class PowerLossWorld(TransactionWorld):
    """With the node goes, mostly, what was not synced. Topics sync every batch before it is acknowledged or shown to
    readers, so nothing that anybody knows of may be gone."""

    def _on_node_death(self) -> None:
        self.node.loses_power = self.dice.chance(70)
        super()._on_node_death()

    def _settings(self) -> dict[str, str]:
        return {**super()._settings(), "log.flush.interval.messages": "1"}


class OneEndWorld(TransactionWorld):
    """The node dies at a certain operation of its disk while a transaction is being ended, and perhaps when it comes
    back; there are no other faults."""

    def __init__(self, seed: int, run: Run, generation: int, disk_step: int) -> None:
        super().__init__(seed, run)
        self._generation = self.transaction_version = generation
        self._disk_step = disk_step
        self._is_armed = False

    def before_end(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self.node.kill_after(self._disk_step)

    async def live(self) -> None:
        self.node.start()
        await self.create_topics()
        plain = PlainProducer(self, "plain")
        await plain.initialize()
        for _ in range(8):
            await plain.write()
        for name in (TRANSFORM, "other"):
            self._is_armed = True
            await self._make_instance(name, 1, self._generation).run(2)
        self.calm()
        await self.rest()
        await self.final_read()


def simulate_transactions(seed: int) -> Run:
    """One run, judged."""
    command = f"python -m moldau.testing.simulation --replay {seed}"
    return _simulate(Run(seed, command), lambda run: TransactionWorld(seed, run))


def simulate_power_losses(seed: int) -> Run:
    command = f"python -m moldau.testing.simulation --kind power-losses --replay {seed}"
    return _simulate(Run(seed, command), lambda run: PowerLossWorld(seed, run))


def simulate_one_end(seed: int, generation: int, disk_step: int) -> Run:
    """The end of one transaction, of records and offsets, with one death in it."""
    command = f"simulate_one_end({seed}, {generation}, {disk_step})"
    return _simulate(Run(seed, command), lambda run: OneEndWorld(seed, run, generation, disk_step))


def _simulate(result: Run, make_world: Callable[[Run], TransactionWorld]) -> Run:
    async def main() -> None:
        world = make_world(result)
        try:
            await world.live()
        finally:
            result.lives = world.node.lives
            result.steps = world.loop.steps
            world.loop.after_step = None

    try:
        _, result.trace_hash = run(main(), SeededDice(f"loop {result.seed}"), steps_max=STEPS_MAX)
    except Exception as error:
        result.problems.append(f"the run failed: {error!r}")
    result.problems += [str(anomaly) for anomaly in check(result.history)]
    return result
