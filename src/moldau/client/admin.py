"""One function per verb of administration: plain values in and out, `KafkaError` when a broker refuses.

Only what tools need; every function takes the `ClusterClient` first. Verbs that change something are not repeated after
a fault that may have come after the change (see `ClusterClient.to_controller`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from moldau.client.cluster import LEADER_ERRORS, ClusterClient
from moldau.client.metadata import Node, PartitionInfo, TopicInfo
from moldau.kernel import METADATA_TOPIC, ErrorCode, KafkaError, TopicPartition, uuid_text

ADMIN_TIMEOUT_MS = 30_000
# New topics are usable at once, or somebody is down; who made them need not wait for that.
USABLE_SECONDS_MAX = 5.0

# Timestamps with a meaning in ListOffsets.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    UNKNOWN = 0
    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class AlterOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class TopicListing:
    name: str
    topic_id: str
    is_internal: bool
    partition_count: int


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    topic_id: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    config_type: int
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of a config; `value` is unused by DELETE."""

    name: str
    value: str | None = None
    operation: AlterOperation = AlterOperation.SET


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """Offset -1: the partition has no such record."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]
    fenced: frozenset[int]


@dataclass(frozen=True, slots=True)
class Feature:
    """Supported range by the broker asked, and the finalized level of the cluster (0: not finalized)."""

    name: str
    supported_min: int
    supported_max: int
    finalized: int


@dataclass(frozen=True, slots=True)
class ReplicaOnDisk:
    partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    broker: int
    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaOnDisk, ...]


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    id: int
    directory_id: str
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int


@dataclass(frozen=True, slots=True)
class Quorum:
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


# -- topics ------------------------------------------------------------------------------------------------------------


async def list_topics(client: ClusterClient) -> list[TopicListing]:
    """All topics, by name."""
    metadata = await client.metadata(None)
    return [
        TopicListing(topic.name, uuid_text(topic.topic_id), topic.is_internal, len(topic.partitions))
        for _, topic in sorted(metadata.topics.items())
    ]


async def describe_topics(client: ClusterClient, names: Iterable[str]) -> list[TopicInfo]:
    """Topics with partitions, leaders and replicas, in the order asked; one that does not exist is an error."""
    asked = list(names)

    async def attempt() -> list[TopicInfo]:
        metadata = await client.metadata(asked)
        for name in asked:
            topic = metadata.topics.get(name)
            if topic is None or topic.error:
                code = topic.error if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                unknown = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                raise KafkaError(code, f"topic {name!r}: " + ("it does not exist" if unknown else code.name))
        return [metadata.topics[name] for name in asked]

    return await client.retry(attempt)


async def create_topics(
    client: ClusterClient,
    names: str | Iterable[str],
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
    validate_only: bool = False,
    timeout_ms: int = ADMIN_TIMEOUT_MS,
) -> list[CreatedTopic]:
    """Create topics alike; -1 means the broker's default. `assignments` maps partitions to brokers and replaces both
    counts. Who has the answer can use them."""
    from moldau.protocol.messages.create_topics import CreateTopicsRequest

    placed = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition, list(brokers))
        for partition, brokers in (assignments or {}).items()
    ]
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name,
                -1 if placed else partitions,
                -1 if placed else replication_factor,
                placed,
                [CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in (configs or {}).items()],
            )
            for name in _names(names)
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    response = await client.to_controller(request)
    for topic in response.topics:
        _check(topic.error_code, topic.error_message, f"topic {topic.name!r}")
    if not validate_only:
        await _wait_usable(client, [topic.name for topic in response.topics])
    return [
        CreatedTopic(
            topic.name,
            uuid_text(topic.topic_id),
            topic.num_partitions,
            topic.replication_factor,
            {config.name: config.value for config in topic.configs or ()},
        )
        for topic in response.topics
    ]


async def _wait_usable(client: ClusterClient, names: Sequence[str]) -> None:
    """Apache Kafka answers when its controller has decided. Its brokers may not have heard of it yet, and whoever
    produces before the logs are open has batches overtake one another. Whether they may be asked, or take too long,
    changes nothing about what is decided."""
    with suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(USABLE_SECONDS_MAX):
            topics = await describe_topics(client, names)
            everything = [TopicPartition(topic.name, each.partition) for topic in topics for each in topic.partitions]
            await list_offsets(client, dict.fromkeys(everything, LATEST))


async def delete_topics(
    client: ClusterClient, names: str | Iterable[str], *, timeout_ms: int = ADMIN_TIMEOUT_MS
) -> None:
    from moldau.protocol.messages.delete_topics import DeleteTopicsRequest

    asked = _names(names)
    connection = await client.any_connection()
    if connection.version_for(DeleteTopicsRequest.API_KEY) >= 6:
        topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in asked]
        request = DeleteTopicsRequest(topics=topics, timeout_ms=timeout_ms)
    else:
        request = DeleteTopicsRequest(topic_names=asked, timeout_ms=timeout_ms)
    response = await client.to_controller(request)
    for name in asked:
        client.topics.pop(name, None)
    for topic in response.responses:
        _check(topic.error_code, topic.error_message, f"topic {topic.name!r}")


async def create_partitions(
    client: ClusterClient,
    topic: str,
    count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
    timeout_ms: int = ADMIN_TIMEOUT_MS,
) -> None:
    """Grow a topic to `count` partitions; `assignments` lists the brokers of each new one."""
    from moldau.protocol.messages.create_partitions import CreatePartitionsRequest

    placed = None
    if assignments is not None:
        placed = [CreatePartitionsRequest.CreatePartitionsAssignment(list(brokers)) for brokers in assignments]
    request = CreatePartitionsRequest(
        [CreatePartitionsRequest.CreatePartitionsTopic(topic, count, placed)], timeout_ms, validate_only
    )
    response = await client.to_controller(request)
    for result in response.results:
        _check(result.error_code, result.error_message, f"topic {result.name!r}")


# -- records and offsets -----------------------------------------------------------------------------------------------


async def delete_records(
    client: ClusterClient, before: Mapping[TopicPartition, int], *, timeout_ms: int = ADMIN_TIMEOUT_MS
) -> dict[TopicPartition, int]:
    """Delete the records before each offset (-1: all of them). Returns the new log start offsets."""
    from moldau.protocol.messages.delete_records import DeleteRecordsRequest

    def build(asked: list[PartitionInfo]) -> Any:
        return DeleteRecordsRequest(
            [
                DeleteRecordsRequest.DeleteRecordsTopic(
                    topic,
                    [
                        DeleteRecordsRequest.DeleteRecordsPartition(
                            one.partition, before[TopicPartition(topic, one.partition)]
                        )
                        for one in infos
                    ],
                )
                for topic, infos in infos_by_topic(asked)
            ],
            timeout_ms,
        )

    answers = await to_leaders(client, before, build)
    return {where: answer.low_watermark for where, answer in answers.items()}


async def list_offsets(
    client: ClusterClient,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, ListedOffset]:
    """The first offset at or after each timestamp (ms), or EARLIEST, LATEST and the other special ones."""
    from moldau.protocol.messages.list_offsets import ListOffsetsRequest

    def build(asked: list[PartitionInfo]) -> Any:
        return ListOffsetsRequest(
            -1,
            int(isolation_level),
            [
                ListOffsetsRequest.ListOffsetsTopic(
                    topic,
                    [
                        ListOffsetsRequest.ListOffsetsPartition(
                            one.partition, one.leader_epoch, timestamps[TopicPartition(topic, one.partition)]
                        )
                        for one in infos
                    ],
                )
                for topic, infos in infos_by_topic(asked)
            ],
        )

    answers = await to_leaders(client, timestamps, build)
    return {
        where: ListedOffset(answer.offset, answer.timestamp, answer.leader_epoch) for where, answer in answers.items()
    }


async def to_leaders(
    client: ClusterClient, partitions: Iterable[TopicPartition], build: Any
) -> dict[TopicPartition, Any]:
    """One request per leader; what a moved leader refuses is asked again. All answers, or the first refusal."""
    left = list(dict.fromkeys(partitions))
    answers: dict[TopicPartition, Any] = {}

    async def ask(leader: int, infos: list[PartitionInfo]) -> Any:
        return await (await client.connection_to(leader)).request(build(infos))

    async def attempt() -> None:
        by_leader: dict[int, list[PartitionInfo]] = defaultdict(list)
        for where in left:
            info = await client.partition(where.topic, where.partition)
            by_leader[info.leader].append(info)
        responses = await asyncio.gather(
            *(ask(leader, infos) for leader, infos in by_leader.items()), return_exceptions=True
        )
        failure: BaseException | None = None
        for response in responses:
            if isinstance(response, BaseException):
                failure = response
                continue
            for topic in response.topics:
                for answer in topic.partitions:
                    where = TopicPartition(topic.name, answer.partition_index)
                    if answer.error_code:
                        code = ErrorCode(answer.error_code)
                        failure = KafkaError(code, f"{where}: {code.name}")
                    else:
                        answers[where] = answer
                        left.remove(where)
        if failure is not None:
            if not isinstance(failure, KafkaError) or failure.code in LEADER_ERRORS:
                client.invalidate({where.topic for where in left})
            raise failure

    await client.retry(attempt)
    return answers


# -- configs -----------------------------------------------------------------------------------------------------------


async def describe_configs(
    client: ClusterClient,
    resource_type: ResourceType,
    resource_name: str,
    keys: Sequence[str] | None = None,
    *,
    include_documentation: bool = False,
) -> list[ConfigEntry]:
    """A resource's configs, all of them or the given keys, by name. A broker's are asked of that broker."""
    from moldau.protocol.messages.describe_configs import DescribeConfigsRequest

    request = DescribeConfigsRequest(
        [
            DescribeConfigsRequest.DescribeConfigsResource(
                int(resource_type), resource_name, None if keys is None else list(keys)
            )
        ],
        include_synonyms=True,
        include_documentation=include_documentation,
    )

    async def attempt() -> Any:
        node = _broker_of(resource_type, resource_name)
        connection = await (client.any_connection() if node is None else client.connection_to(node))
        response = await connection.request(request)
        for result in response.results:
            _check(result.error_code, result.error_message, f"{resource_type.name.lower()} {resource_name!r}")
        return response

    response = await client.retry(attempt)
    return sorted(
        (_config_entry(config) for result in response.results for config in result.configs),
        key=lambda entry: entry.name,
    )


async def incremental_alter_configs(
    client: ClusterClient,
    resource_type: ResourceType,
    resource_name: str,
    alterations: Sequence[Alteration],
    *,
    validate_only: bool = False,
) -> None:
    from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest

    request = IncrementalAlterConfigsRequest(
        [
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                int(resource_type),
                resource_name,
                [
                    IncrementalAlterConfigsRequest.AlterableConfig(one.name, int(one.operation), one.value)
                    for one in alterations
                ],
            )
        ],
        validate_only,
    )
    node = _broker_of(resource_type, resource_name)
    response = await (client.to_controller(request) if node is None else client.to_node(node, request))
    for result in response.responses:
        _check(result.error_code, result.error_message, f"{resource_type.name.lower()} {resource_name!r}")


def _broker_of(resource_type: ResourceType, resource_name: str) -> int | None:
    """Who must be asked: a broker's own settings are known to itself; the name '' is the default of all brokers."""
    if resource_type not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) or not resource_name:
        return None
    try:
        return int(resource_name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {resource_name!r} is not a broker id") from None


def _config_entry(config: Any) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        _source(config.config_source),
        config.read_only,
        config.is_sensitive,
        config.config_type,
        config.documentation or None,
        tuple(ConfigSynonym(one.name, one.value, _source(one.source)) for one in config.synonyms),
    )


