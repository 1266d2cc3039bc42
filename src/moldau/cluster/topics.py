"""Decisions about topics: create, delete, add partitions.

Pure: image and request in, records and response out. One topic's refusal never touches the others of its request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from moldau.cluster.configs import validate_topic_configs
from moldau.cluster.decision import RECORDS_PER_DECISION_MAX, TOO_LARGE, Decision, check_size
from moldau.cluster.image import MetadataImage, TopicImage
from moldau.cluster.placement import UsableBroker, place_replicas
from moldau.cluster.topic_names import metric_name, topic_name_problem
from moldau.kernel import METADATA_TOPIC, METADATA_TOPIC_ID, ZERO_UUID, Dice, ErrorCode, KafkaError
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord
from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord
from moldau.protocol.messages.metadata_records.remove_topic_record import RemoveTopicRecord
from moldau.protocol.messages.metadata_records.topic_record import TopicRecord

TOPIC_RESOURCE = 2
DEFAULT = -1
PARTITIONS_PER_REQUEST_MAX = 10_000  # as Kafka
Record = TopicRecord | PartitionRecord | ConfigRecord | RemoveTopicRecord
# Effective configs by a topic's own, within one request.
_Described = dict[tuple[tuple[str, str], ...], list[CreateTopicsResponse.CreatableTopicConfigs]]


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What -1 means in a request for a topic."""

    partitions: int  # num.partitions
    replication_factor: int  # default.replication.factor


