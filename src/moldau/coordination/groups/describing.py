"""What admin requests are told about groups."""

from __future__ import annotations

from moldau.coordination.groups.classic import ClassicGroup, ClassicState
from moldau.coordination.groups.consumer import ConsumerGroup
from moldau.kernel import ErrorCode
from moldau.protocol.messages.describe_groups import DescribeGroupsResponse
from moldau.protocol.messages.list_groups import ListGroupsResponse

DEAD = "Dead"
NOT_FOUND_VERSION_MIN = 6  # of DescribeGroups; before, a group that nobody knows is just dead


def list_group(group: ClassicGroup | ConsumerGroup) -> ListGroupsResponse.ListedGroup:
    return ListGroupsResponse.ListedGroup(
        group_id=group.id,
        protocol_type=group.protocol_type or "",
        group_state=group.state_name,
        group_type=group.type.lower(),
    )


def describe_classic(group: ClassicGroup) -> DescribeGroupsResponse.DescribedGroup:
    """Metadata only of a stable group: in between it is about to change."""
    is_stable = group.state is ClassicState.STABLE
    members = [
        DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    return DescribeGroupsResponse.DescribedGroup(
        group_id=group.id,
        group_state=group.state_name,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=members,
        unknown_tags=group.history.tagged(),
    )


def described_as_dead(group_id: str, version: int, why: str) -> DescribeGroupsResponse.DescribedGroup:
    described = DescribeGroupsResponse.DescribedGroup(group_id=group_id, group_state=DEAD)
    if version >= NOT_FOUND_VERSION_MIN:
        described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        described.error_message = f"Group {group_id} {why}."
    return described