def _source(number: int) -> ConfigSource:
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


# -- the cluster -------------------------------------------------------------------------------------------------------


async def describe_cluster(client: ClusterClient) -> ClusterDescription:
    from moldau.protocol.messages.describe_cluster import DescribeClusterRequest

    connection = await client.any_connection()
    # Brokers that are registered and fenced are told of from version 2 on.
    request = DescribeClusterRequest(
        include_fenced_brokers=connection.version_for(DescribeClusterRequest.API_KEY) >= 2,
    )
    response = await client.to_any(request)
    _check(response.error_code, response.error_message, "the cluster")
    nodes = sorted(response.brokers, key=lambda broker: broker.broker_id)
    return ClusterDescription(
        response.cluster_id,
        response.controller_id,
        tuple(Node(node.broker_id, node.host, node.port, node.rack) for node in nodes),
        frozenset(node.broker_id for node in nodes if node.is_fenced),
    )


async def describe_features(client: ClusterClient) -> list[Feature]:
    """Features by name, as a broker shows them now."""
    from moldau.protocol.messages.api_versions import ApiVersionsRequest

    # Asked anew: what a connection learned when it was opened may be old.
    connection = await client.any_connection()
    request = ApiVersionsRequest("moldau", "0.1.0")
    response = await client.to_any(request, version_max=connection.version_for(ApiVersionsRequest.API_KEY))
    _check(response.error_code, None, "the cluster")
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}
    return [
        Feature(name, *supported.get(name, (0, 0)), finalized.get(name, 0)) for name in sorted({*finalized, *supported})
    ]


