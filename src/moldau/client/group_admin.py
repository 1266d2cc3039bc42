"""Administration of consumer groups: one function per verb, as in `admin`.

Every request goes to the coordinators of the groups it names, in one piece per coordinator. Functions on several groups
answer for each: a value, or the refusal as a `KafkaError`, so that one broken group does not hide the others. Functions
on one group raise. Classic groups and those of the next generation (KIP-848) look alike from here.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from moldau.client import admin
from moldau.client.cluster import ClusterClient
from moldau.client.connection import Connection
from moldau.client.coordinators import COORDINATOR_ERRORS, Ask, KeyType, to_coordinators
from moldau.client.group_coordinator import OffsetAndMetadata
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError, TopicPartition
from moldau.protocol.wire import ProtocolError

CLASSIC = "Classic"
CONSUMER = "Consumer"
GROUP_TYPES = (CLASSIC, CONSUMER, "Share", "Streams")
GROUP_STATES = (
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
# States without members: only then may others than members commit.
INACTIVE_STATES = frozenset({"Empty", "Dead"})

# Moldau's brokers tell the last rebalances in a tagged field that Kafka does not have: JSON in UTF-8.
REBALANCES_TAG = 10_001

# Committed by administration, not by a member.
NO_GENERATION = -1
NO_MEMBER = ""

# From the next version on, OffsetFetch and OffsetCommit name topics by their ids, and deleted topics have none.
OFFSETS_BY_NAME_VERSION_MAX = 9
REQUIRE_STABLE_FROM = 7
OFFSET_FETCH_BATCHED_FROM = 8

_CONSUMER_PROTOCOL = "consumer"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """`protocol_type` is '' for a group that only keeps offsets."""

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """`epoch` and `target` are of the next generation: what the member is to have once it has given up the rest."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack_id: str | None
    epoch: int | None
    subscription: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    began_ms: int
    duration_ms: int
    generation: int
    members: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """`epoch` is None for a classic group; `rebalances` where the broker does not tell them."""

    group_id: str
    group_type: str
    protocol_type: str
    state: str
    coordinator: int
    assignor: str
    epoch: int | None
    members: tuple[GroupMember, ...]
    rebalances: tuple[Rebalance, ...] | None

    @property
    def is_active(self) -> bool:
        return self.state not in INACTIVE_STATES


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in a partition. None: nothing committed, or the partition is gone or has no leader."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return self.end - self.committed


@dataclass(frozen=True, slots=True)
class GroupLag:
    group: GroupDescription
    partitions: tuple[PartitionLag, ...]

    @property
    def total(self) -> int:
        """Of the partitions whose lag is known."""
        return sum(max(one.lag, 0) for one in self.partitions if one.lag is not None)


# -- looking -----------------------------------------------------------------------------------------------------------


