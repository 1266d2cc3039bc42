"""Servers to test the client on: Apache Kafka, and Moldau's own broker where it is there."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from moldau.testing import Broker
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
