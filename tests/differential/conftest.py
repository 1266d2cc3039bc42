"""A Moldau and an Apache Kafka for scenarios, and their verdict at the end of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from moldau.testing import Broker
from tests.differential.pair import Pair, Side
from tests.differential.transactions import Transactions
from tests.oracle import NEVER_MS, ApacheKafka, RunningKafka, require_oracle

# The oracle's own properties (tests/oracle.py), so that both describe themselves alike.
LIKE_THE_ORACLE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": NEVER_MS,
    "log.retention.check.interval.ms": NEVER_MS,
}


# Who is compared with Kafka in scenarios of transactions; "Kafka" with itself shows that they are deterministic.
TRANSACTIONS_OF = "Moldau"
TRANSACTION_LEVELS = (2, 1)
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}


@pytest.fixture(scope="session")
def embedded_moldau() -> Iterator[Broker]:
    with Broker(LIKE_THE_ORACLE) as broker:
        yield broker


@pytest.fixture
def pair(request: pytest.FixtureRequest, apache_kafka: RunningKafka, embedded_moldau: Broker) -> Iterator[Pair]:
    prefix = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[-80:]
    sides = Side("Moldau", embedded_moldau.bootstrap), Side("Kafka", apache_kafka.bootstrap)
    yield Pair(*sides, prefix)
    for side in sides:
        side.wire.close()


@pytest.fixture
def private_pair(tmp_path: Path) -> Iterator[Pair]:
    """Brokers of one's own, for scenarios that change what every test sees."""
    require_oracle()
    with ApacheKafka(tmp_path) as kafka, Broker(LIKE_THE_ORACLE) as moldau:
        sides = Side("Moldau", moldau.bootstrap), Side("Kafka", kafka.bootstrap)
        yield Pair(*sides, "private")
        for side in sides:
            side.wire.close()


@pytest.fixture(scope="session")
def transactional_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], str]]:
    """Addresses of brokers by who they are and their transaction.version, started when first asked for."""
    require_oracle()
    started: dict[tuple[str, int], str] = {}
    with ExitStack() as stack:

        def get(role: str, level: int) -> str:
            if (role, level) not in started:
                is_moldau = role == "compared" and TRANSACTIONS_OF == "Moldau"
                broker = (
                    Broker(LIKE_THE_ORACLE | QUICK_TIMEOUTS)
                    if is_moldau
                    else ApacheKafka(tmp_path_factory.mktemp("kafka"), properties=QUICK_TIMEOUTS)
                )
                started[role, level] = stack.enter_context(broker).bootstrap
                _set_transaction_version(Side(role, started[role, level]), level)
            return started[role, level]

        yield get


def _set_transaction_version(side: Side, level: int) -> None:
    if level < max(TRANSACTION_LEVELS):
        downgrade = UpdateFeaturesRequest.FeatureUpdateKey("transaction.version", level)
        downgrade.upgrade_type = 2
        answer = side.ask(UpdateFeaturesRequest(feature_updates=[downgrade]), 1)
        assert answer.error_code == 0, answer
        assert all(each.error_code == 0 for each in answer.results), answer
    side.wire.close()


@pytest.fixture(params=TRANSACTION_LEVELS, ids=lambda level: f"tv{level}")
def transactions(
    request: pytest.FixtureRequest, transactional_clusters: Callable[[str, int], str]
) -> Iterator[Transactions]:
    prefix = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[-80:]
    level = request.param
    sides = (
        Side(TRANSACTIONS_OF, transactional_clusters("compared", level)),
        Side("Kafka", transactional_clusters("oracle", level)),
    )
    yield Transactions(*sides, prefix, level)
    for side in sides:
        side.wire.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """The verdict is part of the test, not of its clean-up."""
    result = yield
    for pair in pyfuncitem.funcargs.values():
        if isinstance(pair, Pair):
            pair.verdict()
    return result
