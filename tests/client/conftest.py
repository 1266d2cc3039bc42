"""Servers to test the client on: Apache Kafka, and Moldau's own broker where it is there."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from moldau.client import ClusterClient, admin
from moldau.testing import Broker
from tests.client.transactional_kit import Place, make_topic
from tests.oracle import ApacheKafka, require_oracle


@dataclass(frozen=True)
class Server:
    kind: str
    bootstrap: str


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest) -> Server:
    return Server("kafka", request.getfixturevalue("apache_kafka").bootstrap)


@pytest.fixture(scope="session")
def moldau_server() -> Iterator[Server]:
    with Broker() as broker:
        yield Server("moldau", broker.bootstrap)


@pytest.fixture(params=["kafka", "moldau"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each test runs on both; use topic names of your own (`new_topic`)."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


_numbers = itertools.count()


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test, worker or run uses."""
    base = "".join(c if c.isalnum() else "-" for c in request.node.originalname)[:60]
    return lambda: f"client-{base}-{os.getpid()}-{next(_numbers)}"


# -- groups ------------------------------------------------------------------------------------------------------------

# Sessions so short that a test can wait for one to end.
QUICK_GROUPS = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
QUICK_NEXT_GROUPS = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}


@pytest.fixture(scope="session")
def kafka_groups_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_oracle()
    with ApacheKafka(tmp_path_factory.mktemp("groups"), properties={**QUICK_GROUPS, **QUICK_NEXT_GROUPS}) as kafka:
        yield Server("kafka", kafka.bootstrap)


@pytest.fixture(scope="session")
def moldau_groups_server() -> Iterator[Server]:
    with Broker({**QUICK_GROUPS, **QUICK_NEXT_GROUPS}) as broker:
        yield Server("moldau", broker.bootstrap)


@pytest.fixture(params=["kafka", "moldau"])
def groups_server(request: pytest.FixtureRequest) -> Server:
    """A server whose groups notice lost members soon."""
    found: Server = request.getfixturevalue(f"{request.param}_groups_server")
    return found


# -- transactions ------------------------------------------------------------------------------------------------------

# Time-outs that a test can wait for.
QUICK_TRANSACTIONS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
# In both generations.
TRANSACTION_BROKERS = ("moldau", "kafka")


@pytest.fixture(scope="session")
def kafka_implicit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_oracle()
    with ApacheKafka(tmp_path_factory.mktemp("transactions"), properties=QUICK_TRANSACTIONS) as kafka:
        yield Server("kafka", kafka.bootstrap)


@pytest.fixture(scope="session")
def kafka_explicit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require_oracle()
    older = ("--feature", "transaction.version=1")
    directory = tmp_path_factory.mktemp("transactions")
    with ApacheKafka(directory, properties=QUICK_TRANSACTIONS, format_options=older) as kafka:
        yield Server("kafka", kafka.bootstrap)


@pytest.fixture(scope="session")
def moldau_implicit_server() -> Iterator[Server]:
    with Broker(QUICK_TRANSACTIONS) as broker:
        yield Server("moldau", broker.bootstrap)


@pytest.fixture(scope="session")
def moldau_explicit_server() -> Iterator[Server]:
    async def downgrade(bootstrap: str) -> None:
        async with ClusterClient(bootstrap) as client:
            await admin.update_features(
                client, {"transaction.version": 1}, upgrade_type=admin.UpgradeType.SAFE_DOWNGRADE
            )

    with Broker(QUICK_TRANSACTIONS) as broker:
        asyncio.run(downgrade(broker.bootstrap))
        yield Server("moldau", broker.bootstrap)


@pytest.fixture(params=[f"{broker}_{kind}" for broker in TRANSACTION_BROKERS for kind in ("implicit", "explicit")])
def transactions_server(request: pytest.FixtureRequest) -> Server:
    """transaction.version 2, where partitions join a transaction implicitly, and 1, where clients add them."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=[f"{broker}_implicit" for broker in TRANSACTION_BROKERS])
def implicit_server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=[f"{broker}_explicit" for broker in TRANSACTION_BROKERS])
def explicit_server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def place(transactions_server: Server, new_topic: Callable[[], str]) -> Place:
    return _place(transactions_server, new_topic())


@pytest.fixture
def implicit_place(implicit_server: Server, new_topic: Callable[[], str]) -> Place:
    return _place(implicit_server, new_topic())


@pytest.fixture
def explicit_place(explicit_server: Server, new_topic: Callable[[], str]) -> Place:
    return _place(explicit_server, new_topic())


def _place(server: Server, topic: str) -> Place:
    asyncio.run(make_topic(server.bootstrap, topic))
    return Place(server.bootstrap, topic)
