"""Snapshots bound the replay of the metadata log, in the background, and lose nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from moldau.protocol.messages.metadata import MetadataRequest
from moldau.testing import BrokerProcess
from tests.broker.test_produce_and_fetch import create
from tests.differential.wire import Wire

SECONDS_MAX = 20


def test_a_snapshot_is_written_when_enough_came_in_and_a_restart_reads_it() -> None:
    with BrokerProcess({"metadata.log.max.record.bytes.between.snapshots": "2000"}) as broker:
        wire = Wire(broker.bootstrap)
        names = [f"topic-{number}" for number in range(60)]
        for name in names:
            create(wire, name, **{"retention.ms": "12345"})
        log = Path(broker.data, "__cluster_metadata-0")
        deadline = time.monotonic() + SECONDS_MAX
        while "metadata_snapshot_written" not in broker.log:
            assert time.monotonic() < deadline
        assert len(list(log.glob("*.checkpoint"))) <= 3
        for end in (broker.kill, broker.stop):
            end()
            broker.start()
            answer: Any = Wire(broker.bootstrap).ask(MetadataRequest(topics=None), 12)
            assert sorted(topic.name for topic in answer.topics) == sorted(names)
            assert all(topic.partitions[0].leader_id == 1 for topic in answer.topics)