class TopicDecider:
    """Topic decisions need the broker's defaults, its view of a topic's effective configs, and dice for new ids."""

    def __init__(
        self,
        dice: Dice,
        defaults: Callable[[], TopicDefaults],
        choose_directory: Callable[[int], bytes],
        describe_configs: Callable[[Mapping[str, str]], list[CreateTopicsResponse.CreatableTopicConfigs]],
    ) -> None:
        self._dice = dice
        self._defaults = defaults
        self._choose_directory = choose_directory
        self._describe_configs = describe_configs

    # -- create --------------------------------------------------------------------------------------------------------

    def create(self, image: MetadataImage, request: CreateTopicsRequest) -> Decision[CreateTopicsResponse]:
        records: list[Record] = []
        results = []
        names = Counter(topic.name for topic in request.topics)
        if self._partition_count(request) > PARTITIONS_PER_REQUEST_MAX:
            return _refuse_all(request, "Excessively large number of partitions per request.")
        # By metric name; topics of the same request collide too.
        taken = {metric_name(name): name for name in image.topics}
        described: _Described = {}
        for name, count in names.items():
            if count > 1:
                results.append(_refused(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for topic in request.topics:
            if names[topic.name] > 1:
                continue
            try:
                created, result = self._create_one(image, topic, taken, described)
            except KafkaError as refusal:
                results.append(_refused(topic.name, refusal.code, refusal.message))
                continue
            taken[metric_name(topic.name)] = topic.name
            records += created
            if request.validate_only:
                result.topic_id = ZERO_UUID
            results.append(result)
        try:
            check_size(records)
        except KafkaError as refusal:
            return _refuse_all(request, refusal.message)
        return Decision(CreateTopicsResponse(topics=results), () if request.validate_only else records)

    def _partition_count(self, request: CreateTopicsRequest) -> int:
        default = self._defaults().partitions
        return sum(
            len(topic.assignments) or (default if topic.num_partitions == DEFAULT else max(topic.num_partitions, 0))
            for topic in request.topics
        )

    def _create_one(
        self,
        image: MetadataImage,
        topic: CreateTopicsRequest.CreatableTopic,
        taken: Mapping[str, str],
        described: _Described,
    ) -> tuple[list[Record], CreateTopicsResponse.CreatableTopicResult]:
        if topic.name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
        problem = topic_name_problem(topic.name)
        if problem:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if topic.name in image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        other = taken.get(metric_name(topic.name))
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' collides with existing topic: {other}"
            )
        configs = {config.name: config.value for config in topic.configs}
        checked = validate_topic_configs(configs)
        # Thousands of topics of one request have the same configs; describing them costs more than all else.
        same = tuple(checked.items())
        if same not in described:
            described[same] = self._describe_configs(checked)
        assignments = self._assignments(image, topic)
        topic_id = self._new_topic_id(image)
        records: list[Record] = [TopicRecord(name=topic.name, topic_id=topic_id)]
        # Configs first, as the partitions' logs are opened with them.
        records += [
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
            for name, value in checked.items()
        ]
        records += self._partition_records(image, topic_id, 0, assignments)
        result = CreateTopicsResponse.CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_message=None,
            num_partitions=len(assignments),
            replication_factor=len(assignments[0]),
            configs=described[same],
        )
        return records, result

    def _assignments(
        self, image: MetadataImage, topic: CreateTopicsRequest.CreatableTopic
    ) -> Sequence[tuple[int, ...]]:
        if topic.assignments:
            return _manual_assignments(image, topic)
        defaults = self._defaults()
        count = defaults.partitions if topic.num_partitions == DEFAULT else topic.num_partitions
        factor = defaults.replication_factor if topic.replication_factor == DEFAULT else topic.replication_factor
        if count < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        if factor < 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        return self._place(image, count, factor)

    def _place(self, image: MetadataImage, count: int, factor: int) -> Sequence[tuple[int, ...]]:
        usable = [UsableBroker(broker.node_id, broker.rack) for broker in image.alive_brokers]
        if factor > len(usable):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot"
                f" be reached because only {len(usable)} broker(s) are registered or some brokers have all their log"
                " directories cordoned.",
            )
        return place_replicas(usable, count, factor, self._dice)

    def _partition_records(
        self, image: MetadataImage, topic_id: bytes, first: int, assignments: Sequence[tuple[int, ...]]
    ) -> list[Record]:
        alive = {broker.node_id for broker in image.alive_brokers}
        records: list[Record] = []
        for index, replicas in enumerate(assignments, first):
            isr = [replica for replica in replicas if replica in alive]
            records.append(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=list(replicas),
                    isr=isr,
                    leader=isr[0],
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=[self._choose_directory(replica) for replica in replicas],
                )
            )
        return records

    def _new_topic_id(self, image: MetadataImage) -> bytes:
        while True:
            topic_id = self._dice.random_bytes(16)
            # Ids that start with '-' trip command lines, as Kafka avoids them too.
            reserved = topic_id in (ZERO_UUID, METADATA_TOPIC_ID) or topic_id in image.topic_names
            if topic_id[0] >> 2 != 62 and not reserved:
                return topic_id

    # -- add partitions ------------------------------------------------------------------------------------------------

    def create_partitions(
        self, image: MetadataImage, request: CreatePartitionsRequest
    ) -> Decision[CreatePartitionsResponse]:
        records: list[Record] = []
        results = []
        names = Counter(topic.name for topic in request.topics)
        for topic in {topic.name: topic for topic in request.topics}.values():
            result = CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name)
            try:
                if names[topic.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                added = self._add_partitions(image, topic)
                if len(records) + len(added) > RECORDS_PER_DECISION_MAX:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_LARGE)
                records += added
            except KafkaError as refusal:
                result.error_code, result.error_message = refusal.code, refusal.message
            results.append(result)
        response = CreatePartitionsResponse(results=results)
        return Decision(response, () if request.validate_only else records)

    def _add_partitions(
        self, image: MetadataImage, wanted: CreatePartitionsRequest.CreatePartitionsTopic
    ) -> list[Record]:
        topic = image.topics.get(wanted.name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        now = len(topic.partitions)
        if wanted.count == now:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {now} partition(s).")
        if wanted.count < now:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {wanted.name} currently has {now} partition(s); {wanted.count} would not be an increase.",
            )
        added = wanted.count - now
        if added > PARTITIONS_PER_REQUEST_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        factor = len(topic.partitions[0].replicas)
        if wanted.assignments is None:
            assignments = self._place(image, added, factor)
        else:
            if len(wanted.assignments) != added:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)}"
                    " assignment(s) were specified.",
                )
            assignments = [
                _checked_assignment(image, now + index, tuple(each.broker_ids), factor)
                for index, each in enumerate(wanted.assignments)
            ]
        return self._partition_records(image, topic.id, now, assignments)