async def list_groups(
    client: ClusterClient, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[GroupListing]:
    """The groups of all brokers by name, those in the given states and of the given types, or all."""

    async def ask(node: int) -> list[GroupListing]:
        return await client.retry(lambda: _list_on(client, node, states, types))

    nodes = (await client.metadata([])).nodes
    listed = await asyncio.gather(*map(ask, nodes))
    return sorted((group for groups in listed for group in groups), key=lambda group: group.group_id)


async def _list_on(client: ClusterClient, node: int, states: Sequence[str], types: Sequence[str]) -> list[GroupListing]:
    from moldau.protocol.messages.list_groups import ListGroupsRequest

    connection = await client.connection_to(node)
    version = connection.version_for(ListGroupsRequest.API_KEY)
    for filter_, name, since in ((states, "state", 4), (types, "type", 5)):
        if filter_ and version < since:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{connection}: the broker cannot list groups by {name}")
    response = await connection.request(ListGroupsRequest(list(states), list(types)))
    if response.error_code:
        code = ErrorCode(response.error_code)
        raise KafkaError(code, f"broker {node} does not list its groups: {code.name}")
    return [
        GroupListing(one.group_id, one.group_type.capitalize() or CLASSIC, one.protocol_type, one.group_state, node)
        for one in response.groups
    ]


async def describe_groups(client: ClusterClient, group_ids: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
    """State, members and assignments of groups of either generation, in the order asked."""
    asked = list(dict.fromkeys(group_ids))
    described = await _to_coordinators(client, asked, _describe_next_generation)
    # A classic group is unknown to the request of the next generation, and the other way round.
    unknown = [group_id for group_id in asked if _is_unknown(described[group_id])]
    described |= await _to_coordinators(client, unknown, _describe_classic)
    return described


async def describe_group(client: ClusterClient, group_id: str) -> GroupDescription:
    return _value((await describe_groups(client, [group_id]))[group_id])


def _is_unknown(answer: GroupDescription | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code in (
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNSUPPORTED_VERSION,
    )


async def _describe_next_generation(
    connection: Connection, node: int, group_ids: list[str]
) -> dict[str, GroupDescription | KafkaError]:
    from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest

    if not connection.supports(ConsumerGroupDescribeRequest.API_KEY):
        refusal = KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{connection}: the broker knows classic groups only")
        return dict.fromkeys(group_ids, refusal)
    response = await connection.request(ConsumerGroupDescribeRequest(group_ids))
    return {
        group.group_id: _refusal(group.group_id, group.error_code, group.error_message)
        if group.error_code
        else GroupDescription(
            group.group_id,
            CONSUMER,
            _CONSUMER_PROTOCOL,
            group.group_state,
            node,
            group.assignor_name,
            group.group_epoch,
            _by_client(map(_next_generation_member, group.members)),
            _rebalances(group.unknown_tags),
        )
        for group in response.groups
    }


def _next_generation_member(member: Any) -> GroupMember:
    regex = (member.subscribed_topic_regex,) if member.subscribed_topic_regex else ()
    return GroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rack_id,
        member.member_epoch,
        (*sorted(member.subscribed_topic_names), *regex),
        _partitions((one.topic_name, one.partitions) for one in member.assignment.topic_partitions),
        _partitions((one.topic_name, one.partitions) for one in member.target_assignment.topic_partitions),
    )


async def _describe_classic(
    connection: Connection, node: int, group_ids: list[str]
) -> dict[str, GroupDescription | KafkaError]:
    from moldau.protocol.messages.describe_groups import DescribeGroupsRequest

    response = await connection.request(DescribeGroupsRequest(group_ids))
    return {group.group_id: _classic_description(group, node) for group in response.groups}


def _classic_description(group: Any, node: int) -> GroupDescription | KafkaError:
    if group.error_code:
        return _refusal(group.group_id, group.error_code, group.error_message)
    if group.group_state == "Dead":
        # Before KIP-1043 that was how a broker said that it knows no such group.
        return _refusal(group.group_id, ErrorCode.GROUP_ID_NOT_FOUND, None)
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.protocol_type,
        group.group_state,
        node,
        group.protocol_data,
        None,
        _by_client(_classic_member(member, group.protocol_type) for member in group.members),
        _rebalances(group.unknown_tags),
    )


def _by_client(members: Iterable[GroupMember]) -> tuple[GroupMember, ...]:
    """Coordinators tell members in no order."""
    return tuple(sorted(members, key=lambda member: (member.client_id, member.member_id)))


def _classic_member(member: Any, protocol_type: str) -> GroupMember:
    subscription: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    # Other protocols (Kafka Connect's) put other things there.
    if protocol_type == _CONSUMER_PROTOCOL:
        from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
        from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

        subscribed = _embedded(ConsumerProtocolSubscription, member.member_metadata)
        assigned = _embedded(ConsumerProtocolAssignment, member.member_assignment)
        if subscribed is not None:
            subscription = tuple(sorted(subscribed.topics))
        if assigned is not None:
            assignment = _partitions((one.topic, one.partitions) for one in assigned.assigned_partitions)
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        None,
        None,
        subscription,
        assignment,
        None,
    )


def _embedded(message: Any, data: bytes) -> Any:
    """What a client put into its bytes, behind a version; None for nothing, or for what is no such message."""
    if len(data) < 2:
        return None
    (version,) = struct.unpack_from(">h", data)
    try:
        # Versions only add fields at the end.
        return message.decode(data[2:], min(version, message.VERSION_MAX))
    except ProtocolError:
        return None


def _rebalances(tags: tuple[tuple[int, bytes], ...]) -> tuple[Rebalance, ...] | None:
    for tag, value in tags:
        if tag != REBALANCES_TAG:
            continue
        try:
            return tuple(
                Rebalance(
                    int(one["began_ms"]),
                    int(one["duration_ms"]),
                    int(one["generation"]),
                    int(one["members"]),
                    str(one["reason"]),
                )
                for one in json.loads(value)
            )
        except (ValueError, TypeError, KeyError):
            return None  # another broker's field of the same number
    return None


# -- offsets -----------------------------------------------------------------------------------------------------------


async def group_offsets(
    client: ClusterClient, group_ids: Iterable[str]
) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
    """All committed offsets of groups; a group that does not exist has none."""
    return await _to_coordinators(client, group_ids, _fetch_offsets)