async def update_features(
    client: ClusterClient,
    levels: Mapping[str, int],
    *,
    upgrade_type: UpgradeType = UpgradeType.UPGRADE,
    validate_only: bool = False,
    timeout_ms: int = ADMIN_TIMEOUT_MS,
) -> None:
    """Finalize features at the given levels; level 0 takes one away."""
    from moldau.protocol.messages.update_features import UpdateFeaturesRequest

    request = UpdateFeaturesRequest(
        timeout_ms,
        [
            UpdateFeaturesRequest.FeatureUpdateKey(name, level, upgrade_type=int(upgrade_type))
            for name, level in levels.items()
        ],
        validate_only,
    )
    response = await client.to_controller(request)
    _check(response.error_code, response.error_message, "features")
    for result in response.results:
        _check(result.error_code, result.error_message, f"feature {result.feature!r}")


async def describe_log_dirs(
    client: ClusterClient, brokers: Iterable[int] | None = None, topics: Iterable[str] | None = None
) -> list[LogDir]:
    """What the brokers hold on disk, for all of them and all topics unless told."""
    from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    if brokers is None:
        brokers = sorted((await client.metadata([])).nodes)
    asked: list[DescribeLogDirsRequest.DescribableLogDirTopic] | None = None
    if topics is not None:
        asked = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic.name, [one.partition for one in topic.partitions])
            for topic in await describe_topics(client, topics)
        ]
    found: list[LogDir] = []
    for broker in brokers:
        response = await client.to_node(broker, DescribeLogDirsRequest(asked))
        _check(response.error_code, None, f"broker {broker}")
        for log_dir in response.results:
            replicas = [
                ReplicaOnDisk(
                    TopicPartition(topic.name, one.partition_index),
                    one.partition_size,
                    one.offset_lag,
                    one.is_future_key,
                )
                for topic in log_dir.topics
                for one in topic.partitions
            ]
            found.append(
                LogDir(
                    broker,
                    log_dir.log_dir,
                    ErrorCode(log_dir.error_code),
                    log_dir.total_bytes,
                    log_dir.usable_bytes,
                    tuple(sorted(replicas, key=lambda replica: replica.partition)),
                )
            )
    return found


