"""Members of groups, for tests: consumers that poll all the time, in this process or in one that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moldau.client import ClusterClient, ConsumedRecord, Consumer, Producer, admin
from moldau.kernel import TopicPartition
from tests.client.conftest import Server
from tests.java import TOOLS, java_command
from tests.oracle import require_oracle

SECONDS_MAX = 30.0
LOOK_AGAIN_SECONDS = 0.01

CLASSIC: dict[str, object] = {
    "group.protocol": "classic",
    "session.timeout.ms": 3_000,
    "heartbeat.interval.ms": 50,
}
PROTOCOLS: dict[str, dict[str, object]] = {
    "range": {**CLASSIC, "partition.assignment.strategy": "range"},
    "sticky": {**CLASSIC, "partition.assignment.strategy": "sticky"},
    "cooperative-sticky": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "next": {"group.protocol": "consumer"},
}
_QUICK: dict[str, object] = {
    "auto.offset.reset": "earliest",
    "fetch.max.wait.ms": 50,
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 10,
}
_numbers = itertools.count()


def new_group() -> str:
    return f"group-{os.getpid()}-{next(_numbers)}"


async def settings_for(server: Server, protocol: str, group: str, **more: object) -> dict[str, object]:
    """Settings of a member."""
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {"bootstrap.servers": server.bootstrap, "group.id": group, **_QUICK, **PROTOCOLS[protocol], **given}


async def create(server: Server, topic: str, partitions: int) -> None:
    async with ClusterClient(server.bootstrap) as client:
        await admin.create_topics(client, topic, partitions=partitions)


async def send(server: Server, topic: str, numbers: Iterable[int], partitions: int) -> None:
    async with Producer(server.bootstrap) as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, partition=number % partitions)


async def eventually(condition: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    """Wait for something that other tasks bring about."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_MAX
    while not condition():
        assert loop.time() < deadline, f"not within {SECONDS_MAX} s: {what()}"
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


class Member:
    """A consumer that polls all the time, and remembers what it read and what happened to it."""

    def __init__(self, settings: dict[str, object], *topics: str, pattern: str | None = None) -> None:
        self.consumer = Consumer(settings)
        self.records: list[ConsumedRecord] = []
        self.events: list[tuple[str, set[int]]] = []
        self.error: BaseException | None = None
        self._polled = asyncio.Event()
        self._work = asyncio.Event()
        self._work.set()
        hears: dict[str, Any] = {
            "on_assigned": lambda partitions: self._hear("assigned", partitions),
            "on_revoked": lambda partitions: self._hear("revoked", partitions),
            "on_lost": lambda partitions: self._hear("lost", partitions),
        }
        if pattern is not None:
            self.consumer.subscribe_pattern(pattern, **hears)
        else:
            self.consumer.subscribe(topics, **hears)
        self._task = asyncio.create_task(self._poll())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.close()

    def _hear(self, what: str, partitions: set[TopicPartition]) -> None:
        if partitions:
            self.events.append((what, {where.partition for where in partitions}))

    async def _poll(self) -> None:
        try:
            while True:
                self.records += await self.consumer.poll(0.1)
                self._polled.set()
                await self._work.wait()
        except Exception as error:
            self.error = error

    async def stall(self) -> None:
        """The application is busy: no poll from now on."""
        self._work.clear()
        await self.next_poll()

    def go_on(self) -> None:
        self._work.set()

    async def next_poll(self) -> None:
        """Until the member has polled once more."""
        self._polled.clear()
        async with asyncio.timeout(SECONDS_MAX):
            await self._polled.wait()

    @property
    def partitions(self) -> set[int]:
        return {where.partition for where in self.consumer.assignment}

    @property
    def numbers(self) -> list[int]:
        return [int(record.value) for record in self.records if record.value is not None]

    @property
    def generation(self) -> int:
        return self.consumer.group_metadata().generation


class JavaMember:
    """Kafka's own consumer in a process: what it prints about partitions and records, gathered by a task."""

    def __init__(self, settings: dict[str, object], topic: str, assignor_class: str, directory: Path) -> None:
        require_oracle()
        config = directory / "consumer.properties"
        config.write_text("heartbeat.interval.ms=50\nfetch.max.wait.ms=50\n")
        given = {"--bootstrap-server": settings["bootstrap.servers"], "--group-id": settings["group.id"]}
        given |= {
            "--topic": topic,
            "--reset-policy": "earliest",
            "--session-timeout": "3000",
            "--command-config": str(config),
        }
        given["--assignment-strategy"] = f"org.apache.kafka.clients.consumer.{assignor_class}"
        words = [str(word) for pair in given.items() for word in pair]
        self._process = subprocess.Popen(
            java_command(TOOLS["verifiable-consumer"], *words), stdout=subprocess.PIPE, text=True
        )
        self.partitions: set[int] = set()
        self.count = 0
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        while line := await asyncio.to_thread(self._process.stdout.readline):
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            named = {one["partition"] for one in event.get("partitions", ()) if isinstance(one, dict)}
            if event["name"] == "partitions_assigned":
                self.partitions |= named
            elif event["name"] == "partitions_revoked":
                self.partitions -= named
            elif event["name"] == "records_consumed":
                self.count += event["count"]

    async def close(self) -> None:
        """SIGTERM, on which it leaves the group."""
        self._process.terminate()
        await self._task
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def shared_by(members: Iterable[Member | JavaMember], partitions: int) -> None:
    """Wait until the partitions are divided among the members, as evenly as can be."""
    everyone = list(members)

    def is_so() -> bool:
        held = [member.partitions for member in everyone]
        sizes = [len(one) for one in held]
        return sum(sizes) == partitions and len(set().union(*held)) == partitions and max(sizes) - min(sizes) <= 1

    await eventually(is_so, lambda: [vars(member) for member in everyone])


class MemberProcess:
    """A consumer in a process of its own; `numbers` is what it reported as processed."""

    def __init__(self, program: str, *args: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__).parent / program), *map(str, args)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    async def lines(self, count: int) -> list[str]:
        """Wait for so many lines."""
        assert self._process.stdout is not None
        stream = self._process.stdout
        return [(await asyncio.to_thread(stream.readline)).strip() for _ in range(count)]

    def kill(self) -> list[str]:
        """SIGKILL; what it had printed before."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is None or self._process.stdout.closed:
            return []
        with self._process.stdout as stream:
            return stream.read().split()