async def stable_group_offsets(
    client: ClusterClient, group_id: str, *, timeout_ms: int | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """A group's committed offsets when no transaction is about to change them: waits while one is (KIP-447). Kafka
    knows of such a one only where the partition had an offset before."""

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        return _value((await _to_coordinators(client, [group_id], _fetch_stable_offsets))[group_id])

    return await client.retry(attempt, timeout_ms=timeout_ms)


async def _fetch_stable_offsets(
    connection: Connection, node: int, group_ids: list[str]
) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
    from moldau.protocol.messages.offset_fetch import OffsetFetchRequest

    (group_id,) = group_ids
    version = connection.version_for(OffsetFetchRequest.API_KEY, version_max=OFFSETS_BY_NAME_VERSION_MAX)
    if version < REQUIRE_STABLE_FROM:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{connection}: the broker cannot say what is stable")
    if version >= OFFSET_FETCH_BATCHED_FROM:
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id, None, -1, None)]
        request = OffsetFetchRequest(groups=groups, require_stable=True)
        answer = (await connection.request(request, version=version)).groups[0]
    else:
        answer = await connection.request(OffsetFetchRequest(group_id, None, require_stable=True), version=version)
    if answer.error_code:
        return {group_id: _refusal(group_id, answer.error_code, None)}
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                return {group_id: _refusal(group_id, one.error_code, None)}
            if one.committed_offset >= 0:
                where = TopicPartition(topic.name, one.partition_index)
                found[where] = OffsetAndMetadata(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
    return {group_id: found}


async def _fetch_offsets(
    connection: Connection, node: int, group_ids: list[str]
) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
    from moldau.protocol.messages.offset_fetch import OffsetFetchRequest

    version = connection.version_for(OffsetFetchRequest.API_KEY, version_max=OFFSETS_BY_NAME_VERSION_MAX)
    if version >= 8:
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id, None, -1, None) for group_id in group_ids]
        response = await connection.request(OffsetFetchRequest(groups=groups), version=version)
        return {group.group_id: _committed(group.group_id, group) for group in response.groups}
    requests = [OffsetFetchRequest(group_id, None) for group_id in group_ids]
    answers = await asyncio.gather(*(connection.request(request, version=version) for request in requests))
    return {group_id: _committed(group_id, answer) for group_id, answer in zip(group_ids, answers, strict=True)}


def _committed(group_id: str, answer: Any) -> dict[TopicPartition, CommittedOffset] | KafkaError:
    if answer.error_code:
        return _refusal(group_id, answer.error_code, None)
    return {
        TopicPartition(topic.name, one.partition_index): CommittedOffset(
            one.committed_offset, one.committed_leader_epoch, one.metadata or ""
        )
        for topic in sorted(answer.topics, key=lambda topic: topic.name)
        for one in sorted(topic.partitions, key=lambda one: one.partition_index)
        if not one.error_code and one.committed_offset >= 0
    }


async def group_lags(client: ClusterClient, group_ids: Iterable[str]) -> dict[str, GroupLag | KafkaError]:
    """Groups with how far they are behind, for every partition that is committed or assigned."""
    described = await describe_groups(client, group_ids)
    known = {group_id: one for group_id, one in described.items() if isinstance(one, GroupDescription)}
    offsets = await group_offsets(client, known)
    owners = {group_id: _owners(one) for group_id, one in known.items()}
    wanted = {where for found in offsets.values() if not isinstance(found, KafkaError) for where in found}
    wanted |= {where for members in owners.values() for where in members}
    ends = await _end_offsets(client, wanted)

    def lag_of(group_id: str) -> GroupLag | KafkaError:
        group, committed = described[group_id], offsets.get(group_id, {})
        if isinstance(group, KafkaError):
            return group
        if isinstance(committed, KafkaError):
            return committed
        return GroupLag(
            group,
            tuple(
                PartitionLag(
                    where,
                    committed[where].offset if where in committed else None,
                    ends.get(where),
                    owners[group_id].get(where),
                )
                for where in sorted({*committed, *owners[group_id]})
            ),
        )

    return {group_id: lag_of(group_id) for group_id in described}


def _owners(group: GroupDescription) -> dict[TopicPartition, GroupMember]:
    return {where: member for member in group.members for where in member.assignment}


