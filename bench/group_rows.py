"""Consumer groups: rebalances, commits, heartbeats, and what a restart costs a coordinator."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import quantiles
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.report import Row
from bench.rows import both, create, drop, run, values_of
from bench.servers import Moldau, Server, cpu_seconds
from moldau.kernel import ErrorCode
from moldau.protocol.headers import decode_response_header, encode_request_header
from moldau.protocol.message import Message
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.registry import response_class
from moldau.protocol.messages.sync_group import SyncGroupRequest

PARTITIONS, MEMBERS = 12, 3
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager range": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "KIP-848": {"group.protocol": "consumer"},
}
STORM_PARTITIONS, STORM_MEMBERS, CROWD_MEMBERS = 100, 50, 200
COMMIT_SECONDS = 5.0
RAW_COMMITS = 100_000
LOADED_GROUPS, LOADED_PARTITIONS = 1000, 1000
HEARTBEAT_SECONDS = 15.0
SETTLE_SECONDS_MAX = 120.0
ASSIGNMENT_INTERVAL_SECONDS = 1.1  # a target assignment is made once in a second at most
# Longer than it takes until all are in.
SESSION_MS = 600_000


# -- rebalances --------------------------------------------------------------------------------------------------------


class Members:
    """Consumers of one group, each polled by a thread; who owns what since when."""

    def __init__(self, server: Server, topic: str, group: str, settings: dict[str, Any]) -> None:
        self._settings = {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **settings,
        }
        self._topic = topic
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.owned: dict[int, set[int]] = {}
        self._free_since: dict[int, float] = {}
        self.longest_pause = 0.0

    def add(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._live, args=(number,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _live(self, number: int) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe(
            [self._topic],
            on_assign=lambda _, given: self._take(number, given),
            on_revoke=lambda _, taken: self._give_up(number, taken),
            on_lost=lambda _, taken: self._give_up(number, taken),
        )
        while not self._over.is_set():
            consumer.poll(0.05)
        consumer.close()

    def _take(self, number: int, partitions: Sequence[TopicPartition]) -> None:
        now = time.monotonic()
        with self._lock:
            for each in partitions:
                self.owned.setdefault(number, set()).add(each.partition)
                since = self._free_since.pop(each.partition, None)
                if since is not None:
                    self.longest_pause = max(self.longest_pause, now - since)

    def _give_up(self, number: int, partitions: Sequence[TopicPartition]) -> None:
        now = time.monotonic()
        with self._lock:
            for each in partitions:
                self.owned.setdefault(number, set()).discard(each.partition)
                self._free_since[each.partition] = now

    def await_share(self, partitions: int) -> float:
        """Until every partition has one owner and all have as many as another; the time at which that was so."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        count = len(self._threads)
        while time.monotonic() < deadline:
            with self._lock:
                sizes = [len(self.owned.get(number, ())) for number in range(count)]
                everything = sorted(each for owned in self.owned.values() for each in owned)
            if everything == list(range(partitions)) and max(sizes) - min(sizes) <= 1:
                return time.monotonic()
            time.sleep(0.005)
        raise TimeoutError(f"{count} members did not share {partitions} partitions: {sizes}")

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def rebalances(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    for name, settings in PROTOCOLS.items():
        # Heartbeats of the client set the pace, the same for both; the broker dictates those of KIP-848.
        at_least = 2.5 if name == "KIP-848" else 0.95
        taken = Row(f"3 -> 4 members, {name}: until the final assignment", "s", "lower", at_least=at_least)
        pause = Row(f"3 -> 4 members, {name}: longest pause of a partition", "s", "lower", at_least=at_least)
        for number in range(rounds):
            for server in servers:
                (topic,) = create(server, 1, PARTITIONS, f"rebalance-{name.replace(' ', '-')}-{number}-")
                members = Members(server, topic, topic, settings)
                for _ in range(MEMBERS):
                    members.add()
                members.await_share(PARTITIONS)
                members.longest_pause = 0.0
                began = time.monotonic()
                members.add()
                values_of(taken, server).append(members.await_share(PARTITIONS) - began)
                values_of(pause, server).append(members.longest_pause)
                members.close()
                drop(server, [topic])
        rows += [taken, pause]


def storm(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    row = Row(
        f"{STORM_MEMBERS} members at once, {STORM_PARTITIONS} partitions: until all are stable", "s", "lower", 1.0
    )
    crowd = Row(f"{CROWD_MEMBERS} members at once: until all are stable", "s", "lower", limit=60)
    for number in range(rounds):
        for server in servers:
            values_of(row, server).append(_until_stable(server, STORM_MEMBERS, STORM_PARTITIONS, f"storm-{number}-"))
    values_of(crowd, servers[0]).append(_until_stable(servers[0], CROWD_MEMBERS, CROWD_MEMBERS, "crowd-"))
    rows += [row, crowd]


def _until_stable(server: Server, count: int, partitions: int, prefix: str) -> float:
    (topic,) = create(server, 1, partitions, prefix)
    members = Members(server, topic, topic, {"partition.assignment.strategy": "range"})
    began = time.monotonic()
    for _ in range(count):
        members.add()
    took = members.await_share(partitions) - began
    members.close()
    drop(server, [topic])
    return took


# -- commits -----------------------------------------------------------------------------------------------------------


def commits(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    for consumers in (1, 16):
        row = Row(f"sync commits, {consumers} consumer{'s' * (consumers > 1)}", "commits/s", "higher", at_least=1.5)
        for number in range(rounds):
            for server in servers:
                (topic,) = create(server, 1, 1, f"commit-{consumers}-{number}-")
                if not number:
                    run("rdload", "commit", server.bootstrap, topic, str(consumers), "2")  # a warm node
                answer = run("rdload", "commit", server.bootstrap, topic, str(consumers), str(COMMIT_SECONDS))
                assert not answer["failed"], answer
                values_of(row, server).append(answer["commits_per_second"])
        rows.append(row)
    # Sixteen of librdkafka's consumers keep the load's core busy before a warm broker is: raw frames get past that.
    row = Row("sync commits, 16 groups (raw client)", "commits/s", "higher", at_least=1.5)
    for number in range(rounds):
        for server in servers:
            (topic,) = create(server, 1, 1, f"commit-raw-{number}-")
            answer = run("rawload", "commit", str(server.port), topic, "16", str(RAW_COMMITS))
            assert not answer["errors"], answer
            values_of(row, server).append(answer["per_second"])
    rows.append(row)


# -- raw clients -------------------------------------------------------------------------------------------------------


class Raw:
    """One connection that keeps many requests in flight; answers come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._number = 0
        self._waiting: list[tuple[asyncio.Future[Any], int, int]] = []
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=64 << 20))

    def ask(self, request: Message, version: int) -> asyncio.Future[Any]:
        self._number += 1
        out = bytearray(4)
        encode_request_header(out, request.API_KEY, version, self._number, "bench")
        request.encode_into(out, version)
        struct.pack_into(">i", out, 0, len(out) - 4)
        self._writer.write(out)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, request.API_KEY, version))
        return future

    async def _read(self) -> None:
        while True:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            frame = await self._reader.readexactly(size)
            future, key, version = self._waiting.pop(0)
            _, position = decode_response_header(frame, key, version)
            future.set_result(response_class(key).decode_from(frame, position, version)[0])

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()


async def ask_until(raw: Raw, request: Message, version: int, is_done: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        answer = await raw.ask(request, version)
        if is_done(answer):
            return answer
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.01)


# -- loading -----------------------------------------------------------------------------------------------------------


def loading(rows: list[Row], rounds: int) -> None:
    count = LOADED_GROUPS * LOADED_PARTITIONS
    row = Row(f"SIGKILL to {count:,} offset records loaded", "s", "lower", limit=5)
    for _ in range(rounds):
        server = Moldau().start()
        try:
            (topic,) = create(server, 1, LOADED_PARTITIONS, "loaded-")
            asyncio.run(_commit_many(server, topic))
            server.kill()
            began = time.monotonic()
            server.start()
            asyncio.run(_await_loaded(server))
            row.moldau.append(time.monotonic() - began)
        finally:
            server.remove()
    rows.append(row)


def _groups() -> Iterator[str]:
    return (f"loaded-{number}" for number in range(LOADED_GROUPS))


async def _commit_many(server: Server, topic: str) -> None:
    raw = await Raw.connect(server.port)
    await ask_until(raw, FindCoordinatorRequest(key="loaded"), 3, lambda answer: answer.error_code == 0)
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(index, index * 1000) for index in range(LOADED_PARTITIONS)
    ]
    for group in _groups():
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(topic, partitions=partitions)]
        answer = await raw.ask(OffsetCommitRequest(group, topics=topics), 9)
        assert all(each.error_code == 0 for each in answer.topics[0].partitions), group
    await raw.close()


async def _await_loaded(server: Server) -> None:
    raw = await Raw.connect(server.port)
    for group in _groups():
        wanted = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=[])])
        await ask_until(raw, wanted, 9, lambda answer: answer.groups[0].error_code == ErrorCode.NONE)
    await raw.close()


# -- heartbeats --------------------------------------------------------------------------------------------------------


class Beating:
    """A member of a classic group, or of KIP-848, that does nothing but stay alive."""

    def __init__(self, raw: Raw, group: str, topic: str) -> None:
        self.raw, self.group, self.topic = raw, group, topic
        self.request: Message
        self.version = 4
        self.member_id, self.epoch = "", 0
        self.owned: list[ConsumerGroupHeartbeatRequest.TopicPartitions] = []

    async def join_classic(self) -> None:
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\xff\xff\xff\xff")]
        request = JoinGroupRequest(self.group, SESSION_MS, 30_000, "", None, "consumer", protocols)
        answer = await self.raw.ask(request, 9)
        request.member_id = answer.member_id
        answer = await self.raw.ask(request, 9)
        assert answer.error_code == 0, answer
        handed = [SyncGroupRequest.SyncGroupRequestAssignment(each.member_id, b"x") for each in answer.members]
        sync = SyncGroupRequest(self.group, answer.generation_id, answer.member_id, None, "consumer", "range", handed)
        self.request = HeartbeatRequest(self.group, answer.generation_id, answer.member_id)
        answer = await self.raw.ask(sync, 5)
        assert answer.error_code == 0, answer

    async def join_next(self, number: int) -> None:
        self.version = 1
        self.member_id = f"member-{number}"
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=[self.topic],
            topic_partitions=[],
        )
        await self._exchange(request)

    async def settle(self) -> bool:
        """One heartbeat that says what it has; whether something changed."""
        before = self.epoch, self.owned
        await self._exchange(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, topic_partitions=self.owned
            )
        )
        return before != (self.epoch, self.owned)

    async def _exchange(self, request: ConsumerGroupHeartbeatRequest) -> None:
        answer = await self.raw.ask(request, 1)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(each.topic_id, each.partitions)
                for each in answer.assignment.topic_partitions
            ]
        self.request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch
        )


def heartbeats(rows: list[Row]) -> None:
    for name, groups, interval in (("classic", 2000, 3.0), ("KIP-848", 500, 1.0)):
        busy = Row(f"{groups} {name} groups of 5, a heartbeat every {interval:g} s: CPU", "% core", "lower", limit=60)
        tail = Row(f"{groups} {name} groups of 5, a heartbeat every {interval:g} s: p99", "ms", "lower", limit=20)
        server = Moldau().start()
        try:
            (topic,) = create(server, 1, 10, "beat-")
            cpu, p99 = asyncio.run(_beat(server, topic, name, groups, interval))
        finally:
            server.remove()
        busy.moldau.append(cpu)
        tail.moldau.append(p99)
        rows += [busy, tail]


async def _beat(server: Moldau, topic: str, name: str, groups: int, interval: float) -> tuple[float, float]:
    connections = [await Raw.connect(server.port) for _ in range(20)]
    await ask_until(connections[0], FindCoordinatorRequest(key="g"), 3, lambda answer: answer.error_code == 0)
    members: list[Beating] = []
    for first in range(0, groups, 100):
        joining = []
        for group in range(first, min(first + 100, groups)):
            for number in range(5):
                member = Beating(
                    await Raw.connect(server.port) if name == "classic" else connections[group % 20],
                    f"{name}-{group}",
                    topic,
                )
                members.append(member)
                joining.append(member.join_classic() if name == "classic" else member.join_next(number))
        await asyncio.gather(*joining)
        if name == "classic":
            # A join waits for the others, and so does what follows on its connection: one each, until all are in.
            for member in members[-len(joining) :]:
                await member.raw.close()
                member.raw = connections[len(member.group) % 20]
    if name != "classic":
        quiet = 0
        while quiet < 2:
            await asyncio.sleep(ASSIGNMENT_INTERVAL_SECONDS)
            changed = any(await asyncio.gather(*(member.settle() for member in members)))
            quiet = 0 if changed else quiet + 1
    return await _measure(server, members, interval)


async def _measure(server: Moldau, members: Sequence[Beating], interval: float) -> tuple[float, float]:
    loop = asyncio.get_running_loop()
    took: list[float] = []
    failures: list[Any] = []
    gap = interval / len(members)
    before, began = cpu_seconds(server.pid), loop.time()

    def beat(member: Beating) -> None:
        sent = loop.time()

        def heard(future: asyncio.Future[Any]) -> None:
            took.append(loop.time() - sent)
            if future.result().error_code:
                failures.append(future.result())

        member.raw.ask(member.request, member.version).add_done_callback(heard)

    due, place = began, 0
    while loop.time() < began + HEARTBEAT_SECONDS:
        while due <= loop.time():
            beat(members[place % len(members)])
            place, due = place + 1, due + gap
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.2)
    assert not failures, failures[0]
    cpu = (cpu_seconds(server.pid) - before) / (loop.time() - began)
    return cpu * 100, quantiles(took, n=100)[-1] * 1000


def groups(rows: list[Row], rounds: int) -> None:
    with both() as servers:
        rebalances(rows, servers, rounds)
        storm(rows, servers, rounds)
        commits(rows, servers, rounds)
    loading(rows, rounds)
    heartbeats(rows)
