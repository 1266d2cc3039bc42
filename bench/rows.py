"""What is measured. Each function fills rows; brokers take turns inside a round."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.report import Row
from bench.servers import LOAD_CORE, PINNED, Kafka, Moldau, Server, cpu_seconds, resident_mb, wait_for_answer

BINARIES = Path(__file__).parent / "bin"
ON_LOAD_CORE = ("taskset", "-c", LOAD_CORE)
TINY_REQUESTS = 100_000
BULK = (("100 B", 100, 2_000_000), ("1 KiB", 1024, 1_000_000))
LATENCY_RECORDS, LATENCY_RATE = 8_000, 1000
IDLE_CONNECTIONS, STORM_CONNECTIONS = 5_000, 2_000
TOPICS, PARTITIONS_EACH = 20, 100
IDLE_SECONDS = 10
RECOVERY_RECORDS, RECOVERY_BYTES = 2_000_000, 1024


def run(*command: str) -> dict[str, Any]:
    """A load generator on the load's core; its line of JSON."""
    binary = str(BINARIES / command[0])
    result = subprocess.run([*ON_LOAD_CORE, binary, *command[1:]], capture_output=True, text=True, check=False)
    if not result.stdout:
        raise RuntimeError(f"{' '.join(command)} failed: {result.stderr[-500:]}")
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def admin(server: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})


def create(server: Server, topics: int, partitions: int, prefix: str) -> list[str]:
    names = [f"{prefix}{number}" for number in range(topics)]
    client = admin(server)  # must outlive its futures
    for future in client.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        future.result(60)
    return names


def values_of(row: Row, server: Server) -> list[float]:
    return row.moldau if isinstance(server, Moldau) else row.kafka


@contextmanager
def both(prefix: tuple[str, ...] = PINNED) -> Iterator[tuple[Server, Server]]:
    servers: tuple[Server, Server] = (Moldau(prefix), Kafka(prefix))
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.remove()


# -- start -------------------------------------------------------------------------------------------------------------


def start(rows: list[Row], rounds: int) -> None:
    first = Row("exec to first answer", "s", "lower", limit=0.4)
    idle = Row("resident memory, idle", "MB", "lower", limit=45)
    for _ in range(rounds):
        for server in (Moldau(), Kafka()):
            try:
                if isinstance(server, Kafka):
                    server.start()
                    server.stop()  # formatting is not part of a start
                begun = time.monotonic()
                server.start()
                values_of(first, server).append(time.monotonic() - begun)
                time.sleep(1)
                values_of(idle, server).append(resident_mb(server.pid))
            finally:
                server.remove()
    rows += [first, idle]


# -- load --------------------------------------------------------------------------------------------------------------


def load(rows: list[Row], rounds: int) -> None:
    with both() as servers:
        for server in servers:
            warm_up(server)
        tiny(rows, servers, rounds)
        bulk(rows, servers, rounds)
        latency(rows, servers, rounds)
        idle_connections(rows, servers, rounds)
        after = Row("resident memory, after the whole load", "MB", "lower", limit=90)
        for server in servers:
            values_of(after, server).append(resident_mb(server.pid))
        rows.append(after)


def warm_up(server: Server) -> None:
    """The same kinds of load, before anything is measured."""
    create(server, 1, 1, "warm")
    for _ in range(2):
        for in_flight in ("1", "5"):
            run("rawload", "produce", str(server.port), "warm0", "16", in_flight, str(TINY_REQUESTS), "100")
        run("rdload", "produce", server.bootstrap, "warm0", "500000", "100")
        run("rdload", "consume", server.bootstrap, "warm0", "500000")
    drop(server, ["warm0"])


def drop(server: Server, topics: list[str]) -> None:
    client = admin(server)
    for future in client.delete_topics(topics).values():
        future.result(60)


