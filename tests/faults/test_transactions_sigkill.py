"""SIGKILL in the middle of transactions: each is whole or absent with its offsets, and nobody ever saw otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import BrokerProcess, Outcome
from tests.faults.judged_load import RunningLoad, judge
from tests.faults.transactional_load import NUMBERS, PARTITIONS, SQUARES
from tests.oracle import ApacheKafka, require_oracle

# How often each broker is killed. Kafka shows that the load and the judge are right, and is left alive: after a kill,
# Kafka 4.3.1 now and then takes a commit that it had answered for complete without having written its markers. The
# records are then never visible, and readers wait at them for ever ("no end of" a partition here).
KILLS = {"moldau": 20, "apache-kafka": 0}
COMMITS_BETWEEN_KILLS = 15
COMMITS_AFTERWARDS = 100


class Killable(Protocol):
    bootstrap: str

    def start(self) -> object: ...
    def kill(self) -> None: ...


@pytest.fixture(params=KILLS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Killable]:
    node: Killable
    if request.param == "moldau":
        node = BrokerProcess(data=str(tmp_path / "data"))
    else:
        require_oracle()
        node = ApacheKafka(tmp_path / "kafka")
    node.start()
    yield node
    node.kill()


def test_every_transaction_is_whole_or_absent_though_the_broker_is_killed(
    broker: Killable, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (NUMBERS, SQUARES)]).values():
        future.result()
    load = RunningLoad(broker.bootstrap, tmp_path, seed)
    try:
        for _ in range(KILLS[request.node.callspec.params["broker"]]):
            load.wait_for_commits(load.commits() + COMMITS_BETWEEN_KILLS, dice)
            broker.kill()
            broker.start()
        load.wait_for_commits(load.commits() + COMMITS_AFTERWARDS, dice)
        history = load.finish()
    finally:
        load.kill()
    outcomes = judge(broker.bootstrap, history)
    print({outcome.value: count for outcome, count in outcomes.items()}, "transactions")
    assert outcomes[Outcome.OK] >= COMMITS_AFTERWARDS and outcomes[Outcome.FAIL] > 0
