"""The metadata log on a disk: what was appended is replayed, from the start or from the newest snapshot on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moldau.cluster import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    MetadataImage,
    MetadataLog,
    MetadataLogError,
    VoterSet,
)
from moldau.consensus import EpochEnd, QuorumState
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.metadata_records.abort_transaction_record import AbortTransactionRecord
from moldau.protocol.messages.metadata_records.begin_transaction_record import BeginTransactionRecord
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord
from moldau.protocol.messages.metadata_records.end_transaction_record import EndTransactionRecord
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.protocol.messages.metadata_records.no_op_record import NoOpRecord
from moldau.protocol.messages.raft.voters_record import VotersRecord
from moldau.protocol.metadata_records import UnknownMetadataRecord
from moldau.testing import Broker
from moldau.testing.dice import SeededDice
from moldau.testing.disk import SimulatedDisk
from tests.differential.wire import Wire

NOW_MS = 1_700_000_000_000
BASE = "/data"


def _set(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=4, resource_name="", name=name, value=value)


class Store:
    """A log on a simulated disk, opened again and again."""

    def __init__(self) -> None:
        self.disk: Any = SimulatedDisk(SeededDice(1))
        self.disk.make_directories(BASE)
        self.said: list[str] = []
        self.log = self._open()
        self.log.append([FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_MAX)], 30, 1, NOW_MS)

    def _open(self) -> MetadataLog:
        return MetadataLog(self.disk, BASE, now_ms=NOW_MS, say=self.said.append)

    def append(self, *records: Any, epoch: int = 1) -> None:
        self.log.append(records, METADATA_VERSION_MAX, epoch, NOW_MS)

    def reopened(self) -> MetadataImage:
        self.log.close(NOW_MS)
        self.log = self._open()
        return self.log.load()

    def snapshot(self, image: MetadataImage) -> None:
        self.log.note_snapshot(image, self.log.write_snapshot(image, self.log.voters, NOW_MS))

    def install_of(self, leader: Store) -> EpochEnd:
        """The leader makes a snapshot of all that it has, which comes here whole."""
        leader.snapshot(leader.reopened())
        newest = leader.log.snapshot
        assert newest is not None
        found = leader.log.read_snapshot_bytes(newest, 0, 1 << 20)
        assert found is not None
        self.log.install_snapshot(newest, found[1])
        return newest


def _configs(image: MetadataImage) -> dict[str, str]:
    return dict(image.config(4, ""))


def test_what_was_appended_is_replayed_with_offset_and_epoch() -> None:
    store = Store()
    store.append(_set("a", "1"), _set("b", "2"), epoch=1)
    store.append(_set("a", "3"), _set("b", None), epoch=4)
    image = store.reopened()
    assert _configs(image) == {"a": "3"}
    assert (image.offset, image.epoch) == (4, 4)


def test_records_of_a_transaction_count_together_or_not_at_all() -> None:
    store = Store()
    store.append(BeginTransactionRecord(name="kept"), _set("a", "1"))
    store.append(_set("b", "2"), EndTransactionRecord())
    store.append(BeginTransactionRecord(name="dropped"))
    store.append(_set("a", "9"), _set("c", "9"))
    store.append(AbortTransactionRecord(reason="changed my mind"), _set("d", "4"))
    assert _configs(store.reopened()) == {"a": "1", "b": "2", "d": "4"}
    assert not store.log.is_transaction_open


def test_a_transaction_that_was_never_ended_is_told() -> None:
    store = Store()
    store.append(_set("a", "1"))
    store.append(BeginTransactionRecord(name="torn"), _set("a", "9"))
    assert _configs(store.reopened()) == {"a": "1"}
    assert store.log.is_transaction_open
    store.append(AbortTransactionRecord(reason="the controller was restarted"), _set("b", "2"))
    assert _configs(store.reopened()) == {"a": "1", "b": "2"}


def test_kinds_of_a_newer_kafka_survive_replay_and_snapshot() -> None:
    store = Store()
    newer = UnknownMetadataRecord(200, 7, b"news")
    store.append(_set("a", "1"), NoOpRecord(), newer)
    store.append(_set("b", "2"))
    image = store.reopened()
    assert _configs(image) == {"a": "1", "b": "2"}
    assert list(image.kept.values()) == [newer]
    store.snapshot(image)
    assert list(store.reopened().kept.values()) == [newer]


def test_a_snapshot_bounds_the_replay_and_loses_nothing() -> None:
    store = Store()
    for number in range(30):
        store.append(_set(f"k{number % 7}", str(number)))
    image = store.reopened()
    all_bytes = store.log.bytes_since_snapshot
    store.snapshot(image)
    assert store.log.log.start_offset == image.offset + 1
    store.append(_set("after", "1"))
    again = store.reopened()
    assert _configs(again) == {**_configs(image), "after": "1"}
    assert again.offset == image.offset + 1
    assert 0 < store.log.bytes_since_snapshot < all_bytes / 10
    assert any(line.startswith("metadata_snapshot_written") for line in store.said)


def test_the_two_newest_snapshots_are_kept() -> None:
    store = Store()
    for number in range(4):
        store.append(_set("a", str(number)))
        store.snapshot(store.reopened())
    names = [name for name in store.disk.list(store.log.path) if name.endswith(".checkpoint")]
    assert sorted(names) == [f"{end:020d}-0000000001.checkpoint" for end in (4, 5)]
    assert _configs(store.reopened()) == {"a": "3"}


def test_voters_come_back_with_a_snapshot() -> None:
    store = Store()
    voters = VotersRecord(voters=[VotersRecord.Voter(voter_id=1, voter_directory_id=b"directory-of-all")])
    image = store.reopened()
    store.log.voters = VoterSet(1, voters)
    store.snapshot(image)
    store.reopened()
    assert store.log.voters == VoterSet(1, voters)


@pytest.mark.parametrize("kraft_version", (0, 1))
def test_the_vote_is_read_back(kraft_version: int) -> None:
    store = Store()
    store.log.voters = VoterSet(kraft_version)
    directory_id = b"directory-of-all" if kraft_version else bytes(16)
    state = QuorumState(epoch=7, leader_id=1, voted_id=1, voted_directory_id=directory_id)
    store.log.write_quorum_state(state, [1])
    assert store.log.read_quorum_state() == state
    written = json.loads(store.disk.read_file(f"{store.log.path}/quorum-state"))
    assert written["data_version"] == kraft_version


def test_a_damaged_vote_is_not_guessed() -> None:
    store = Store()
    store.disk.replace_file(f"{store.log.path}/quorum-state", b'{"leaderId":1')
    with pytest.raises(ValueError, match="is damaged"):
        store.log.read_quorum_state()


def test_a_broker_aborts_a_transaction_that_it_finds_open() -> None:
    with Broker() as broker:
        assert broker.node is not None
        log = broker.node.controller.log
        log.append([BeginTransactionRecord(name="torn"), _set("log.retention.ms", "9")], 30, 9, NOW_MS)
        broker.stop()
        broker.start()
        wire: Any = Wire(broker.bootstrap)
        topic = CreateTopicsRequest.CreatableTopic("after", 1, 1)
        assert wire.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code == 0
        wire.close()
        broker.stop()
        broker.start()  # and replays what the transaction would have swallowed
        assert broker.node is not None
        assert set(broker.node.image.topics) == {"after"}
        assert dict(broker.node.image.config(4, "")) == {"min.insync.replicas": "1"}  # as of every new cluster


def _damage_newest(store: Store, cut: int) -> str:
    """Cut the newest snapshot short, or flip a bit where `cut` is 0; its path."""
    name = max(name for name in store.disk.list(store.log.path) if name.endswith(".checkpoint"))
    path = f"{store.log.path}/{name}"
    data = bytearray(store.disk.read_file(path))
    if cut:
        del data[-cut:]
    else:
        data[len(data) // 2] ^= 1
    store.disk.replace_file(path, bytes(data))
    return path


def test_a_snapshot_that_came_from_the_leader_meanwhile_is_the_newer_one() -> None:
    store, leader = Store(), Store()
    store.append(_set("a", "1"))
    image = store.reopened()
    size = store.log.write_snapshot(image, store.log.voters, NOW_MS)
    for number in range(5):
        leader.append(_set("a", str(number)), epoch=2)
    newest = store.install_of(leader)
    store.log.note_snapshot(image, size)
    assert store.log.snapshot == store.log.first_snapshot == newest
    assert store.log.last_epoch == 2
    for _ in range(2):
        store.append(_set("b", "1"), epoch=2)
        store.snapshot(store.log.load())
    assert _configs(store.reopened()) == {"a": "4", "b": "1"}


def test_only_snapshots_from_which_the_log_goes_on_are_shown_to_others() -> None:
    store, leader = Store(), Store()
    store.snapshot(store.reopened())
    leader.append(_set("a", "1"), epoch=2)
    newest = store.install_of(leader)
    assert store.log.first_snapshot == newest
    store.reopened()
    assert store.log.first_snapshot == newest


def test_a_log_whose_checkpoint_is_missing_is_refused() -> None:
    store = Store()
    for _ in range(3):
        store.append(_set("a", "1"))
        store.snapshot(store.reopened())
        store.log.log.roll(NOW_MS)
    for name in store.disk.list(store.log.path):
        if name.endswith(".checkpoint"):
            store.disk.remove(f"{store.log.path}/{name}")
    with pytest.raises(MetadataLogError, match="the checkpoint before it is missing"):
        store.reopened()


FOOTER_BYTES = 78


@pytest.mark.parametrize("cut", (0, 1, FOOTER_BYTES))
def test_the_older_snapshot_and_the_log_stand_in_for_a_damaged_one(cut: int) -> None:
    store = Store()
    for number in range(3):
        store.append(_set("a", str(number)), _set(f"k{number}", "x"))
        store.snapshot(store.reopened())
    store.append(_set("after", "1"))
    before = store.reopened()
    path = _damage_newest(store, cut)
    after = store.reopened()
    assert (_configs(after), after.offset) == (_configs(before), before.offset)
    assert any(line.startswith(f"metadata_snapshot_damaged path={path}") for line in store.said)
    assert store.disk.exists(path + ".damaged") and not store.disk.exists(path)
    assert _configs(store.reopened()) == _configs(before)


def test_a_damaged_snapshot_that_nothing_stands_in_for_is_refused_and_left_alone() -> None:
    store = Store()
    store.log.voters = VoterSet(1, VotersRecord(voters=[VotersRecord.Voter(voter_id=1)]))
    store.log.write_quorum_state(QuorumState(epoch=1), [1])
    store.append(_set("a", "1"))
    image = store.log.load()
    store.snapshot(image)
    path = _damage_newest(store, 1)
    with pytest.raises(MetadataLogError, match=r"checkpoint is damaged, and neither"):
        store.reopened()
    assert store.disk.exists(path)


def test_a_log_of_a_newer_kafka_is_refused_before_its_records_are_read() -> None:
    store = Store()
    store.append(FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_MAX + 1))
    store.append(UnknownMetadataRecord(3, 9, b"whatever"))
    with pytest.raises(MetadataLogError, match=f"metadata.version {METADATA_VERSION_MAX + 1}, newer than"):
        store.reopened()