def tiny(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    for in_flight in (1, 5):
        row = Row(f"tiny produce, 16 connections x {in_flight} in flight", "requests/s", "higher", at_least=1.5)
        for number in range(rounds):
            for server in servers:
                (topic,) = create(server, 1, 1, f"tiny{in_flight}-{number}-")
                answer = run(
                    "rawload", "produce", str(server.port), topic, "16", str(in_flight), str(TINY_REQUESTS), "100"
                )
                assert answer["errors"] == 0
                values_of(row, server).append(answer["per_second"])
                drop(server, [topic])
        rows.append(row)


def bulk(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    for label, size, records in BULK:
        made: list[Row] = []
        for verb in ("produce", "consume"):
            made.append(Row(f"{verb}, {label} records, 1 MB batches", "MB/s", "higher", at_least=1.0))
            made.append(Row(f"{verb}, {label} records, broker CPU", "s/GB", "lower", at_least=1.0))
        for number in range(rounds):
            for server in servers:
                (topic,) = create(server, 1, 1, f"bulk{size}-{number}-")
                for index, verb in enumerate(("produce", "consume")):
                    before = cpu_seconds(server.pid)
                    arguments = (str(records), str(size)) if verb == "produce" else (str(records),)
                    answer = run("rdload", verb, server.bootstrap, topic, *arguments)
                    used = cpu_seconds(server.pid) - before
                    values_of(made[2 * index], server).append(answer["mb_per_second"])
                    values_of(made[2 * index + 1], server).append(used / (records * size / 1e9))
                drop(server, [topic])
        rows += made


def latency(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    made = [Row(f"end to end at 1 k msg/s, {name}", "us", "lower", at_least=1.0) for name in ("p50", "p99")]
    for number in range(rounds):
        for server in servers:
            (topic,) = create(server, 1, 1, f"latency-{number}-")
            answer = run("rdload", "latency", server.bootstrap, topic, str(LATENCY_RECORDS), "100", str(LATENCY_RATE))
            values_of(made[0], server).append(answer["p50_us"])
            values_of(made[1], server).append(answer["p99_us"])
    rows += made


def idle_connections(rows: list[Row], servers: tuple[Server, ...], rounds: int) -> None:
    memory = Row(f"{IDLE_CONNECTIONS} idle connections, memory each", "KiB", "lower", limit=4)
    slowdown = Row(f"p99 of a producer beside {IDLE_CONNECTIONS} idle connections, against none", "x", "lower", limit=2)
    storm = Row(f"{STORM_CONNECTIONS} connects at once, until all are answered", "s", "lower", at_least=1.0)
    for number in range(rounds):
        for server in servers:
            (topic,) = create(server, 1, 1, f"idle-{number}-")
            alone = paced(server, topic)
            before = resident_mb(server.pid)
            command = [*ON_LOAD_CORE, str(BINARIES / "rawload"), "idle", str(server.port), str(IDLE_CONNECTIONS)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
                assert holder.stdout is not None and holder.stdin is not None
                holder.stdout.readline()
                wait_for_answer(server.port)
                crowded = paced(server, topic)
                values_of(memory, server).append((resident_mb(server.pid) - before) * 1024 / IDLE_CONNECTIONS)
                holder.stdin.close()
            values_of(slowdown, server).append(crowded / alone)
            if isinstance(server, Kafka) and number:
                continue  # with its backlog of 50 it takes two minutes and turns some away: once is enough
            answer = run("rawload", "connect", str(server.port), str(STORM_CONNECTIONS))
            if isinstance(server, Moldau):
                assert answer["answered"] == STORM_CONNECTIONS, answer
            values_of(storm, server).append(answer["seconds"])
    rows += [memory, slowdown, storm]


def paced(server: Server, topic: str) -> float:
    answer = run("rawload", "produce", str(server.port), topic, "1", "1", "3000", "100", "1000")
    return float(answer["p99_us"])


# -- many partitions ---------------------------------------------------------------------------------------------------


def partitions(rows: list[Row], rounds: int) -> None:
    total = TOPICS * PARTITIONS_EACH
    created = Row(f"{total} partitions: created and usable", "s", "lower", limit=3)
    idle = Row(f"{total} partitions: idle CPU", "% of core", "lower", limit=2)
    killed = Row(f"{total} partitions: restart after SIGKILL", "s", "lower", limit=4)
    clean = Row(f"{total} partitions: clean restart", "s", "lower", limit=2)
    for _ in range(max(1, rounds - 1)):
        for server in (Moldau(), Kafka()):
            try:
                server.start()
                begun = time.monotonic()
                names = create(server, TOPICS, PARTITIONS_EACH, "many")
                wait_for_offsets(server, names)
                values_of(created, server).append(time.monotonic() - begun)
                before = cpu_seconds(server.pid)
                time.sleep(IDLE_SECONDS)
                values_of(idle, server).append((cpu_seconds(server.pid) - before) / IDLE_SECONDS * 100)
                for row, end in ((killed, server.kill), (clean, server.stop)):
                    end()
                    begun = time.monotonic()
                    server.start()
                    wait_for_offsets(server, names)
                    values_of(row, server).append(time.monotonic() - begun)
            finally:
                server.remove()
    rows += [created, idle, killed, clean]


def wait_for_offsets(server: Server, topics: list[str], count: int = PARTITIONS_EACH) -> None:
    """Until ListOffsets answers for every partition."""
    client = admin(server)
    wanted = {TopicPartition(name, index): OffsetSpec.latest() for name in topics for index in range(count)}
    deadline = time.monotonic() + 120
    while True:
        try:
            for future in client.list_offsets(wanted, request_timeout=10).values():
                future.result(20)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


# -- a large partition -------------------------------------------------------------------------------------------------


def recovery(rows: list[Row], rounds: int) -> None:
    row = Row("2 GB in one partition, SIGKILL, back to serving", "s", "lower", limit=2)
    for _ in range(max(1, rounds - 1)):
        for server in (Moldau(), Kafka()):
            try:
                server.start()
                names = create(server, 1, 1, "large")
                run("rdload", "produce", server.bootstrap, names[0], str(RECOVERY_RECORDS), str(RECOVERY_BYTES))
                server.kill()
                begun = time.monotonic()
                server.start()
                wait_for_offsets(server, names, 1)
                values_of(row, server).append(time.monotonic() - begun)
            finally:
                server.remove()
    rows.append(row)
