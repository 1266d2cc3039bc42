"""Records make images, images make records: the same image comes back, whichever way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.cluster import (
    METADATA_VERSION,
    ConfigKind,
    ConfigResource,
    MetadataDelta,
    MetadataImage,
    VoterSet,
    checkpoint_name,
    image_records,
    parse_checkpoint_name,
    register_controller,
    write_snapshot,
)
from moldau.cluster.features import SUPPORTED, record_version
from moldau.cluster.image import Endpoint
from moldau.cluster.snapshot import read_batches
from moldau.protocol.messages.metadata_records.access_control_entry_record import AccessControlEntryRecord
from moldau.protocol.messages.metadata_records.broker_registration_change_record import BrokerRegistrationChangeRecord
from moldau.protocol.messages.metadata_records.clear_elr_record import ClearElrRecord
from moldau.protocol.messages.metadata_records.client_quota_record import ClientQuotaRecord
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord
from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord
from moldau.protocol.messages.metadata_records.producer_ids_record import ProducerIdsRecord
from moldau.protocol.messages.metadata_records.remove_access_control_entry_record import RemoveAccessControlEntryRecord
from moldau.protocol.messages.metadata_records.remove_topic_record import RemoveTopicRecord
from moldau.protocol.messages.metadata_records.topic_record import TopicRecord
from moldau.protocol.messages.metadata_records.unregister_broker_record import UnregisterBrokerRecord
from moldau.protocol.metadata_records import UnknownMetadataRecord, decode_metadata_record, encode_metadata_record
from tests.cluster.kit import cluster, created, replayed, topic


def everything() -> MetadataImage:
    """An image with something of each kind."""
    image = created(cluster(1, 2, 3, fenced=[3]), topic("a", 3, 2, configs={"retention.ms": "5"}), topic("b"))
    topic_id = image.topics["a"].id
    acl = AccessControlEntryRecord(id=b"acl-of-16-bytes!", resource_type=2, resource_name="a", pattern_type=3)
    quota = ClientQuotaRecord(
        entity=[ClientQuotaRecord.EntityData("user", None), ClientQuotaRecord.EntityData("client-id", "c")],
        key="producer_byte_rate",
        value=1024.0,
    )
    records = [
        PartitionChangeRecord(partition_id=1, topic_id=topic_id, leader=-1, isr=[], eligible_leader_replicas=[2]),
        PartitionChangeRecord(partition_id=2, topic_id=topic_id, removing_replicas=[1], adding_replicas=[3]),
        ConfigRecord(resource_type=ConfigKind.BROKER, resource_name="", name="log.retention.ms", value="9"),
        ConfigRecord(resource_type=ConfigKind.GROUP, resource_name="g", name="consumer.session.timeout.ms", value="1"),
        ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=3000),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
        BrokerRegistrationChangeRecord(broker_id=2, in_controlled_shutdown=1, cordoned_log_dirs=[b"directory-of-all"]),
        register_controller(1, b"incarnation-of-1", [Endpoint("CONTROLLER", "h", 9093, 0)], SUPPORTED),
        acl,
        quota,
        UnknownMetadataRecord(99, 0, b"of a newer Kafka"),
    ]
    return replayed(image, records)


def test_an_image_becomes_records_and_the_same_image_again() -> None:
    image = everything()
    again = MetadataDelta(MetadataImage())
    again.replay_all(image_records(image))
    assert again.image(image.offset, image.epoch) == image


def test_a_snapshot_holds_the_whole_image() -> None:
    image = everything()
    level = image.features[METADATA_VERSION]
    data = write_snapshot(image_records(image), level, VoterSet(), epoch=image.epoch, now_ms=5)
    delta = MetadataDelta(MetadataImage())
    for _, _, _, records, _ in read_batches(data):
        delta.replay_all(records)
    assert delta.image(image.offset, image.epoch) == image


def test_records_are_written_in_the_version_that_the_metadata_version_allows() -> None:
    image = created(cluster(), topic("a"))
    for level, versions in ((30, {0: 4, 3: 2}), (22, {0: 3, 3: 1}), (14, {0: 2, 3: 0}), (7, {0: 1, 3: 0})):
        for record in image_records(image):
            if record.API_KEY in versions:
                assert record_version(record, level) == versions[record.API_KEY]


@pytest.mark.parametrize("name", ("00000000000000000007-0000000003.checkpoint",))
def test_names_of_snapshots(name: str) -> None:
    assert checkpoint_name(7, 3) == name
    assert parse_checkpoint_name(name) == (7, 3)
    for other in ("bootstrap.checkpoint", "00000000000000000007.log", name + ".part", "x" + name[1:], "quorum-state"):
        assert parse_checkpoint_name(other) is None


# -- deltas ------------------------------------------------------------------------------------------------------------


def test_a_delta_leaves_the_image_that_it_starts_from_alone() -> None:
    image = everything()
    before = list(image_records(image))
    delta = MetadataDelta(image)
    delta.replay(RemoveTopicRecord(topic_id=image.topics["a"].id))
    delta.replay(ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value=None))
    delta.replay(UnregisterBrokerRecord(broker_id=3))
    delta.replay(RemoveAccessControlEntryRecord(id=b"acl-of-16-bytes!"))
    after = delta.image(image.offset + 1, 1)
    assert list(image_records(image)) == before
    assert "a" not in after.topics and ConfigResource(ConfigKind.TOPIC, "a") not in after.configs
    assert after.config(ConfigKind.BROKER, "") == {}
    assert set(after.brokers) == {1, 2}
    assert ("acl", b"acl-of-16-bytes!") not in after.kept


def test_what_did_not_change_is_shared() -> None:
    image = everything()
    after = replayed(image, [ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=4000)])
    assert after.topics is image.topics
    assert after.configs is image.configs
    assert after.brokers is image.brokers
    assert after.next_producer_id == 4000


def test_a_change_of_leader_raises_the_epoch_and_others_do_not() -> None:
    image = created(cluster(1, 2), topic("t", -1, -1, assignments={0: [1, 2]}))
    topic_id = image.topics["t"].id
    shrink = PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=[1])
    shrunk = replayed(image, [shrink]).topics["t"].partitions[0]
    assert (shrunk.isr, shrunk.leader_epoch, shrunk.partition_epoch) == ((1,), 0, 1)
    elect = PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=1)
    same = replayed(image, [elect]).topics["t"].partitions[0]
    assert (same.leader, same.leader_epoch, same.partition_epoch) == (1, 1, 1)


def test_clearing_eligible_replicas_reaches_topics_of_the_same_replay() -> None:
    topic_id = b"a topic's own id"
    records: list[Any] = [
        TopicRecord(name="t", topic_id=topic_id),
        PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], leader=-1, eligible_leader_replicas=[1]),
    ]
    for clear in (ClearElrRecord(topic_name="t"), ClearElrRecord()):
        for base, rest in ((MetadataImage(), [*records, clear]), (replayed(MetadataImage(), records), [clear])):
            assert replayed(base, rest).topics["t"].partitions[0].elr == ()
    other = replayed(MetadataImage(), [*records, ClearElrRecord(topic_name="u")])
    assert other.topics["t"].partitions[0].elr == (1,)


def test_a_record_about_what_nobody_made_is_damage() -> None:
    for record in (
        PartitionChangeRecord(partition_id=0, topic_id=bytes(16)),
        RemoveTopicRecord(topic_id=bytes(16)),
        BrokerRegistrationChangeRecord(broker_id=9, fenced=1),
    ):
        with pytest.raises(ValueError, match="metadata record for"):
            replayed(cluster(), [record])


def test_a_topic_that_is_deleted_and_made_again_in_one_replay_is_the_new_one() -> None:
    image = created(cluster(), topic("t", configs={"retention.ms": "5"}))
    again = [
        RemoveTopicRecord(topic_id=image.topics["t"].id),
        TopicRecord(name="t", topic_id=b"another topic id"),
        PartitionRecord(partition_id=0, topic_id=b"another topic id", replicas=[1], isr=[1], leader=1),
    ]
    after = replayed(image, again)
    assert after.topics["t"].id == b"another topic id"
    assert after.topic_names == {b"another topic id": "t"}
    assert after.config(ConfigKind.TOPIC, "t") == {}


# -- any history -------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["create", "delete", "config", "unset", "lead", "ids"]), st.integers(0, 4)), max_size=40
)


def _history(moves: list[tuple[str, int]]) -> list[list[Any]]:
    """Batches of records that a controller could have written."""
    image = cluster()
    batches: list[list[Any]] = [list(image_records(image))]
    for number, (move, which) in enumerate(moves):
        name = f"t{which}"
        batch: list[Any] = []
        known = image.topics.get(name)
        if move == "create" and known is None:
            new = created(image, topic(name, which + 1), seed=number).topics[name]
            batch = [TopicRecord(name=name, topic_id=new.id)]
            batch += [
                PartitionRecord(
                    partition_id=index,
                    topic_id=new.id,
                    replicas=[1],
                    isr=[1],
                    leader=1,
                    directories=list(each.directories),
                )
                for index, each in enumerate(new.partitions)
            ]
        elif move == "delete" and known is not None:
            batch = [RemoveTopicRecord(topic_id=known.id)]
        elif move in ("config", "unset") and known is not None:
            value = str(number) if move == "config" else None
            batch = [ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value=value)]
        elif move == "lead" and known is not None:
            batch = [PartitionChangeRecord(partition_id=0, topic_id=known.id, leader=1)]
        elif move == "ids":
            batch = [ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000 * number)]
        if batch:
            image = replayed(image, batch)
            batches.append(batch)
    return batches


@settings(max_examples=60, deadline=None)
@given(steps)
def test_replay_at_once_step_by_step_and_through_a_snapshot_agree(moves: list[tuple[str, int]]) -> None:
    batches = _history(moves)
    step_by_step = MetadataImage()
    for batch in batches:
        step_by_step = replayed(step_by_step, batch)
    at_once = MetadataDelta(MetadataImage())
    at_once.replay_all(record for batch in batches for record in batch)
    assert at_once.image(step_by_step.offset, 1) == step_by_step
    through_snapshot = MetadataDelta(MetadataImage())
    through_snapshot.replay_all(
        decode_metadata_record(encode_metadata_record(record, record_version(record, 30)))[0]
        for record in image_records(step_by_step)
    )
    assert through_snapshot.image(step_by_step.offset, 1) == step_by_step
