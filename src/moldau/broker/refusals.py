"""Answers to requests that could not be handled at all, e.g. because the metadata log's disk is full.

A handler refuses item by item by itself; what is left for here is a refusal of the whole request, raised by what lies
below (the controller). Each message has its own place for errors, so this is a table of the APIs that change something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.kernel import KafkaError
from moldau.protocol.messages.registry import ApiKey, response_class


def refuse_request(key: int, request: Any, refusal: KafkaError) -> Any | None:
    """The answer that gives every item of the request this error; None where there is no place for one."""
    build = _BUILDERS.get(key)
    return None if build is None else build(response_class(key), request, refusal)


def _metadata(response: Any, request: Any, refusal: KafkaError) -> Any:
    topics = [
        response.MetadataResponseTopic(error_code=refusal.code, name=topic.name, topic_id=topic.topic_id)
        for topic in request.topics or ()
    ]
    return response(topics=topics)


def _create_topics(response: Any, request: Any, refusal: KafkaError) -> Any:
    return response(
        topics=[
            response.CreatableTopicResult(name=topic.name, error_code=refusal.code, error_message=refusal.message)
            for topic in request.topics
        ]
    )


def _delete_topics(response: Any, request: Any, refusal: KafkaError) -> Any:
    named = [(name, bytes(16)) for name in request.topic_names]
    named += [(topic.name, topic.topic_id) for topic in request.topics]
    return response(
        responses=[
            response.DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=refusal.code, error_message=refusal.message
            )
            for name, topic_id in named
        ]
    )


def _init_producer_id(response: Any, request: Any, refusal: KafkaError) -> Any:
    return response(error_code=refusal.code, producer_id=-1, producer_epoch=-1)


def _create_partitions(response: Any, request: Any, refusal: KafkaError) -> Any:
    return response(
        results=[
            response.CreatePartitionsTopicResult(topic.name, refusal.code, refusal.message) for topic in request.topics
        ]
    )


def _alter_configs(response: Any, request: Any, refusal: KafkaError) -> Any:
    return response(
        responses=[
            response.AlterConfigsResourceResponse(
                refusal.code, refusal.message, resource.resource_type, resource.resource_name
            )
            for resource in request.resources
        ]
    )


def _elect_leaders(response: Any, request: Any, refusal: KafkaError) -> Any:
    return response(
        replica_election_results=[
            response.ReplicaElectionResult(
                topic.topic,
                [response.PartitionResult(index, refusal.code, refusal.message) for index in topic.partitions],
            )
            for topic in request.topic_partitions or ()
        ]
    )


def _update_features(response: Any, request: Any, refusal: KafkaError) -> Any:
    return response(error_code=refusal.code, error_message=refusal.message)


_BUILDERS: dict[int, Callable[[Any, Any, KafkaError], Any]] = {
    ApiKey.METADATA: _metadata,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.UPDATE_FEATURES: _update_features,
}
