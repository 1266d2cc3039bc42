"""One broker for all clients of a run, as the process that a user would start."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from moldau.testing import BrokerProcess
from tests.clients.peers import PEERS, JavaPeer, KafkajsPeer, Peer


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    """Whatever the clients did, the broker never met a bug of its own."""
    with BrokerProcess({"group.min.session.timeout.ms": "1000"}) as process:
        yield process
        assert "Traceback" not in process.log, process.log[-4000:]


@pytest.fixture(scope="session")
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap


_numbers = itertools.count()


@pytest.fixture
def new_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Names that no other test uses."""
    base = "".join(c if c.isalnum() else "-" for c in request.node.originalname)[:80]
    return lambda: f"{base}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def peer(bootstrap: str) -> Iterator[Callable[[str], Peer]]:
    """A client by its name, started when first asked for."""
    started: dict[str, Peer] = {}

    def get(name: str) -> Peer:
        if name not in started:
            started[name] = PEERS[name](bootstrap)
        return started[name]

    yield get
    for one in started.values():
        one.close()


@pytest.fixture
def java(peer: Callable[[str], Peer]) -> JavaPeer:
    found = peer("java")
    assert isinstance(found, JavaPeer)
    return found


@pytest.fixture
def kafkajs(peer: Callable[[str], Peer]) -> KafkajsPeer:
    found = peer("kafkajs")
    assert isinstance(found, KafkajsPeer)
    return found
