"""Snapshots bound the replay of the metadata log, in the background, and lose nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from moldau.broker.controller import Controller
from moldau.broker.host import SystemClock, SystemDice, SystemDisk
from moldau.cluster import METADATA_VERSION_MAX, MetadataLog, VoterSet, checkpoint_name, voters_of, voters_record
from moldau.cluster.snapshot import KRAFT_VOTERS, read_snapshot
from moldau.consensus import Quorum, QuorumConfig, QuorumState, ReplicaKey, Voter, Voters
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
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


def test_a_snapshot_has_the_voters_of_its_moment(tmp_path: Path) -> None:
    """One that is appended while the snapshot is under way is not agreed, and lies behind it."""
    first, second = Voter(ReplicaKey(1, bytes([1]) * 16)), Voter(ReplicaKey(2, bytes([2]) * 16))

    async def main() -> None:
        lines: list[str] = []
        disk = SystemDisk()
        log = MetadataLog(disk, str(tmp_path), now_ms=0, say=lines.append)
        log.voters = VoterSet(1, voters_record(Voters.of([first])))
        quorum = Quorum(first.key, log, QuorumState(), Voters.of([first]), config=QuorumConfig(), dice=SystemDice())
        controller = Controller(
            log,
            quorum,
            log.load_snapshot(),
            clock=SystemClock(),
            loop=asyncio.get_running_loop(),
            publish=lambda delta, image: None,
            send=lambda to, request: None,
            on_leadership=lambda: None,
            snapshot_after_bytes=lambda: 1,
            say=lines.append,
            on_fault=lambda fault: None,
        )
        controller.start()
        await controller.wait_idle()
        agreed = controller.propose([FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION_MAX)])
        await agreed
        log.append_voters(Voters.of([first, second]), quorum.epoch, 0)
        await controller.wait_idle()
        assert log.snapshot is not None
        data = disk.read_file(f"{log.path}/{checkpoint_name(log.snapshot.end_offset, log.snapshot.epoch)}")
        _, controls = read_snapshot(data)
        assert [voters_of(each).ids for kind, each in controls if kind == KRAFT_VOTERS] == [(1,)]
        controller.close()

    asyncio.run(main())
