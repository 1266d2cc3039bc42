"""Three real brokers on three hosts of their own, real faults, a load of transactions, and a judge of its history.

    python -m tests.faults.cluster_faults [--rounds 3] [--seed 7] [--fault kill ...] [--log]

Each round brings every fault once, at a random moment on a random broker, and waits until the load gets on again. At
the end everything is healed, and nothing that was acknowledged may be missing, twice, torn, or in another order.
Needs root, for the hosts are network namespaces. The seed says which faults meet whom; when they do is chance.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.client import ClusterClient, admin
from moldau.testing import BrokerProcess
from tests.faults.hosts import CLIENT, Hosts, address_of, why_not
from tests.faults.judged_load import RunningLoad, judge
from tests.faults.transactional_load import NUMBERS, PARTITIONS, SQUARES

NODES = (1, 2, 3)
PORT, CONTROLLER_PORT = 9092, 9093
SESSION_MS = 3_000
DISK_BYTES = 256 << 20
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": ",".join(f"{node}@{address_of(node)}:{CONTROLLER_PORT}" for node in NODES),
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "6",
    "moldau.log.dir.reserve.bytes": str(8 << 20),
}
# Each is a method of `Faults`.
FAULTS = (
    "kill",
    "kill-for-long",
    "pause",
    "stop",
    "isolate",
    "cut-from-one",
    "leader-from-followers",
    "controller-from-quorum",
    "one-way",
    "from-clients",
    "full-disk",
    "failing-disk",
)
COMMITS_BETWEEN, COMMITS_AFTERWARDS = 20, 60
READY_SECONDS_MAX = 60.0


class Cluster:
    """A broker process on each host, with a disk of its own that can be full."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.hosts = hosts
        self.brokers: dict[int, BrokerProcess] = {}
        self._disks: list[Path] = []
        for node in NODES:
            disk = directory / f"disk-{node}"
            disk.mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "moldau-test", str(disk)]
            subprocess.run(mount, check=True, capture_output=True)
            self._disks.append(disk)
            listeners = f"PLAINTEXT://{address_of(node)}:{PORT},CONTROLLER://{address_of(node)}:{CONTROLLER_PORT}"
            own = {**SETTINGS, "node.id": str(node), "listeners": listeners}
            self.brokers[node] = BrokerProcess(own, data=str(disk / "data"), prefix=hosts.prefix(node))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{address_of(node)}:{PORT}" for node in NODES)

    def disk(self, node: int) -> Path:
        return self._disks[NODES.index(node)]

    def active_controller(self) -> int:
        """Whom the quorum was last seen to choose."""

        async def ask() -> int:
            async with ClusterClient(self.bootstrap) as client:
                return (await admin.describe_quorum(client)).leader_id

        return asyncio.run(ask())

    def start(self) -> None:
        with ThreadPoolExecutor(len(NODES)) as threads:
            for started in [threads.submit(broker.start) for broker in self.brokers.values()]:
                started.result()

    def tell_log(self, characters_max: int) -> None:
        for node, broker in self.brokers.items():
            print(f"---- broker {node} said last:\n{broker.log[-characters_max:]}", file=sys.stderr)

    def end(self) -> None:
        for broker in self.brokers.values():
            with suppress(ProcessLookupError):
                broker.kill()
        for disk in self._disks:
            subprocess.run(["umount", "-l", str(disk)], check=False)


