"""A whole cluster under faults: three brokers and three controllers, clients of all kinds, and the judges.

    nodes start -> topics -> load and faults side by side -> all is mended -> everything must come to rest -> final read

After every step of a node the rules of partitions and of metadata are checked. The same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from moldau.broker import StartError
from moldau.kernel import ErrorCode
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.testing.dice import SeededDice
from moldau.testing.disk import PowerLoss
from moldau.testing.history import Partition
from moldau.testing.history_check import check
from moldau.testing.loop import Process, SeededLoop, run
from moldau.testing.simulation.client import NoAnswer
from moldau.testing.simulation.clusters.client import ClusterClient
from moldau.testing.simulation.clusters.faults import Faults
from moldau.testing.simulation.clusters.load import ask_for_ends, commit_and_look, write_plainly
from moldau.testing.simulation.clusters.metadata_rules import MetadataRules
from moldau.testing.simulation.clusters.nodes import TOPOLOGIES, ClusterNode, make_nodes
from moldau.testing.simulation.clusters.partition_rules import PartitionRules
from moldau.testing.simulation.clusters.rest import rest_problems
from moldau.testing.simulation.clusters.settings import choose_settings
from moldau.testing.simulation.load import INPUTS, OUTPUT, TRANSFORM, Load
from moldau.testing.simulation.network import SimulatedNetwork, Way
from moldau.testing.simulation.seed_run import Run
from moldau.testing.simulation.wires import Wires

STEPS_MAX = 400_000
START_MS_MAX = 20_000
LOAD_MS_MIN, LOAD_MS_SPAN = 3_000, 5_000
RESTART_MS_MAX = 1_500
STALL_MS_MAX = 2_000
# How long a sync takes at most: disks of all kinds.
DISK_MS_MAX = (0, 0, 5, 60)
# How long clients may take to end, and how long the cluster may take to be whole again, once all is mended.
CLIENTS_MS_MAX = 60_000
REST_MS_MAX = 30_000
LOOK_MS = 100


class ClusterWorld(Load):
    transaction_timeouts_ms = (1_500, 4_000)

    def __init__(self, seed: int, result: Run) -> None:
        loop = self.loop = SeededLoop.running()
        self.run = result
        self._seed = seed
        self.dice = SeededDice(f"cluster {seed}")
        self.history = result.history
        self.is_calm = False
        self.transaction_version = 2
        self.network = SimulatedNetwork(loop, SeededDice(f"network {seed}"))
        loop.dial = Wires(self.network)
        loop.after_step = self._after_step
        loop.set_exception_handler(self._on_exception)
        settings = choose_settings(self.dice)
        loop.thread_ms_max = DISK_MS_MAX[self.dice.below(len(DISK_MS_MAX))]
        self.session_ms = int(settings["broker.session.timeout.ms"])
        topology = TOPOLOGIES[0 if self.dice.chance(60) else 1 + self.dice.below(len(TOPOLOGIES) - 1)]
        self.nodes = make_nodes(self.network, seed, topology, settings, self.say)
        self._by_process: dict[Process, ClusterNode] = {}
        for node in self.nodes.values():
            node.on_death = lambda node=node: self._on_death(node)  # type: ignore[misc]
        self.partition_rules = PartitionRules(self.nodes, self.violate)
        self.metadata = MetadataRules(self.violate, self.partition_rules.on_image)
        self.has_transactions = self.dice.chance(40)
        self.partitions = [*INPUTS] if self.has_transactions else [*INPUTS[: 1 + self.dice.below(2)]]
        self.outputs = (OUTPUT,) if self.has_transactions else ()
        self.admin = self.client("admin")
        self.faults = Faults(self)
        self.say(f"{len(self.nodes)} nodes: {', '.join(topology)}; faults: {', '.join(self.faults.names())}")

    # -- what clients see ----------------------------------------------------------------------------------------------

    def client(self, name: str) -> ClusterClient:
        ports = {node.node_id: node.port for node in self.nodes.values() if node.is_broker}
        made = ClusterClient(self.network, ports, name, SeededDice(f"client {name} {self._seed}"))
        made.on_acknowledged = self.partition_rules.on_acknowledged
        return made

    def before_end(self) -> None:
        pass

    def check_seen(self, partition: Partition, told: tuple[int, int], seen: dict[Partition, tuple[int, int]]) -> None:
        """Another leader may know less of what is committed than the last one did; `ask_for_ends` looks closer."""
        if told[1] > told[0]:
            self.violate(f"{partition}: (high watermark, last stable offset) {told} were told")

    def violate(self, what: str) -> None:
        if what not in self.run.problems:
            self.run.problems.append(what)
            self.say(f"PROBLEM {what}")

    def say(self, line: str) -> None:
        self.run.story.append(f"{self.loop.time():9.3f} {line}")

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _after_step(self, process: Process) -> None:
        simulated = self._by_process.get(process)
        if simulated is None or simulated.node is None or process.is_dead:
            return
        if simulated.disk.synced_again is not None:
            self.violate(
                f"node {simulated.node_id}: {simulated.disk.synced_again} was synced again after a failed sync"
            )
        self.metadata.check(simulated.node_id, simulated.node)
        if simulated.is_broker:
            self.partition_rules.check(simulated.node_id, simulated.node)
            if simulated.is_lossy and not simulated.loses_power:
                self._forgive(simulated)
        if self.run.problems and not self.is_over:
            raise Violated

    def _forgive(self, node: ClusterNode) -> None:
        """Back in sync everywhere in its new life: it has again what it lost."""
        image, serving = self.metadata.newest, node.node
        assert serving is not None
        registered = image.brokers.get(node.node_id)
        if registered is None or registered.fenced or registered.incarnation_id != serving.incarnation_id:
            return
        node.is_lossy = any(
            node.node_id in partition.replicas and node.node_id not in partition.isr
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    def _on_exception(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, PowerLoss) or error is None or "never retrieved" in context.get("message", ""):
            return  # when something is let go of is not the seed's choice
        self.violate(f"unhandled {error!r} ({context.get('message')})")

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _on_death(self, node: ClusterNode) -> None:
        self.loop.call_later(
            (1 + self.dice.below(RESTART_MS_MAX)) / 1000, self._start, node, context=self.network.context
        )

    def _start(self, node: ClusterNode) -> None:
        if node.is_alive:
            return
        try:
            node.start()
        except StartError as error:
            self.violate(f"node {node.node_id} does not start: {error}")
        self._by_process[node.process] = node

    def is_dark(self, way: Way) -> bool:
        return any(node.is_dark and node.host in way for node in self.nodes.values())

    # -- the run -------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        for node in self.nodes.values():
            self._start(node)
        await self._wait_ready()
        await self._create_topics()
        self.network.stall_percent = (0, 0, 2)[self.dice.below(3)]
        self.network.stall_ms_max = STALL_MS_MAX
        tasks = [self.loop.create_task(each) for each in self._load()]
        end = self.loop.time() + (LOAD_MS_MIN + self.dice.below(LOAD_MS_SPAN)) / 1000
        await asyncio.gather(*(self.faults.disturb(end) for _ in range(self.faults.side_by_side)))
        self._mend()
        _, late = await asyncio.wait(tasks, timeout=CLIENTS_MS_MAX / 1000)
        if late:
            self.violate(f"{len(late)} clients did not end within {CLIENTS_MS_MAX} ms after all was mended")
            return
        for task in tasks:
            task.result()
        await self._rest()
        if not self.run.problems:
            await self.final_read()

    def _load(self) -> list[Coroutine[Any, Any, None]]:
        load = [write_plainly(self, "plain"), write_plainly(self, "other"), self.read("reader"), ask_for_ends(self)]
        if self.dice.chance(50):
            load.append(commit_and_look(self, INPUTS[0]))
        if self.has_transactions:
            load += [self.own("a"), self.own(TRANSFORM)]
        return load

    async def _wait_ready(self) -> None:
        end = self.loop.time() + START_MS_MAX / 1000
        while not all(node.is_ready for node in self.nodes.values()):
            await asyncio.sleep(LOOK_MS / 1000)
            if self.loop.time() > end:
                raise AssertionError(f"the nodes were not ready within {START_MS_MAX} ms")

    async def _create_topics(self) -> None:
        counts: dict[str, int] = {}
        for topic, _ in [*self.partitions, *self.outputs]:
            counts[topic] = counts.get(topic, 0) + 1
        topics = [
            CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=count, replication_factor=3)
            for topic, count in counts.items()
        ]
        for _ in range(10):
            try:
                response = await self.admin.ask(CreateTopicsRequest(topics=topics), 5)
            except NoAnswer:
                continue
            if all(topic.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) for topic in response.topics):
                return
        raise AssertionError("the topics were not created")

    def _mend(self) -> None:
        """No more faults, and nothing new is begun."""
        self.say("MENDED: no more faults")
        self.is_calm = True
        self.network.stall_percent = 0
        self.network.unblock()
        for node in self.nodes.values():
            node.disk.mend()
            if node.process.is_paused:
                node.go_on()

    async def _rest(self) -> None:
        """The cluster is whole again soon, by itself."""
        end = self.loop.time() + REST_MS_MAX / 1000
        while self.loop.time() < end:
            await asyncio.sleep(LOOK_MS / 1000)
            if not rest_problems(self.nodes, self.metadata.newest):
                return
        for problem in rest_problems(self.nodes, self.metadata.newest):
            self.violate(f"not at rest after {REST_MS_MAX} ms: {problem}")

    is_over = False


class Violated(BaseException):
    """The run ends here: what comes after a broken rule only hides it."""


def simulate_cluster(seed: int) -> Run:
    """One run of a cluster, judged."""
    result = Run(seed, f"moldau simulate --kind clusters --replay {seed}")

    async def main() -> None:
        world = ClusterWorld(seed, result)
        try:
            await world.live()
        finally:
            result.lives = sum(node.lives for node in world.nodes.values())
            result.steps = world.loop.steps
            world.loop.after_step = None
            world.is_over = True

    try:
        _, result.trace_hash = run(main(), SeededDice(f"loop {seed}"), steps_max=STEPS_MAX)
    except Violated:
        pass
    except Exception as error:
        result.problems.append(f"the run failed: {error!r}")
    if not result.problems:
        result.problems += [str(anomaly) for anomaly in check(result.history)]
    return result
