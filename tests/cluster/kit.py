"""Images to decide on, made the way brokers make them: from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moldau.cluster import (
    FENCE,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    SUPPORTED_FEATURES,
    UNFENCE,
    Endpoint,
    MetadataDelta,
    MetadataImage,
    TopicDecider,
    TopicDefaults,
    change_fencing,
    register_broker,
)
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.testing.dice import SeededDice

DIRECTORY = b"directory-of-all"
NODE = 1


def replayed(image: MetadataImage, records: Iterable[Any]) -> MetadataImage:
    delta = MetadataDelta(image)
    delta.replay_all(records)
    return delta.image(image.offset + 1, 1)


def cluster(*nodes: int, fenced: Sequence[int] = ()) -> MetadataImage:
    """Brokers that are registered and unfenced, but for `fenced`."""
    image = replayed(MetadataImage(), [FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_MAX)])
    for node_id in nodes or (NODE,):
        endpoint = Endpoint("PLAINTEXT", f"host{node_id}", 9092, 0)
        incarnation = bytes([node_id]) * 16
        record = register_broker(node_id, 100 + node_id, incarnation, [endpoint], SUPPORTED_FEATURES, None, [DIRECTORY])
        image = replayed(image, [record])
        image = replayed(image, [change_fencing(image, node_id, FENCE if node_id in fenced else UNFENCE)])
    return image


def decider(partitions: int = 1, factor: int = 1, seed: int = 0) -> TopicDecider:
    def describe(overrides: Mapping[str, str]) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
        return [CreateTopicsResponse.CreatableTopicConfigs(name, value) for name, value in overrides.items()]

    return TopicDecider(
        SeededDice(seed), lambda: TopicDefaults(partitions, factor), lambda replica: DIRECTORY, describe
    )


def topic(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    assignments: Mapping[int, list[int]] | None = None,
    configs: Mapping[str, str | None] | None = None,
) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name,
        partitions,
        factor,
        [CreateTopicsRequest.CreatableReplicaAssignment(*each) for each in (assignments or {}).items()],
        [CreateTopicsRequest.CreatableTopicConfig(*each) for each in (configs or {}).items()],
    )


def created(image: MetadataImage, *topics: CreateTopicsRequest.CreatableTopic, seed: int = 0) -> MetadataImage:
    decision = decider(seed=seed).create(image, CreateTopicsRequest(topics=list(topics)))
    assert all(result.error_code == 0 for result in decision.response.topics), decision.response
    return replayed(image, decision.records)
