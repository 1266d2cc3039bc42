"""`moldau txn` and `moldau produce --transactional-id`, beside Kafka's own tool."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from moldau.client import BlockingProducer, ClusterClient, TransactionFatal, transaction_admin
from moldau.kernel import TopicPartition
from moldau.protocol.batches import Record, build_batch
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.testing import Broker
from tests.cli.conftest import SECONDS_MAX, Moldau
from tests.java import run_tool
from tests.oracle import ApacheKafka, require_oracle

BROKERS = ("moldau", "kafka")
# A broker that takes any transactional batch without asking the coordinator: so that one can hang.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}


@pytest.fixture(scope="session")
def kafka_unverified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moldau]:
    require_oracle()
    older = ("--feature", "transaction.version=1")
    with ApacheKafka(tmp_path_factory.mktemp("txn"), properties=UNVERIFIED, format_options=older) as kafka:
        yield Moldau(kafka.bootstrap)


@pytest.fixture(scope="session")
def moldau_unverified() -> Iterator[Moldau]:
    with Broker(UNVERIFIED) as broker:
        yield Moldau(broker.bootstrap)


@pytest.fixture(params=BROKERS)
def unverified(request: pytest.FixtureRequest) -> Moldau:
    found: Moldau = request.getfixturevalue(f"{request.param}_unverified")
    return found


@pytest.fixture
def orders(unverified: Moldau, new_name: Callable[[], str]) -> str:
    name = new_name()
    unverified("topic", "create", name, "-p", "2")
    return name


@contextmanager
def open_transaction(cluster: Moldau, transactional_id: str, topic: str) -> Iterator[BlockingProducer]:
    """One record in a transaction that ends with the block."""
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id}
    with BlockingProducer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result(SECONDS_MAX)
        yield producer


def leave_hanging(cluster: Moldau, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int]:
    """A transactional batch that no coordinator ever heard of: its producer's id, and where it starts."""

    async def work() -> tuple[int, int]:
        async with ClusterClient(cluster.bootstrap) as client:
            given = await client.to_any(InitProducerIdRequest(None, 1000))
            while given.error_code:  # a Kafka that has just started has no ids to give yet
                given = await client.to_any(InitProducerIdRequest(None, 1000))
            batch = build_batch(
                [Record(offset=0, timestamp=timestamp_ms, key=None, value=b"hanging", headers=[])],
                producer_id=given.producer_id,
                producer_epoch=given.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            data = ProduceRequest.TopicProduceData(
                name=topic, partition_data=[ProduceRequest.PartitionProduceData(partition, batch)]
            )
            request = ProduceRequest("nobody knows it", -1, 30_000, [data])
            answer = await client.to_leader(topic, partition, lambda _: request, version_max=11)
            (written,) = answer.responses[0].partition_responses
            assert not written.error_code
            return given.producer_id, written.base_offset

    return asyncio.run(work())


def stable_end(cluster: Moldau, topic: str) -> list[bytes]:
    """What readers of committed records get from the beginning to where they must wait."""
    done = cluster.run("consume", topic, "--isolation", "read_committed", "--exit")
    return [line.encode() for line in done.out.splitlines()]


# -- list and describe -------------------------------------------------------------------------------------------------


def test_list_shows_what_kafkas_tool_shows_and_filters_alike(
    unverified: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    done, running = new_name(), new_name()
    unverified.run("produce", orders, "--transactional-id", done, stdin=b"1\n2\n")
    with open_transaction(unverified, running, orders):

        def listed(*options: str) -> dict[str, str]:
            rows = unverified("txn", "list", *options, "-o", "json").json
            return {row["transactional_id"]: row["state"] for row in rows}

        assert listed()[running] == "Ongoing"
        while listed()[done] != "CompleteCommit":
            time.sleep(0.02)
        assert running in listed("--state", "ongoing") and done not in listed("--state", "ongoing")
        assert {running, done} <= set(listed("--state", "ongoing", "--state", "complete-commit"))
        producer_id = next(
            row["producer_id"]
            for row in unverified("txn", "list", "-o", "json").json
            if row["transactional_id"] == running
        )
        assert set(listed("--producer-id", str(producer_id))) == {running}
        assert set(listed("--pattern", f"{running[:-1]}.")) >= {running} - {done}
        assert listed("--pattern", "no such thing") == {}
        assert running not in listed("--older-than", "1h")
        assert running in listed("--older-than", "0ms")
        assert done not in listed("--older-than", "0ms"), "it does not run any more"
        assert done in listed("--older-than", "0ms", "--state", "complete-commit")
        table = unverified("txn", "list").out.splitlines()
        assert table[0].split() == ["TRANSACTIONAL_ID", "PRODUCER_ID", "STATE", "COORDINATOR"]
        theirs = run_tool("transactions", "list", bootstrap=unverified.bootstrap).stdout
        rows = {line.split()[0]: line.split()[-1] for line in theirs.splitlines() if line.strip()}
        assert {name: rows[name] for name in (running, done)} == {running: "Ongoing", done: "CompleteCommit"}
    assert "there are Empty, Ongoing" in unverified("txn", "list", "--state", "strange", code=2).err
    assert "write how long" in unverified("txn", "list", "--older-than", "soon", code=2).err
    assert "no regular expression" in unverified("txn", "list", "--pattern", "(", code=1).err


def test_describe_shows_state_producer_and_partitions(
    unverified: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    running = new_name()
    with open_transaction(unverified, running, orders):
        (found,) = unverified("txn", "describe", running, "-o", "json").json
        assert found["state"] == "Ongoing" and found["partitions"] == {orders: [0]}
        assert found["timeout_ms"] == 60_000 and found["coordinator"] == 1
        assert 0 <= found["duration_ms"] < 60_000 and found["start_ms"] > 0
        shown = unverified("txn", "describe", running).out
        assert f"{orders}:0" in shown and "Ongoing" in shown and "ms ago" in shown
        theirs = run_tool(
            "transactions", "describe", "--transactional-id", running, bootstrap=unverified.bootstrap
        ).stdout.splitlines()[-1]
        assert str(found["producer_id"]) in theirs.split() and f"{orders}-0" in theirs
        (state,) = unverified("txn", "producers", f"{orders}:0", "-o", "json").json
        assert (state["producer_id"], state["start_offset"]) == (found["producer_id"], 0)
        assert "START_OFFSET" in unverified("txn", "producers", orders).out
    (found,) = unverified("txn", "describe", running, "-o", "json").json
    assert found["state"] in ("PrepareAbort", "CompleteAbort")
    missing = unverified("txn", "describe", running, "nobody", code=3)
    assert "no coordinator knows transactional id 'nobody'; `moldau txn list` shows all" in missing.err


# -- hanging -----------------------------------------------------------------------------------------------------------


def test_a_hanging_transaction_is_found_and_aborted(unverified: Moldau, orders: str) -> None:
    long_ago = int(time.time() * 1000) - 3_600_000
    unverified.run("produce", orders, "-p", "1", stdin=b"before\n")
    producer_id, start = leave_hanging(unverified, orders, 1, long_ago)
    unverified.run("produce", orders, "-p", "1", stdin=b"behind\n")
    assert stable_end(unverified, orders) == [b"before"]

    (found,) = unverified("txn", "find-hanging", "--topic", orders, "-o", "json").json
    assert found == {
        "topic": orders,
        "partition": 1,
        "producer_id": producer_id,
        "producer_epoch": 0,
        "coordinator_epoch": None,
        "start_offset": start,
        "last_timestamp_ms": long_ago,
        "transactional_id": None,
    }
    theirs = run_tool(
        "transactions", "find-hanging", "--topic", orders, bootstrap=unverified.bootstrap
    ).stdout.splitlines()[-1]
    assert theirs.split()[:6] == [orders, "1", str(producer_id), "0", "-1", str(start)]
    shown = unverified("txn", "find-hanging", "--broker", "1")
    step = f"txn abort {orders} 1 --start-offset {start}"
    assert f"`moldau {step}` ends it" in shown.err and orders in shown.out
    assert unverified("txn", "find-hanging", "--topic", f"{orders}:0", "-o", "json").json == []
    assert unverified("txn", "find-hanging", "--topic", orders, "--older-than", "2h", "-o", "json").json == []

    plan = unverified(*step.split(), "-o", "json")
    assert plan.json == [found] and "nothing is changed" in plan.err
    assert unverified("txn", "find-hanging", "--topic", orders, "-o", "json").json == [found]
    done = unverified(*step.split(), "--execute")
    assert f"of producer {producer_id} is aborted in {orders}-1" in done.err
    assert stable_end(unverified, orders) == [b"before", b"behind"]
    empty = unverified("txn", "find-hanging", "--topic", orders)
    assert "no transaction hangs there" in empty.err
    gone = unverified(*step.split(), "--execute", code=3)
    assert "no open transaction that starts at" in gone.err and "none is open" in gone.err


def test_a_hanging_transaction_is_aborted_by_the_numbers_of_its_producer(unverified: Moldau, orders: str) -> None:
    producer_id, start = leave_hanging(unverified, orders, 0, int(time.time() * 1000) - 3_600_000)
    step = ("txn", "abort", orders, "0", "--producer-id", str(producer_id), "--producer-epoch")
    (planned,) = unverified(*step, "0", "-o", "json").json
    assert (planned["producer_epoch"], planned["coordinator_epoch"], planned["start_offset"]) == (0, 0, start)
    unverified(*step, "0", "--coordinator-epoch", "0", "--execute")
    assert unverified("txn", "find-hanging", "--topic", orders, "-o", "json").json == []
    assert "has no open transaction" in unverified(*step, "0", code=3).err


def test_a_transaction_that_its_coordinator_will_end_is_left_alone(
    unverified: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    running = new_name()
    with open_transaction(unverified, running, orders) as producer:
        assert unverified("txn", "find-hanging", "--topic", orders, "--older-than", "0ms", "-o", "json").json == []
        refused = unverified("txn", "abort", orders, "0", "--start-offset", "0", "--execute", code=1)
        assert f"the coordinator of transactional id '{running}' will end it" in refused.err
        assert "nothing was done" in refused.err
        assert stable_end(unverified, orders) == []
        producer.commit_transaction()
        while stable_end(unverified, orders) != [b"open"]:
            time.sleep(0.02)


def test_an_abort_that_is_not_well_asked_for_is_refused(unverified: Moldau, orders: str) -> None:
    for arguments, code, text in (
        ((orders, "0"), 2, "--start-offset, or with --producer-id"),
        ((orders, "0", "--start-offset", "1", "--producer-id", "1"), 2, "--start-offset, or with --producer-id"),
        ((orders, "0", "--producer-id", "1"), 2, "needs --producer-epoch"),
        ((orders, "0", "--start-offset", "1", "--producer-epoch", "1"), 2, "belong to --producer-id"),
        ((orders, "0", "--start-offset", "1", "--execute", "--dry-run"), 2, "exclude each other"),
        ((orders, "0", "--producer-id", "1", "--producer-epoch", "32768"), 2, "less than or equal to 32767"),
        ((orders, "0", "--producer-id", "1", "--producer-epoch", "-1"), 2, "greater than or equal to 0"),
        ((orders, "0", "--producer-id", str(2**63), "--producer-epoch", "0"), 2, "less than or equal to"),
        ((orders, "9", "--start-offset", "1"), 3, "has no partition 9"),
        (("no-such-topic", "0", "--start-offset", "1"), 3, "does not exist"),
        ((orders, "0", "--start-offset", "1"), 3, "none is open there"),
    ):
        assert text in unverified("txn", "abort", *arguments, code=code).err
    assert "has no broker 77" in unverified("txn", "find-hanging", "--broker", "77", code=3).err


def test_fencing_shuts_out_a_producer_and_ends_its_transaction(
    unverified: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    async def fence(name: str) -> None:
        async with ClusterClient(unverified.bootstrap) as client:
            ((before, _),) = [
                (state.producer_id, state.producer_epoch)
                for state in (await transaction_admin.describe_producers(client, [TopicPartition(orders, 0)]))[
                    TopicPartition(orders, 0)
                ]
            ]
            answers = await transaction_admin.fence_producers(client, [name])
            assert isinstance(answers[name], tuple) and answers[name][0] == before

    running = new_name()
    with open_transaction(unverified, running, orders) as producer:
        asyncio.run(fence(running))
        with pytest.raises(TransactionFatal):
            producer.commit_transaction()
    assert stable_end(unverified, orders) == []


# -- produce -----------------------------------------------------------------------------------------------------------


def test_produce_puts_all_records_into_one_transaction(
    unverified: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    done = unverified.run("produce", orders, "-p", "0", "--transactional-id", new_name(), stdin=b"1\n2\n3\n")
    assert f"produced 3 records in 1 transaction to {orders}" in done.err
    while stable_end(unverified, orders) != [b"1", b"2", b"3"]:
        time.sleep(0.02)
    summary = unverified.run("produce", orders, "--transactional-id", new_name(), "-o", "json", stdin=b"").json
    assert (summary["delivered"], summary["transactions"]) == (0, 0)


def test_produce_commits_every_so_many_and_aborts_the_rest_when_it_fails(
    unverified: Moldau, orders: str, new_name: Callable[[], str]
) -> None:
    name = new_name()
    options = ("produce", orders, "-p", "0", "--transactional-id", name)
    done = unverified.run(*options, "--commit-every", "2", "-o", "jsonl", stdin=b"1\n2\n3\n4\n5\n")
    assert "produced 5 records in 3 transactions" in done.err
    assert [line["partition"] for line in done.lines] == [0] * 5
    failed = unverified.run(*options, "-K", ":", "--commit-every", "2", stdin=b"a:6\na:7\na:8\nbroken\n", code=1)
    assert "2 of 3 records were committed" in failed.err
    assert "line 4 has no key" in failed.err and "the open transaction of 1 record was aborted" in failed.err
    failed = unverified.run(*options, "-K", ":", "-o", "json", stdin=b"a:9\nbroken\n", code=1)
    assert (failed.json["delivered"], failed.json["failed"], failed.json["transactions"]) == (0, 1, 0)
    while stable_end(unverified, orders) != [b"%d" % number for number in range(1, 8)]:
        time.sleep(0.02)


def test_produce_that_is_interrupted_aborts(unverified: Moldau, orders: str, new_name: Callable[[], str]) -> None:
    name = new_name()
    process = unverified.start(
        "produce", orders, "--transactional-id", name, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(b"1\n2\n")
    process.stdin.flush()

    def is_open() -> bool:
        rows = unverified("txn", "list", "--state", "ongoing", "-o", "json").json
        return name in {row["transactional_id"] for row in rows}

    while not is_open():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(process.stderr.read).result(SECONDS_MAX)
    assert process.wait(SECONDS_MAX) == 130
    assert b"the open transaction of 2 records was aborted" in shown
    process.stdin.close()
    assert stable_end(unverified, orders) == []


def test_produce_options_that_do_not_go_together_are_refused(unverified: Moldau, orders: str) -> None:
    for options, text in (
        (("--commit-every", "2"), "needs --transactional-id"),
        (("--transactional-id", "x", "--commit-every", "0"), "give at least 1"),
        (("--transactional-id", "x", "--acks", "1"), "transactional.id conflicts with acks=1"),
        (("--transactional-id", ""), "empty name"),
    ):
        assert text in unverified.run("produce", orders, *options, stdin=b"1\n", code=2).err
