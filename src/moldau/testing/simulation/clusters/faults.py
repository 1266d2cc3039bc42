"""What goes wrong in a simulated cluster, and what its operators do meanwhile; the seed chooses.

Nodes are killed as often as it comes: nothing is lost with a process. Power goes at one broker at a time, and while
what it lost may be missed no other is killed: as much as that `min.insync.replicas` of two promises to outlive
(KIP-966). At controllers it goes whenever it likes, for they sync whatever they answer for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from moldau.protocol.message import Message
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.testing.disk import PowerLoss
from moldau.testing.simulation.client import NoAnswer
from moldau.testing.simulation.clusters.nodes import ClusterNode
from moldau.testing.simulation.network import Way

if TYPE_CHECKING:
    from moldau.testing.simulation.clusters.world import ClusterWorld

PREFERRED = 0
STEPS_TO_DEATH_MAX = 60
STEPS_TO_DARKNESS_MAX = 20
ROOM_BYTES_MAX = 4_000


class Faults:
    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._dice = world.dice
        self._network = world.network
        self._topics_made = 0
        every: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._kill_in_a_write,
            self._lose_power,
            self._lose_power_in_a_write,
            self._topple,
            self._pause,
            self._isolate,
            self._part_two,
            self._deafen,
            self._break_links,
            self._fill_disk,
            self._fail_sync,
            self._restart,
            self._roll,
            self._reassign,
            self._elect_preferred,
            self._make_and_delete_topic,
            self._move_wall_clock,
        ]
        self._kinds = [each for each in every if self._dice.chance(35)] or [self._kill]
        # How many meet.
        self.side_by_side = 2 if self._dice.chance(30) else 1

    def names(self) -> list[str]:
        return [each.__name__.strip("_") for each in self._kinds]

    async def disturb(self, until: float) -> None:
        """One fault after the other; each is over when its coroutine ends."""
        loop = self._world.loop
        while loop.time() < until:
            await self._sleep(20, 700)
            await self._kinds[self._dice.below(len(self._kinds))]()

    async def _sleep(self, ms_min: int, ms_max: int) -> None:
        await asyncio.sleep((ms_min + self._dice.below(ms_max - ms_min)) / 1000)

    # -- who -----------------------------------------------------------------------------------------------------------

    def _choose(self) -> ClusterNode | None:
        """A node that runs: often the one that leads a partition or the quorum."""
        world, dice = self._world, self._dice
        running = [node for node in world.nodes.values() if node.is_running and not node.process.is_paused]
        if not running:
            return None
        topics = world.metadata.newest.topics.values()
        leaders = [partition.leader for topic in topics for partition in topic.partitions]
        active = [node.node_id for node in running if node.node is not None and node.node.controller.is_active]
        favourites = active if dice.chance(30) else leaders
        if favourites and dice.chance(60):
            chosen = world.nodes.get(favourites[dice.below(len(favourites))])
            if chosen in running:
                return chosen
        return running[dice.below(len(running))]

    def _may_die(self, node: ClusterNode) -> bool:
        return all(other is node or not other.is_lossy for other in self._world.nodes.values())

    # -- deaths --------------------------------------------------------------------------------------------------------

    async def _kill(self) -> None:
        node = self._choose()
        if node is not None and self._may_die(node):
            self._world.say(f"KILL node {node.node_id}")
            node.kill()

    async def _kill_in_a_write(self) -> None:
        node = self._choose()
        if node is not None and self._may_die(node):
            self._world.say(f"KILL node {node.node_id} soon, in the middle of a write")
            node.kill_after(self._dice.below(STEPS_TO_DEATH_MAX))

    async def _lose_power(self) -> None:
        node = self._choose_for_darkness()
        if node is not None:
            self._world.say(f"POWER of node {node.node_id} goes")
            node.lose_power()

    async def _lose_power_in_a_write(self) -> None:
        node = self._choose_for_darkness()
        if node is None:
            return
        self._world.say(f"POWER of node {node.node_id} goes soon, in the middle of a write")
        node.lose_power_after(self._dice.below(STEPS_TO_DARKNESS_MAX))
        await self._sleep(10, 400)
        if node.is_alive and node.loses_power:
            node.lose_power()  # it wrote too little

    def _choose_for_darkness(self) -> ClusterNode | None:
        node = self._choose()
        if node is None or not self._may_lose_power(node):
            return None
        for other in self._world.nodes.values():
            other.never_kill()
        return node

    def _may_lose_power(self, node: ClusterNode) -> bool:
        """Whether there are others that hold what is committed, and all of them are up and stay so."""
        nodes, image = self._world.nodes, self._world.metadata.newest
        if not node.is_broker:
            return not node.has_doubts
        if node.has_doubts or any(
            other.is_lossy or not other.is_ready or other.disk.is_about_to_fail for other in nodes.values()
        ):
            return False
        return all(
            {*partition.isr, *partition.elr} - {node.node_id}
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    async def _topple(self) -> None:
        """Partitions go to their first replicas, and at once to others: logs part more than once (KIP-279)."""
        await self._elect_preferred()
        world, partition = self._world, self._dice.below(len(self._world.partitions))
        topic, index = world.partitions[partition]
        leader = world.metadata.newest.topics[topic].partitions[index].leader
        node = world.nodes.get(leader)
        if node is not None and node.is_running and not node.process.is_paused and self._may_die(node):
            await self._sleep(0, 100)
            world.say(f"KILL node {node.node_id}, which leads {topic}-{index}")
            node.kill()

    async def _pause(self) -> None:
        node = self._choose()
        if node is None:
            return
        self._world.say(f"PAUSE node {node.node_id}")
        node.pause()
        await self._sleep(50, 2 * self._world.session_ms)
        self._world.say(f"GO ON node {node.node_id}")
        node.go_on()

    async def _restart(self) -> None:
        node = self._choose()
        if node is not None:
            await self._stop(node)

    async def _stop(self, node: ClusterNode) -> None:
        self._world.say(f"STOP node {node.node_id}")
        stopping = self._world.loop.create_task(node.stop())
        # Without a controller it takes as long as it takes; whoever waits too long kills it.
        await asyncio.wait([stopping], timeout=4)
        error = stopping.exception() if stopping.done() else None
        if error is not None and not isinstance(error, PowerLoss):
            self._world.violate(f"node {node.node_id} did not stop: {error!r}")
        if node.is_alive and node.is_stopping and self._may_die(node):
            node.kill()

    async def _roll(self) -> None:
        """All nodes, one after the other."""
        for node in self._world.nodes.values():
            if not node.is_running or node.process.is_paused or self._world.is_calm:
                return
            await self._stop(node)
            for _ in range(30):
                await self._sleep(90, 110)
                if node.is_ready:
                    break

    # -- the network ---------------------------------------------------------------------------------------------------

    async def _cut(self, what: str, ways: list[Way]) -> None:
        self._world.say(f"CUT {what}")
        self._network.block(*ways)
        await self._sleep(100, 2 * self._world.session_ms)
        self._world.say(f"MEND {what}")
        # Who has no power stays silent.
        self._network.unblock(*(way for way in ways if not self._world.is_dark(way)))

    def _hosts(self) -> list[str]:
        return [node.host for node in self._world.nodes.values()]

    async def _isolate(self) -> None:
        """One node from all others; clients may still reach it."""
        node = self._choose()
        if node is not None:
            others = [host for host in self._hosts() if host != node.host]
            await self._cut(f"{node.host} from all", [way for host in others for way in _both(node.host, host)])

    async def _part_two(self) -> None:
        """Two nodes that reach each other through others only."""
        hosts = self._hosts()
        one = hosts[self._dice.below(len(hosts))]
        other = hosts[self._dice.below(len(hosts))]
        if one != other:
            await self._cut(f"{one} from {other}", _both(one, other))

    async def _deafen(self) -> None:
        """One way only: what a node sends arrives, and it hears nothing; or the other way round."""
        node = self._choose()
        if node is None:
            return
        others = [host for host in self._hosts() if host != node.host and self._dice.chance(70)]
        hears = self._dice.chance(50)
        what = f"what {node.host} {'sends' if hears else 'hears'}"
        await self._cut(what, [(node.host, host) if hears else (host, node.host) for host in others])

    async def _break_links(self) -> None:
        self._world.say("BREAK some connections")
        for link in list(self._network.links):
            if self._dice.chance(30):
                link.cut(keeps_answers=self._dice.chance(30))

    # -- disks ---------------------------------------------------------------------------------------------------------

    async def _fill_disk(self) -> None:
        node = self._choose()
        if node is None:
            return
        self._world.say(f"FULL disk of node {node.node_id}")
        node.fill_disk(self._dice.below(ROOM_BYTES_MAX))
        await self._sleep(200, 3_000)
        self._world.say(f"ROOM on node {node.node_id}")
        node.make_room()

    async def _fail_sync(self) -> None:
        node = self._choose()
        if node is not None and self._may_die(node):
            self._world.say(f"EIO on node {node.node_id}: its next sync fails")
            node.fail_sync()

    async def _move_wall_clock(self) -> None:
        node = self._choose()
        if node is not None:
            jump_ms = self._dice.below(7_200_000) - 3_600_000
            self._world.say(f"CLOCK of node {node.node_id} jumps by {jump_ms} ms")
            node.clock.wall_offset_ms += jump_ms

    # -- operators -----------------------------------------------------------------------------------------------------

    async def _reassign(self) -> None:
        """To some of the brokers, and often right on to others."""
        world, dice = self._world, self._dice
        topic, index = world.partitions[dice.below(len(world.partitions))]
        for _ in range(1 + dice.below(3)):
            brokers = [node.node_id for node in world.nodes.values() if node.is_broker]
            while len(brokers) > 2 and dice.chance(60):
                brokers.pop(dice.below(len(brokers)))
            order = [brokers.pop(dice.below(len(brokers))) for _ in range(len(brokers))]
            world.say(f"REASSIGN {topic}-{index} to {order}")
            kinds = AlterPartitionReassignmentsRequest
            place = kinds.ReassignablePartition(partition_index=index, replicas=order)
            await self._ask(
                kinds(timeout_ms=2_000, topics=[kinds.ReassignableTopic(name=topic, partitions=[place])]), 0
            )
            await self._sleep(20, 400)

    async def _elect_preferred(self) -> None:
        self._world.say("ELECT preferred leaders")
        await self._ask(ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=2_000), 2)

    async def _make_and_delete_topic(self) -> None:
        world = self._world
        self._topics_made += 1
        name = f"extra-{self._topics_made}"
        world.say(f"CREATE {name}")
        kinds = CreateTopicsRequest
        topic = kinds.CreatableTopic(name=name, num_partitions=1, replication_factor=3)
        if not await self._ask(kinds(topics=[topic], timeout_ms=2_000), 5):
            return
        await self._sleep(10, 1_000)
        world.say(f"DELETE {name}")
        await self._ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=2_000), 5)

    async def _ask(self, request: Message, version: int) -> bool:
        try:
            await self._world.admin.ask(request, version)
        except NoAnswer:
            return False
        return True


def _both(one: str, other: str) -> list[Way]:
    return [(one, other), (other, one)]