async def describe_quorum(client: ClusterClient) -> Quorum:
    """The metadata quorum: its leader, voters and observers."""
    from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest

    request = DescribeQuorumRequest(
        [DescribeQuorumRequest.TopicData(METADATA_TOPIC, [DescribeQuorumRequest.PartitionData(0)])]
    )
    response = await client.to_any(request)
    _check(response.error_code, response.error_message, "the quorum")
    partition = response.topics[0].partitions[0]
    _check(partition.error_code, partition.error_message, "the quorum")
    return Quorum(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        tuple(_quorum_replica(replica) for replica in partition.current_voters),
        tuple(_quorum_replica(replica) for replica in partition.observers),
    )


def _quorum_replica(replica: Any) -> QuorumReplica:
    return QuorumReplica(
        replica.replica_id,
        uuid_text(replica.replica_directory_id),
        replica.log_end_offset,
        replica.last_fetch_timestamp,
        replica.last_caught_up_timestamp,
    )


# -- shared ------------------------------------------------------------------------------------------------------------


def _names(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check(code: int, message: str | None, what: str) -> None:
    if code:
        known = ErrorCode(code)
        raise KafkaError(known, f"{what}: {message or known.name}")


def infos_by_topic(infos: Iterable[PartitionInfo]) -> list[tuple[str, list[PartitionInfo]]]:
    topics: dict[str, list[PartitionInfo]] = defaultdict(list)
    for info in infos:
        topics[info.topic].append(info)
    return list(topics.items())
