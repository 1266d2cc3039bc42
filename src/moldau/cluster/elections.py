"""Elections that somebody asks for, or that the controller holds now and then: preferred and unclean ones. Pure.

Who leads after which change is decided in `PartitionChange`; here is which partitions are looked at, and what is said
when nothing can be done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from moldau.cluster.brokers import PartitionPolicy, can_serve
from moldau.cluster.decision import Decision
from moldau.cluster.image import MetadataImage, PartitionImage, TopicImage
from moldau.cluster.partition_change import Election, PartitionChange
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord

PREFERRED = 0  # of ElectLeaders' election types; 1 is unclean


def decide_elect_leaders(
    image: MetadataImage, request: ElectLeadersRequest, policy: PartitionPolicy
) -> Decision[ElectLeadersResponse]:
    """Give partitions back to their preferred leaders, or force one (unclean)."""
    results: dict[str, list[ElectLeadersResponse.PartitionResult]] = {}
    records: list[Any] = []
    wanted = request.topic_partitions
    everything = wanted is None
    election = Election.PREFERRED if request.election_type == PREFERRED else Election.UNCLEAN
    named = (
        [(topic.name, index) for topic in image.topics.values() for index in range(len(topic.partitions))]
        if wanted is None
        else [(topic.topic, index) for topic in wanted for index in topic.partitions]
    )
    for name, index in named:
        result = ElectLeadersResponse.PartitionResult(partition_id=index)
        answered = results.setdefault(name, [])
        try:
            records.append(_elect_named(image, name, index, election, policy))
        except KafkaError as refusal:
            if everything and refusal.code == ErrorCode.ELECTION_NOT_NEEDED:
                continue
            result.error_code, result.error_message = refusal.code, refusal.message
        answered.append(result)
    response = ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(name, partitions) for name, partitions in results.items()
        ]
    )
    return Decision(response, records)


def _elect_named(
    image: MetadataImage, name: str, index: int, election: Election, policy: PartitionPolicy
) -> PartitionChangeRecord:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    partition = topic.partitions[index]
    is_led = partition.leader == partition.replicas[0] if election is Election.PREFERRED else partition.has_leader
    if is_led:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    record = _elect(image, topic, index, partition, election, policy)
    if election is Election.PREFERRED and (record is None or record.leader != partition.replicas[0]):
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    if record is None or record.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."
        )
    return record


def _elect(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    partition: PartitionImage,
    election: Election,
    policy: PartitionPolicy,
) -> PartitionChangeRecord | None:
    return PartitionChange(
        topic.id,
        index,
        partition,
        lambda replica: can_serve(image, partition, replica),
        policy.min_isr(topic.name),
        policy.keeps_elr,
        election,
    ).record()


# -- now and then ------------------------------------------------------------------------------------------------------


def prefer_leaders(
    image: MetadataImage, policy: PartitionPolicy, count_max: int, *, imbalance_percent_max: int = 0
) -> Iterator[PartitionChangeRecord]:
    """Give leadership back to the first replicas that are alive and in sync and miss more than a share of theirs."""
    deprived = _brokers_that_lead_too_little(image, imbalance_percent_max)
    count = 0
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            preferred = partition.replicas[0]
            if partition.leader == preferred or preferred not in deprived or count >= count_max:
                continue
            record = _elect(image, topic, index, partition, Election.PREFERRED, policy)
            if record is not None:
                count += 1
                yield record


def _brokers_that_lead_too_little(image: MetadataImage, percent_max: int) -> set[int]:
    """Brokers of whose partitions (those that they are the first replica of) others lead more than a share."""
    wanted: Counter[int] = Counter()
    missed: Counter[int] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            preferred = partition.replicas[0]
            wanted[preferred] += 1
            missed[preferred] += partition.leader != preferred
    return {broker for broker, count in missed.items() if count * 100 > wanted[broker] * percent_max}


def lead_uncleanly(image: MetadataImage, policy: PartitionPolicy, count_max: int) -> Iterator[PartitionChangeRecord]:
    """A leader for partitions that have none and may lose data for one (`unclean.leader.election.enable`)."""
    count = 0
    for topic in image.topics.values():
        leaderless = [each for each in enumerate(topic.partitions) if not each[1].has_leader]
        if not leaderless or not policy.is_unclean_allowed(topic.name):
            continue
        for index, partition in leaderless[: count_max - count]:
            record = _elect(image, topic, index, partition, Election.UNCLEAN, policy)
            if record is not None:
                count += 1
                yield record
