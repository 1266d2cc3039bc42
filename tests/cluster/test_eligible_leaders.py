"""KIP-966's conditions: one `min.insync.replicas` for all, and nobody eligible by a number that was changed."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.cluster import ELR_VERSION, MIN_IN_SYNC, MetadataImage, decide_incremental_alter_configs, pin_min_in_sync
from moldau.kernel import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord
from moldau.protocol.messages.metadata_records.topic_record import TopicRecord
from tests.cluster.kit import cluster, replayed

BROKER, TOPIC = 4, 2
SET, DELETE = 0, 1
ORDERS, USERS = b"o" * 16, b"u" * 16


def _config(kind: int, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=name, name=MIN_IN_SYNC, value=value)


@pytest.fixture
def image() -> MetadataImage:
    """Two topics, each with one eligible leader that is not in sync."""
    records: list[Any] = [FeatureLevelRecord(name=ELR_VERSION, feature_level=1), _config(BROKER, "", "2")]
    for name, topic_id in (("orders", ORDERS), ("users", USERS)):
        records.append(TopicRecord(name=name, topic_id=topic_id))
        records.append(
            PartitionRecord(
                0, topic_id, replicas=[1, 2], isr=[1], leader=1, directories=[bytes(16)] * 2,
                eligible_leader_replicas=[2],
            )
        )  # fmt: skip
    return replayed(cluster(), records)


def _alter(image: MetadataImage, kind: int, name: str, operation: int, value: str | None) -> tuple[int, MetadataImage]:
    kinds = IncrementalAlterConfigsRequest
    resource = kinds.AlterConfigsResource(kind, name, [kinds.AlterableConfig(MIN_IN_SYNC, operation, value)])
    decision = decide_incremental_alter_configs(image, kinds(resources=[resource]), None, lambda _key: 1)
    return decision.response.responses[0].error_code, replayed(image, decision.records)


def _eligible(image: MetadataImage) -> dict[str, tuple[int, ...]]:
    return {name: topic.partitions[0].elr for name, topic in image.topics.items()}


def test_turning_it_on_leaves_one_number_for_the_cluster() -> None:
    before = replayed(cluster(), [_config(BROKER, "1", "3"), _config(BROKER, "7", "2")])
    after = replayed(before, pin_min_in_sync(before, 2))
    assert after.config(BROKER, "") == {MIN_IN_SYNC: "2"}
    assert not after.config(BROKER, "1")
    assert not after.config(BROKER, "7")
    assert not pin_min_in_sync(after, 5)


def test_a_topics_new_number_forgets_who_was_eligible_there(image: MetadataImage) -> None:
    code, after = _alter(image, TOPIC, "orders", SET, "1")
    assert code == 0
    assert _eligible(after) == {"orders": (), "users": (2,)}


def test_a_new_number_for_all_forgets_who_was_eligible_anywhere(image: MetadataImage) -> None:
    code, after = _alter(image, BROKER, "", SET, "1")
    assert code == 0
    assert _eligible(after) == {"orders": (), "users": ()}


@pytest.mark.parametrize(("broker", "operation"), [("1", SET), ("1", DELETE), ("", DELETE)])
def test_no_broker_may_mean_another_number(image: MetadataImage, broker: str, operation: int) -> None:
    code, after = _alter(image, BROKER, broker, operation, "1" if operation == SET else None)
    assert code == ErrorCode.INVALID_CONFIG
    assert (after.configs, after.topics) == (image.configs, image.topics)