class Faults:
    """One method a fault: it begins, lasts, and is over when the method returns."""

    def __init__(self, cluster: Cluster, dice: random.Random, load: RunningLoad) -> None:
        self._cluster, self._hosts, self._dice, self._load = cluster, cluster.hosts, dice, load

    def bring(self, name: str, node: int) -> None:
        fault: Callable[[int], None] = getattr(self, name.replace("-", "_"))
        fault(node)

    def kill(self, node: int) -> None:
        """SIGKILL, and back at once."""
        broker = self._cluster.brokers[node]
        broker.kill()
        broker.start()

    def kill_for_long(self, node: int) -> None:
        """SIGKILL, and back when the others have gone on for a while."""
        broker = self._cluster.brokers[node]
        broker.kill()
        self._others_go_on()
        broker.start()

    def pause(self, node: int) -> None:
        """SIGSTOP for longer than a session: it comes back and believes that nothing has happened."""
        pid = self._cluster.brokers[node].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            self._last(1.5 * SESSION_MS / 1000)
            self._others_go_on()
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self, node: int) -> None:
        """SIGTERM, a controlled shutdown."""
        broker = self._cluster.brokers[node]
        code = broker.stop()
        assert code == 0, f"broker {node} ended with {code}: {broker.log[-2000:]}"
        broker.start()

    def isolate(self, node: int) -> None:
        """From everybody, clients too."""
        self._hosts.isolate(node)
        self._until_healed(SESSION_MS / 1000)

    def cut_from_one(self, node: int) -> None:
        """Two do not see one another, the third sees both, and so do clients."""
        self._hosts.cut(node, self._dice.choice([each for each in NODES if each != node]))
        self._until_healed(SESSION_MS / 1000)

    def leader_from_followers(self, node: int) -> None:
        """It leads partitions, reaches the controller and its clients, and no follower reaches it, nor does it them."""
        self._cut_port(node, PORT, SESSION_MS / 1000)

    def controller_from_quorum(self, _node: int) -> None:
        """Whoever leads the quorum hears nothing of it any more, and goes on as a broker."""
        self._cut_port(self._cluster.active_controller(), CONTROLLER_PORT, SESSION_MS / 1000)

    def _cut_port(self, node: int, port: int, seconds: float) -> None:
        for other in NODES:
            if other != node:
                self._hosts.cut_port(node, other, port)
        self._until_healed(seconds)

    def one_way(self, node: int) -> None:
        """What it says does not arrive at the other brokers, what they say does."""
        for other in NODES:
            if other != node:
                self._hosts.cut_one_way(node, other)
        self._until_healed(SESSION_MS / 1000)

    def from_clients(self, node: int) -> None:
        """A leader that the other brokers see and its clients do not."""
        self._hosts.cut(node, CLIENT)
        self._last(1.0)
        self._hosts.heal()

    def full_disk(self, node: int) -> None:
        ballast = self._cluster.disk(node) / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
        self._last(3.0)
        ballast.unlink()

    def failing_disk(self, node: int) -> None:
        """Syncs fail: the broker's only directory is out of service, and so is the broker, until it is started anew."""
        broker = self._cluster.brokers[node]
        with _injected(broker.pid):
            # Something to sync for every voter: a change of the metadata.
            admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(f"touched-{time.monotonic_ns()}", 1, 3)])
            self._wait(lambda: broker._process is None or broker._process.poll() is not None)
        broker.stop()
        broker.start()

    def _until_healed(self, seconds: float) -> None:
        self._last(seconds)
        self._hosts.heal()

    def _last(self, seconds: float) -> None:
        time.sleep(seconds)

    def _others_go_on(self) -> None:
        self._load.wait_for_commits(self._load.commits() + 5, self._dice)

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, "it does not become so"
            time.sleep(0.02)


@contextmanager
def _injected(pid: int) -> Iterator[None]:
    """Every fdatasync of a process fails."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(pid), "-e", "trace=fdatasync,fsync"]
    tracer = subprocess.Popen([*command, "-e", "inject=fdatasync,fsync:error=EIO"], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def run(hosts: Hosts, directory: Path, seed: int, rounds: int, names: list[str], *, with_log: bool) -> None:
    dice = random.Random(seed)
    cluster = Cluster(hosts, directory)
    load: RunningLoad | None = None
    try:
        cluster.start()
        _create_topics(cluster.bootstrap)
        load = RunningLoad(cluster.bootstrap, directory, seed)
        load.wait_for_commits(COMMITS_BETWEEN, dice)
        faults = Faults(cluster, dice, load)
        for number in range(rounds):
            for name in dice.sample(names, len(names)):
                node = dice.choice(NODES)
                before, began = load.commits(), time.monotonic()
                print(f"round {number + 1}: {name} of broker {node}", end=" ", flush=True)
                faults.bring(name, node)
                lasted, back = time.monotonic() - began, time.monotonic()
                load.wait_for_commits(load.commits() + COMMITS_BETWEEN, dice)
                done = load.commits() - before
                print(f"lasted {lasted:.1f} s, {done} commits, {time.monotonic() - back:.1f} s behind it", flush=True)
        load.wait_for_commits(load.commits() + COMMITS_AFTERWARDS, dice)
        outcomes = judge(cluster.bootstrap, load.finish())
        print("no anomalies in", {outcome.value: count for outcome, count in outcomes.items()}, "transactions")
        if with_log:
            cluster.tell_log(sys.maxsize)
    except BaseException:
        cluster.tell_log(6000)
        raise
    finally:
        if load is not None:
            load.kill()
        cluster.end()


def _create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, 3, config={"min.insync.replicas": "2"}) for name in (NUMBERS, SQUARES)]
    for name, future in admin.create_topics(topics).items():
        try:
            future.result(30)
        except KafkaException as error:
            raise RuntimeError(f"topic {name}: {error}") from error


def _enter(path: str) -> None:
    """This process, before it has other threads, moves to the host of clients."""
    CLONE_NEWNET = 0x40000000
    with open(path) as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster_faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often every fault comes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--log", action="store_true", help="print at the end what the brokers said")
    parser.add_argument(
        "--fault", action="append", default=[], choices=FAULTS, help="only these faults; may be repeated"
    )
    arguments = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    print(f"seed {arguments.seed}", flush=True)
    names = arguments.fault or list(FAULTS)
    directory = Path(tempfile.mkdtemp(prefix="moldau-faults-"))
    with Hosts(*NODES) as hosts:
        _enter(hosts.path_of_clients)
        run(hosts, directory, arguments.seed, arguments.rounds, names, with_log=arguments.log)
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