def decide_delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest, version: int, *, deletion_enabled: bool
) -> Decision[DeleteTopicsResponse]:
    """Remove topics by name or, from version 6, by id (trap 10)."""
    wanted = Counter(_named_topics(request, version))
    results = list(_refuse_deletions(image, wanted))
    refused = {(result.name, result.topic_id) for result in results}
    records: list[Record] = []
    for name, topic_id in wanted:
        if (name, topic_id) in refused or _is_named_twice(image, wanted, name, topic_id):
            continue
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            topic = _topic_to_delete(image, name, topic_id, deletion_enabled=deletion_enabled)
        except KafkaError as refusal:
            result.error_code = refusal.code
            result.error_message = refusal.message
        else:
            result.name, result.topic_id = topic.name, topic.id
            records.append(RemoveTopicRecord(topic_id=topic.id))
        results.append(result)
    try:
        check_size(records)
    except KafkaError as refusal:
        for result in results:
            if result.error_code == ErrorCode.NONE:
                result.error_code, result.error_message = refusal.code, refusal.message
        records = []
    return Decision(DeleteTopicsResponse(responses=results), records)


DeletedName = tuple[str | None, bytes]


def _refuse_deletions(
    image: MetadataImage, wanted: Counter[DeletedName]
) -> Iterator[DeleteTopicsResponse.DeletableTopicResult]:
    """What is wrong with the way in which topics are named, each name once."""
    for name, topic_id in wanted:
        if name is not None and topic_id != ZERO_UUID:
            why = "You may not specify both topic name and topic id."
        elif name is None and topic_id == ZERO_UUID:
            why = "Neither topic name nor id were specified."
        elif wanted[name, topic_id] > 1:
            why = "Duplicate topic id." if name is None else "Duplicate topic name."
        elif name is not None and _is_named_twice(image, wanted, name, topic_id):
            why = "The provided topic name maps to an ID that was already supplied."
            topic_id = image.topics[name].id
        else:
            continue
        yield DeleteTopicsResponse.DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=ErrorCode.INVALID_REQUEST, error_message=why
        )


def _is_named_twice(image: MetadataImage, wanted: Collection[DeletedName], name: str | None, topic_id: bytes) -> bool:
    """Whether a topic is named by its name and, elsewhere in the request, by its id."""
    topic = image.topic_by_id(topic_id) if name is None else image.topics.get(name)
    return topic is not None and (topic.name, ZERO_UUID) in wanted and (None, topic.id) in wanted


def _named_topics(request: DeleteTopicsRequest, version: int) -> list[DeletedName]:
    if version < 6:
        return [(name, ZERO_UUID) for name in request.topic_names]
    return [(topic.name, topic.topic_id) for topic in request.topics]


def _topic_to_delete(image: MetadataImage, name: str | None, topic_id: bytes, *, deletion_enabled: bool) -> TopicImage:
    if not deletion_enabled:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)
    if name is None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return topic
    if name not in image.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    return image.topics[name]


def _manual_assignments(image: MetadataImage, topic: CreateTopicsRequest.CreatableTopic) -> Sequence[tuple[int, ...]]:
    for given, what in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
        if given != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    by_partition: dict[int, tuple[int, ...]] = {}
    for each in topic.assignments:
        if each.partition_index in by_partition:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {each.partition_index}",
            )
        by_partition[each.partition_index] = tuple(each.broker_ids)
    if set(by_partition) != set(range(len(by_partition))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    factor = len(by_partition[0])
    return [_checked_assignment(image, index, by_partition[index], factor) for index in range(len(by_partition))]


def _checked_assignment(
    image: MetadataImage, partition: int, replicas: tuple[int, ...], factor: int
) -> tuple[int, ...]:
    if not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."
        )
    for replica in sorted(replicas):
        if replica not in image.brokers:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {replica}, but no such broker is registered.",
            )
    if len(set(replicas)) < len(replicas):
        double = next(replica for replica, count in Counter(replicas).items() if count > 1)
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes the broker {double} more than once.",
        )
    if len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not"
            f" consistent with previous partitions, which have {factor} replica(s).",
        )
    if not any(broker.node_id in replicas for broker in image.alive_brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in"
            " controlled shutdown.",
        )
    return replicas


def _refuse_all(request: CreateTopicsRequest, why: str | None) -> Decision[CreateTopicsResponse]:
    names = dict.fromkeys(topic.name for topic in request.topics)
    return Decision(CreateTopicsResponse(topics=[_refused(name, ErrorCode.POLICY_VIOLATION, why) for name in names]))


def _refused(name: str, code: ErrorCode, message: str | None) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(name=name, error_code=code, error_message=message)