async def _end_offsets(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where partitions end; those that are gone, or have no leader now, are left out."""
    asked = set(partitions)
    metadata = await client.metadata({where.topic for where in asked})
    led = [
        where
        for topic in metadata.topics.values()
        for info in topic.partitions
        if info.leader != NO_LEADER and (where := TopicPartition(topic.name, info.partition)) in asked
    ]
    ends = await admin.list_offsets(client, dict.fromkeys(led, admin.LATEST)) if led else {}
    return {where: found.offset for where, found in ends.items()}


async def alter_group_offsets(
    client: ClusterClient, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> None:
    """Commit for a group that has no members; one that does not exist begins to."""
    from moldau.protocol.messages.offset_commit import OffsetCommitRequest

    request = OffsetCommitRequest(
        group_id,
        NO_GENERATION,
        NO_MEMBER,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        where.partition,
                        offsets[where].offset,
                        offsets[where].leader_epoch,
                        offsets[where].metadata,
                    )
                    for where in partitions
                ],
            )
            for topic, partitions in _by_topic(offsets)
        ],
    )

    async def commit(connection: Connection, node: int, group_ids: list[str]) -> dict[str, Any]:
        response = await connection.request(request, version_max=OFFSETS_BY_NAME_VERSION_MAX)
        return {group_id: _first_coordinator_error(group_id, response) or response}

    response = _value((await _to_coordinators(client, [group_id], commit, repeat_sent=False))[group_id])
    _check_partitions(group_id, response)


async def delete_group_offsets(client: ClusterClient, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    """Forget what a group committed for partitions of topics that no member reads."""
    from moldau.protocol.messages.offset_delete import OffsetDeleteRequest

    request = OffsetDeleteRequest(
        group_id,
        [
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                topic, [OffsetDeleteRequest.OffsetDeleteRequestPartition(where.partition) for where in found]
            )
            for topic, found in _by_topic(partitions)
        ],
    )

    async def delete(connection: Connection, node: int, group_ids: list[str]) -> dict[str, Any]:
        response = await connection.request(request)
        return {group_id: _refusal(group_id, response.error_code, None) if response.error_code else response}

    response = _value((await _to_coordinators(client, [group_id], delete, repeat_sent=False))[group_id])
    _check_partitions(group_id, response)


async def delete_groups(client: ClusterClient, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
    """Delete groups without members, with their offsets."""
    return await _to_coordinators(client, group_ids, _delete, repeat_sent=False)


async def _delete(connection: Connection, node: int, group_ids: list[str]) -> dict[str, KafkaError | None]:
    from moldau.protocol.messages.delete_groups import DeleteGroupsRequest

    response = await connection.request(DeleteGroupsRequest(group_ids))
    return {
        one.group_id: _refusal(one.group_id, one.error_code, None) if one.error_code else None
        for one in response.results
    }


# -- coordinators ------------------------------------------------------------------------------------------------------


async def find_coordinators(client: ClusterClient, group_ids: Iterable[str]) -> dict[str, int | KafkaError]:
    """The broker that looks after each group. The first question ever makes the cluster's topic for offsets."""

    async def here(connection: Connection, node: int, group_ids: list[str]) -> dict[str, int | KafkaError]:
        return dict.fromkeys(group_ids, node)

    return await _to_coordinators(client, group_ids, here)


async def _to_coordinators(
    client: ClusterClient, group_ids: Iterable[str], ask: Ask[T], *, repeat_sent: bool = True
) -> dict[str, T | KafkaError]:
    return await to_coordinators(client, KeyType.GROUP, group_ids, ask, _refusal, repeat_sent=repeat_sent)


# -- shared ------------------------------------------------------------------------------------------------------------


def _value(answer: T | KafkaError) -> T:
    if isinstance(answer, KafkaError):
        raise answer
    return answer


def _refusal(group_id: str, error_code: int, message: str | None) -> KafkaError:
    code = ErrorCode(error_code)
    texts = {
        ErrorCode.GROUP_ID_NOT_FOUND: f"group {group_id!r} does not exist",
        ErrorCode.NON_EMPTY_GROUP: f"group {group_id!r} has members",
        # What a coordinator says to a commit without a generation while there are members.
        ErrorCode.UNKNOWN_MEMBER_ID: f"group {group_id!r} has members, and only they may commit",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: f"group {group_id!r} has members that read the topic",
    }
    return KafkaError(code, texts.get(code) or f"group {group_id!r}: {message or code.name}")


def _first_coordinator_error(group_id: str, response: Any) -> KafkaError | None:
    """OffsetCommit has no error of the group: it stands at the partitions."""
    for topic in response.topics:
        for one in topic.partitions:
            if one.error_code in COORDINATOR_ERRORS:
                return _refusal(group_id, one.error_code, None)
    return None


def _check_partitions(group_id: str, response: Any) -> None:
    refused = {
        TopicPartition(topic.name, one.partition_index): one.error_code
        for topic in response.topics
        for one in topic.partitions
        if one.error_code
    }
    for where, code in refused.items():
        refusal = _refusal(group_id, code, None)
        raise KafkaError(refusal.code, f"{where}: {refusal} (refused for {len(refused)} partitions)")


def _partitions(topics: Iterable[tuple[str, Sequence[int]]]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(topic, partition) for topic, found in topics for partition in found))


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    topics: dict[str, list[TopicPartition]] = defaultdict(list)
    for where in partitions:
        topics[where.topic].append(where)
    return list(topics.items())
