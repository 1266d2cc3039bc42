"""Three nodes: replicated produce, what a failure costs, idling, many partitions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import NODES, Cluster, KafkaCluster, MoldauCluster
from bench.report import Row
from bench.rows import run
from moldau.client import ClusterClient, admin
from moldau.kernel import KafkaError

BULK = (("100 B", 100, 3_000_000), ("1 KiB", 1024, 500_000))
PARTITIONS = 6
LATENCIES = ((200, 0, 2_000), (1_000, 5, 8_000))
RAW_REQUESTS = 20_000
IDLE_SECONDS = 10
MANY = 1_000
CALM_SECONDS, WAIT_SECONDS_MAX = 3.0, 120.0
Gap = Callable[[Cluster, str], float]


def clusters(rows: list[Row], rounds: int) -> None:
    with _both() as both:
        for cluster in both:
            _warm_up(cluster)
        idle(rows, both)
        bulk(rows, both, rounds)
        latency(rows, both, rounds)
        raw(rows, both, rounds)


def _values(row: Row, cluster: Cluster) -> list[float]:
    return row.moldau if isinstance(cluster, MoldauCluster) else row.kafka


@contextmanager
def _both() -> Iterator[tuple[Cluster, Cluster]]:
    both: tuple[Cluster, Cluster] = (MoldauCluster(), KafkaCluster())
    try:
        for cluster in both:
            cluster.start()
        yield both
    finally:
        for cluster in both:
            cluster.remove()


@contextmanager
def _one(make: type[Cluster]) -> Iterator[Cluster]:
    cluster = make()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


def _create(cluster: Cluster, name: str, partitions: int = 1, assignment: list[list[int]] | None = None) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    if assignment is None:
        made = NewTopic(name, partitions, 3)
    else:
        made = NewTopic(name, len(assignment), replica_assignment=assignment)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            for future in client.create_topics([made]).values():
                future.result(60)
            break
        except Exception:  # a cluster that has only just come up may not have all of its brokers yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    _wait_all_in_sync(cluster, name)


def _ask(cluster: Cluster, question: Callable[[ClusterClient], Any]) -> Any:
    async def ask() -> Any:
        async with ClusterClient(cluster.bootstrap) as client:
            return await question(client)

    return asyncio.run(ask())


def _partitions(cluster: Cluster, topic: str) -> Any:
    async def question(client: ClusterClient) -> Any:
        return (await admin.describe_topics(client, [topic]))[0].partitions

    try:
        return _ask(cluster, question)
    except (OSError, KafkaError):
        return []


def _controller(cluster: Cluster) -> int:
    async def question(client: ClusterClient) -> int:
        return (await admin.describe_quorum(client)).leader_id

    try:
        return int(_ask(cluster, question))
    except (OSError, KafkaError):
        return -1


def _wait(condition: Callable[[], bool], pause: float = 0.05) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > WAIT_SECONDS_MAX:
            raise TimeoutError("it does not become so")
        time.sleep(pause)
    return time.monotonic() - began


# -- at work -----------------------------------------------------------------------------------------------------------


def _warm_up(cluster: Cluster) -> None:
    _create(cluster, "warm", PARTITIONS)
    for _ in range(2):
        run("rdload", "produce", cluster.bootstrap, "warm", "500000", "100", str(PARTITIONS))


def idle(rows: list[Row], both: tuple[Cluster, ...]) -> None:
    memory = Row("three nodes, idle: resident memory", "MB", "lower", limit=150)
    cpu = Row("three nodes, idle: CPU", "% of core", "lower", limit=3)
    for cluster in both:
        before = cluster.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        _values(cpu, cluster).append((cluster.cpu_seconds() - before) / IDLE_SECONDS * 100)
        _values(memory, cluster).append(cluster.resident_mb())
    rows += [memory, cpu]


def bulk(rows: list[Row], both: tuple[Cluster, ...], rounds: int) -> None:
    for label, size, records in BULK:
        rate = Row(f"rf=3 acks=all, {label}, 6 partitions", "MB/s", "higher", at_least=1.2)
        cost = Row(f"rf=3 acks=all, {label}: CPU of all brokers", "s/GB", "lower", at_least=1 / 0.7)
        for number in range(rounds):
            for cluster in both:
                topic = f"bulk-{size}-{number}"
                _create(cluster, topic, PARTITIONS)
                before = cluster.cpu_seconds()
                answer = run("rdload", "produce", cluster.bootstrap, topic, str(records), str(size), str(PARTITIONS))
                if answer["failed"]:
                    raise RuntimeError(f"{cluster.name} refused {answer['failed']} records")
                _values(rate, cluster).append(answer["mb_per_second"])
                _values(cost, cluster).append((cluster.cpu_seconds() - before) / (records * size / 1e9))
        rows += [rate, cost]


def latency(rows: list[Row], both: tuple[Cluster, ...], rounds: int) -> None:
    for per_second, linger_ms, records in LATENCIES:
        label = f"rf=3 acks=all, end to end at {per_second}/s, linger {linger_ms}"
        made = [Row(f"{label}: {name}", "us", "lower", at_least=1 / 0.8) for name in ("p50", "p99")]
        for number in range(rounds):
            for cluster in both:
                topic = f"latency-{per_second}-{number}"
                _create(cluster, topic)
                arguments = (topic, str(records), "100", str(per_second), str(linger_ms))
                answer = run("rdload", "latency", cluster.bootstrap, *arguments)
                for row, name in zip(made, ("p50_us", "p99_us"), strict=True):
                    _values(row, cluster).append(answer[name])
        rows += made


def raw(rows: list[Row], both: tuple[Cluster, ...], rounds: int) -> None:
    row = Row("rf=3 acks=all, one raw connection, 5 in flight", "requests/s", "higher", at_least=2)
    for number in range(rounds):
        for cluster in both:
            topic = f"raw-{number}"
            _create(cluster, topic)
            port = cluster.nodes[_partitions(cluster, topic)[0].leader].port
            answer = run("rawload", "produce", str(port), topic, "1", "5", str(RAW_REQUESTS), "100")
            if answer["errors"]:
                raise RuntimeError(f"{cluster.name} refused {answer['errors']} requests")
            _values(row, cluster).append(answer["per_second"])
    rows.append(row)


# -- failures ----------------------------------------------------------------------------------------------------------


def failures(rows: list[Row], rounds: int) -> None:
    """Each on a cluster of its own, so that no failure is felt twice."""
    gap = "longest time without an acknowledgement"
    made: list[tuple[Row, Gap]] = [
        (Row(f"leader SIGKILL: {gap}", "s", "lower", at_least=1 / 0.35), _leader_killed),
        (Row(f"follower SIGKILL: {gap}", "s", "lower", at_least=1 / 0.35), _follower_killed),
        (Row(f"leader and controller SIGKILL: {gap}", "s", "lower", at_least=2), _leader_and_controller_killed),
        (Row(f"leader SIGTERM: {gap}", "s", "lower", at_least=1), _leader_stopped),
        (Row("controller SIGKILL: until another is active", "s", "lower", at_least=1), _controller_killed),
        (Row("SIGKILL and restart at once: until in sync", "s", "lower", limit=2), _restarted),
    ]
    for row, measure in made:
        for _ in range(rounds):
            for make in (MoldauCluster, KafkaCluster):
                with _one(make) as cluster:
                    _create(cluster, "warm", PARTITIONS)
                    run("rdload", "produce", cluster.bootstrap, "warm", "200000", "100", str(PARTITIONS))
                    _values(row, cluster).append(measure(cluster, "t"))
        rows.append(row)


class Acknowledged:
    """An idempotent producer with acks of all and otherwise the client's defaults, and when it heard what."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.times: list[float] = []
        self.failures = 0
        self._topic = topic
        self._over = threading.Event()
        settings = {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        self._producer = Producer(settings)
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Acknowledged:
        self._thread.start()
        _wait(lambda: len(self.times) > 100)
        time.sleep(CALM_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(WAIT_SECONDS_MAX)

    def _produce(self) -> None:
        while not self._over.is_set():
            try:
                self._producer.produce(self._topic, b"x" * 100, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
            self._producer.poll(0.002)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self.times.append(time.monotonic())
        else:
            self.failures += 1

    def longest_gap_after(self, moment: float) -> float:
        """Once it is over: acknowledgements have come again for a while."""
        _wait(lambda: self.times[-1] > moment + 0.1 and time.monotonic() - moment > CALM_SECONDS)
        _wait(lambda: len([each for each in self.times[-200:] if each > moment]) >= 100)
        times = [each for each in self.times if each >= moment - 1]
        return max(after - before for before, after in pairwise(times))


def _led_by(cluster: Cluster, topic: str, leader: int) -> None:
    others = [node for node in NODES if node != leader]
    _create(cluster, topic, assignment=[[leader, *others]])


def _gap(cluster: Cluster, topic: str, fail: Callable[[], None]) -> float:
    with Acknowledged(cluster, topic) as acknowledged:
        moment = time.monotonic()
        fail()
        found = acknowledged.longest_gap_after(moment)
    if acknowledged.failures:
        raise RuntimeError(f"{cluster.name}: {acknowledged.failures} sends failed")
    return found


def _settled_controller(cluster: Cluster) -> int:
    _wait(lambda: _controller(cluster) in NODES)
    return _controller(cluster)


def _leader_killed(cluster: Cluster, topic: str) -> float:
    leader = next(node for node in NODES if node != _settled_controller(cluster))
    _led_by(cluster, topic, leader)
    return _gap(cluster, topic, cluster.nodes[leader].kill)


def _follower_killed(cluster: Cluster, topic: str) -> float:
    controller = _settled_controller(cluster)
    leader, follower = (node for node in NODES if node != controller)
    _led_by(cluster, topic, leader)
    return _gap(cluster, topic, cluster.nodes[follower].kill)


def _leader_and_controller_killed(cluster: Cluster, topic: str) -> float:
    controller = _settled_controller(cluster)
    _led_by(cluster, topic, controller)
    return _gap(cluster, topic, cluster.nodes[controller].kill)


def _leader_stopped(cluster: Cluster, topic: str) -> float:
    leader = next(node for node in NODES if node != _settled_controller(cluster))
    _led_by(cluster, topic, leader)
    return _gap(cluster, topic, cluster.nodes[leader].stop)


def _controller_killed(cluster: Cluster, topic: str) -> float:
    controller = _settled_controller(cluster)
    others = [node for node in NODES if node != controller]
    _create(cluster, topic, assignment=[others])
    with Acknowledged(cluster, topic):
        cluster.nodes[controller].kill()
        return _wait(lambda: _controller(cluster) in others)


def _restarted(cluster: Cluster, topic: str) -> float:
    node = next(node for node in NODES if node != _settled_controller(cluster))
    _led_by(cluster, topic, node)
    with Acknowledged(cluster, topic):
        cluster.nodes[node].kill()
        began = time.monotonic()
        cluster.nodes[node].start()
        _wait(lambda: _is_in_sync(cluster, topic, node))
        return time.monotonic() - began


def _is_in_sync(cluster: Cluster, topic: str, node: int) -> bool:
    """Leading is no sign of it: the metadata may not know yet that it was gone."""
    found = _partitions(cluster, topic)
    return bool(found) and all(node in each.isr and each.leader_epoch > 0 for each in found)


# -- many partitions ---------------------------------------------------------------------------------------------------


def many(rows: list[Row], _: int) -> None:
    created = Row(f"{MANY} partitions rf=3: created, all in sync", "s", "lower", at_least=1)
    restarted = Row(f"one broker of {MANY} partitions restarted: until in sync", "s", "lower", at_least=1)
    with _both() as both:
        for cluster in both:
            began = time.monotonic()
            _create(cluster, "many", MANY)
            _values(created, cluster).append(time.monotonic() - began)
            node = next(node for node in NODES if node != _settled_controller(cluster))
            cluster.nodes[node].stop()
            began = time.monotonic()
            cluster.nodes[node].start()
            _wait_all_in_sync(cluster, "many")
            _values(restarted, cluster).append(time.monotonic() - began)
    rows += [created, restarted]


def _wait_all_in_sync(cluster: Cluster, topic: str) -> None:
    def is_so() -> bool:
        found = _partitions(cluster, topic)
        return bool(found) and all(len(each.isr) == len(each.replicas) for each in found)

    _wait(is_so)
