"""Every state and error of the classic protocol, as transcripts."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.coordination.groups.classic import ClassicGroup, ClassicState
from moldau.kernel import ErrorCode
from moldau.protocol.consumer_protocol import write_assignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.sync_group import SyncGroupRequest
from tests.coordination.play import REBALANCE_MS, SESSION_MS, Play

DELAY_MS = 3000


def state_of(play: Play, group: str = "g") -> ClassicState:
    return play.machine.groups[group].state


# -- joining -----------------------------------------------------------------------------------------------------------


def test_a_first_member_gets_an_id_then_waits_for_the_delay_then_leads() -> None:
    play = Play()
    member, token = play.new_member("g")
    assert member.startswith("client-") and len(member) == len("client-") + 36
    play.pass_time(DELAY_MS - 1)
    assert token not in play.answers
    play.pass_time(1)
    joined = play.answers[token]
    assert (joined.error_code, joined.generation_id, joined.leader, joined.member_id) == (0, 1, member, member)
    assert [(each.member_id, each.metadata) for each in joined.members] == [(member, b"meta")]
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert state_of(play) is ClassicState.COMPLETING


def test_before_version_4_the_first_join_is_enough() -> None:
    play = Play()
    token = play.join("g", version=3)
    play.pass_time(DELAY_MS)
    assert play.answers[token].error_code == 0


def test_the_delay_of_a_first_rebalance_is_extended_while_members_come() -> None:
    play = Play()
    _, first = play.new_member("g")
    play.pass_time(DELAY_MS - 100)
    _, second = play.new_member("g")
    play.pass_time(200)
    assert first not in play.answers
    play.pass_time(DELAY_MS)
    assert play.answers[first].generation_id == play.answers[second].generation_id == 1
    assert len(play.answers[first].members) == 2
    assert play.answers[second].members == []


def test_the_delay_ends_with_the_rebalance_timeout_however_many_come() -> None:
    play = Play()
    _, first = play.new_member("g", rebalance_ms=8000)
    for _ in range(10):
        play.new_member("g", rebalance_ms=8000)
        play.pass_time(1000)
    assert first in play.answers


def test_a_new_member_makes_all_others_join_again() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    _, token = play.new_member("g")
    assert state_of(play) is ClassicState.PREPARING
    assert play.heartbeat("g", other, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = play.join("g", other)
    assert token not in play.answers
    play.join("g", leader)
    assert play.answers[token].generation_id == play.answers[again].generation_id == 2
    assert play.answers[token].leader == leader


def test_who_does_not_join_again_in_time_is_out() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    again = play.join("g", leader)
    assert state_of(play) is ClassicState.PREPARING
    for _ in range(REBALANCE_MS // 5000):
        play.heartbeat("g", other, 1)
        play.pass_time(5000)
    assert play.answers[again].generation_id == 2
    assert play.heartbeat("g", other, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_joins_again_unchanged_in_a_stable_group_is_told_what_holds() -> None:
    play = Play()
    _, other = play.stable("g", 2)
    answer = play.answers[play.join("g", other)]
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 1, [])
    assert state_of(play) is ClassicState.STABLE


@pytest.mark.parametrize("who", ["leader", "changed"])
def test_the_leader_or_changed_metadata_starts_a_rebalance(who: str) -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    if who == "leader":
        play.join("g", leader)
    else:
        play.join("g", other, protocols=(("range", b"other"),))
    assert state_of(play) is ClassicState.PREPARING


def test_a_join_that_is_sent_again_while_the_group_completes_gets_the_same_answer() -> None:
    play = Play()
    member, token = play.new_member("g")
    play.pass_time(DELAY_MS)
    again = play.answers[play.join("g", member)]
    assert again == play.answers[token]


def test_the_protocol_that_all_have_and_most_prefer_is_chosen() -> None:
    play = Play()
    tokens = [
        play.new_member("g", protocols=protocols)[1]
        for protocols in (
            (("range", b"r"), ("sticky", b"s")),
            (("sticky", b"s"), ("range", b"r"), ("own", b"o")),
            (("sticky", b"s"), ("range", b"r")),
        )
    ]
    play.pass_time(2 * DELAY_MS)
    assert {play.answers[token].protocol_name for token in tokens} == {"sticky"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("consumer", (("other", b""),)), ("connect", (("range", b""),)), ("consumer", ())],
)
def test_a_member_that_shares_nothing_with_the_others_is_refused(protocol_type: str, protocols: Any) -> None:
    play = Play()
    play.stable("g")
    answer = play.answers[play.join("g", protocol_type=protocol_type, protocols=protocols)]
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert state_of(play) is ClassicState.STABLE


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", (("range", b""),)), ("consumer", ())])
def test_a_first_member_must_name_a_type_and_a_protocol(protocol_type: str, protocols: Any) -> None:
    play = Play()
    answer = play.answers[play.join("g", protocol_type=protocol_type, protocols=protocols)]
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("session_ms", [5999, 1_800_001, -1])
def test_a_session_timeout_out_of_bounds_is_refused(session_ms: int) -> None:
    play = Play()
    assert play.answers[play.join("g", session_ms=session_ms)].error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_member_that_nobody_knows_is_told_so() -> None:
    play = Play()
    assert play.answers[play.join("g", "ghost")].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert "g" not in play.machine.groups
    play.stable("g")
    assert play.answers[play.join("g", "ghost")].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_no_more() -> None:
    play = Play(group__max__size=2)
    members = play.stable("g", 2)
    assert play.answers[play.join("g", version=3)].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    play.join("g", members[0])
    assert state_of(play) is ClassicState.PREPARING, "members themselves may join again"


def test_an_id_that_is_never_used_does_not_hold_up_the_group_for_ever() -> None:
    play = Play()
    (leader,) = play.stable("g")
    pending = play.answers[play.join("g")].member_id
    again = play.join("g", leader)
    assert again not in play.answers, "the group waits for the pending member"
    play.pass_time(SESSION_MS)
    assert play.answers[again].generation_id == 2
    assert pending not in play.machine.groups["g"].pending


def test_an_id_that_is_never_used_does_not_make_a_rebalance() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    play.join("g")
    play.pass_time(SESSION_MS // 2)
    assert play.heartbeat("g", leader, 1) is play.heartbeat("g", other, 1) is ErrorCode.NONE
    play.pass_time(SESSION_MS // 2)
    group = play.machine.groups["g"]
    assert (group.state, group.generation, group.pending) == (ClassicState.STABLE, 1, set())
    # Nor while the group waits for its leader's assignment.
    first = play.join("g", leader)
    play.join("g", other)
    play.join("g")
    assert play.answers[first].generation_id == 2
    play.pass_time(SESSION_MS // 2)
    assert play.heartbeat("g", leader, 2) is play.heartbeat("g", other, 2) is ErrorCode.NONE
    play.pass_time(SESSION_MS // 2)
    assert (group.state, group.generation, group.pending) == (ClassicState.COMPLETING, 2, set())


# -- syncing -----------------------------------------------------------------------------------------------------------


def test_members_wait_for_the_leaders_assignment_and_get_their_part() -> None:
    play = Play()
    joins = [play.new_member("g") for _ in range(2)]
    play.pass_time(2 * DELAY_MS)
    leader = play.answers[joins[0][1]].leader
    follower = next(member for member, _ in joins if member != leader)
    waiting = play.sync("g", follower, 1)
    assert waiting not in play.answers
    handed = play.sync("g", leader, 1, {leader: b"L", follower: b"F"})
    assert (play.answers[handed].assignment, play.answers[waiting].assignment) == (b"L", b"F")
    assert state_of(play) is ClassicState.STABLE
    assert play.answers[play.sync("g", follower, 1)].assignment == b"F", "asking again is harmless"


def test_a_member_that_the_leader_forgot_gets_nothing_and_one_that_does_not_exist_is_ignored() -> None:
    play = Play()
    joins = [play.new_member("g") for _ in range(2)]
    play.pass_time(2 * DELAY_MS)
    leader = play.answers[joins[0][1]].leader
    follower = next(member for member, _ in joins if member != leader)
    play.sync("g", leader, 1, {leader: b"L", "ghost": b"G"})
    assert play.answers[play.sync("g", follower, 1)].assignment == b""


def test_errors_of_sync() -> None:
    play = Play()
    assert play.answers[play.sync("nobody", "m", 1)] is ErrorCode.UNKNOWN_MEMBER_ID
    leader, _ = play.stable("g", 2)
    assert play.answers[play.sync("g", "ghost", 1)] is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.answers[play.sync("g", leader, 7)] is ErrorCode.ILLEGAL_GENERATION
    for more in ({"protocol_name": "other"}, {"protocol_type": "connect"}):
        assert play.answers[play.sync("g", leader, 1, **more)] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert play.answers[play.sync("g", leader, 1, group_instance_id="i")] is ErrorCode.UNKNOWN_MEMBER_ID
    play.join("g", leader)
    assert play.answers[play.sync("g", leader, 1)] is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rebalance_sends_waiting_syncs_back() -> None:
    play = Play()
    joins = [play.new_member("g") for _ in range(2)]
    play.pass_time(2 * DELAY_MS)
    leader = play.answers[joins[0][1]].leader
    follower = next(member for member, _ in joins if member != leader)
    waiting = play.sync("g", follower, 1)
    play.new_member("g")
    assert play.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leader_that_never_syncs_is_out_and_another_leads() -> None:
    play = Play()
    joins = [play.new_member("g") for _ in range(2)]
    play.pass_time(2 * DELAY_MS)
    leader = play.answers[joins[0][1]].leader
    follower = next(member for member, _ in joins if member != leader)
    waiting = play.sync("g", follower, 1)
    for _ in range(REBALANCE_MS // 5000):
        play.heartbeat("g", leader, 1)
        play.pass_time(5000)
    assert play.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert play.heartbeat("g", leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    again = play.answers[play.join("g", follower)]
    assert (again.leader, again.generation_id) == (follower, 2)


def cooperative(*owned: int) -> bytes:
    partitions = [ConsumerProtocolSubscription.TopicPartition("t", list(owned))] if owned else []
    subscription = ConsumerProtocolSubscription(topics=["t"], user_data=None, owned_partitions=partitions)
    return b"\0\1" + subscription.encode(1)


def second_of_two(play: Play) -> tuple[str, str, int]:
    """One member gives up partition 1 of 0 and 1 for a new one, which waits in Sync: (first, second, its token)."""
    (first,) = play.stable("g", protocols=(("cooperative-sticky", cooperative()),))
    second, token = play.new_member("g", protocols=(("cooperative-sticky", cooperative()),))
    play.join("g", first, protocols=(("cooperative-sticky", cooperative(0, 1)),))
    assert play.answers[token].generation_id == 2
    waiting = play.sync("g", second, 2)
    handed = {first: write_assignment({"t": [0]}, 1), second: write_assignment({}, 1)}
    assert play.answers[play.sync("g", first, 2, handed)].assignment == handed[first], "it has something to give up"
    return first, second, waiting


def test_who_gets_partitions_in_the_next_rebalance_hears_of_it_at_once() -> None:
    play = Play()
    first, second, waiting = second_of_two(play)
    assert waiting not in play.answers
    assert play.heartbeat("g", second, 2) is ErrorCode.NONE
    play.join("g", first, protocols=(("cooperative-sticky", cooperative(0)),))
    assert play.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = play.join("g", second, protocols=(("cooperative-sticky", cooperative()),))
    assert play.answers[again].generation_id == 3


def test_who_waits_for_a_rebalance_that_does_not_come_is_told_its_assignment() -> None:
    play = Play()
    _, second, waiting = second_of_two(play)
    again = play.sync("g", second, 2)
    assert play.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID, "of two that wait the older goes"
    play.pass_time(1000)
    assert play.answers[again].error_code == 0
    assert play.answers[play.sync("g", second, 2)].error_code == 0, "and from then on at once"


# -- heartbeats, leaving, sessions -------------------------------------------------------------------------------------


def test_errors_of_heartbeats() -> None:
    play = Play()
    assert play.heartbeat("nobody", "m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    (leader,) = play.stable("g")
    assert play.heartbeat("g", leader, 1) is ErrorCode.NONE
    assert play.heartbeat("g", "ghost", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.heartbeat("g", leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert play.heartbeat("g", leader, 1, "i") is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_is_not_heard_of_is_out_and_the_others_are_told() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    for _ in range(3):
        play.pass_time(SESSION_MS // 2 - 1)
        code = play.heartbeat("g", leader, 1)
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    assert play.answers[play.join("g", leader)].generation_id == 2
    assert play.heartbeat("g", other, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_join_waits_needs_no_heartbeats() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    waiting = play.join("g", leader)
    for _ in range(4):
        play.pass_time(SESSION_MS // 2)
        play.heartbeat("g", other, 1)
    play.join("g", other)
    assert play.answers[waiting].error_code == 0


def test_leaving_members_are_answered_one_by_one() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    pending = play.answers[play.join("g")].member_id
    answer = play.leave("g", (other, None), ("ghost", None), (pending, None), ("", "no-instance"), ("", None))
    assert [each.error_code for each in answer.members] == [0, 25, 0, 25, 25]
    assert state_of(play) is ClassicState.PREPARING
    assert play.answers[play.join("g", leader)].generation_id == 2


def test_a_group_that_the_last_member_left_is_empty_in_the_next_generation() -> None:
    play = Play()
    (leader,) = play.stable("g")
    play.leave("g", (leader, None))
    group = play.machine.groups["g"]
    assert (group.state, group.generation, group.leader, group.protocol) == (ClassicState.EMPTY, 2, None, None)
    assert play.heartbeat("g", leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.answers[play.sync("g", leader, 1)] is ErrorCode.UNKNOWN_MEMBER_ID
    (again,) = play.stable("g")
    assert play.heartbeat("g", again, 3) is ErrorCode.NONE


def test_a_waiting_join_of_a_member_that_leaves_is_answered() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    waiting = play.join("g", leader)
    play.leave("g", (leader, None))
    assert play.answers[waiting].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert play.answers[play.join("g", other)].leader == other


# -- static members ----------------------------------------------------------------------------------------------------


def static_pair(play: Play) -> list[str]:
    joins = {name: play.join("g", instance=name, client=name) for name in ("one", "two")}
    play.pass_time(2 * DELAY_MS)
    members = {name: play.answers[token].member_id for name, token in joins.items()}
    leader = play.answers[joins["one"]].leader
    play.sync("g", leader, 1, {member: member.encode() for member in members.values()})
    for name, member in members.items():
        if member != leader:
            play.sync("g", member, 1, group_instance_id=name)
    return list(members.values())


def test_a_static_member_that_restarts_takes_its_place_without_a_rebalance() -> None:
    play = Play()
    _, two = static_pair(play)
    answer = play.answers[play.join("g", instance="two")]
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id.startswith("two-") and answer.member_id != two
    assert state_of(play) is ClassicState.STABLE
    assert play.answers[play.sync("g", answer.member_id, 1)].assignment == two.encode()
    assert play.heartbeat("g", two, 1, "two") is ErrorCode.FENCED_INSTANCE_ID
    assert play.heartbeat("g", two, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    play.restart()
    assert play.heartbeat("g", answer.member_id, 1, "two") is ErrorCode.NONE


@pytest.mark.parametrize("version", [8, 9])
def test_a_static_leader_that_restarts_does_not_assign_again(version: int) -> None:
    play = Play()
    one, _ = static_pair(play)
    assert play.machine.groups["g"].leader == one
    answer = play.answers[play.join("g", instance="one", version=version)]
    if version >= 9:
        assert answer.skip_assignment and answer.leader == answer.member_id and len(answer.members) == 2
    else:
        assert answer.leader == one and answer.members == []


def test_a_static_member_with_other_protocols_makes_a_rebalance_if_the_choice_changes() -> None:
    play = Play()
    static_pair(play)
    play.join("g", instance="two", protocols=(("range", b"new"),))
    assert state_of(play) is ClassicState.STABLE
    other = Play()
    tokens = [other.join("g", instance=name, protocols=(("range", b""), ("sticky", b""))) for name in ("one", "two")]
    other.pass_time(2 * DELAY_MS)
    leader = other.answers[tokens[0]].leader
    other.sync("g", leader, 1, {})
    other.join("g", instance="two", protocols=(("sticky", b""),))
    assert state_of(other) is ClassicState.PREPARING


def test_a_static_member_is_kept_for_its_session_when_it_does_not_join_again() -> None:
    play = Play()
    one, two = static_pair(play)
    token = play.join("g", one, instance="one")
    for _ in range(REBALANCE_MS // 5000):
        play.heartbeat("g", two, 1, "two")
        play.pass_time(5000)
    assert len(play.answers[token].members) == 2


def test_a_static_member_leaves_by_its_instance_alone() -> None:
    play = Play()
    _, two = static_pair(play)
    assert play.leave("g", ("wrong", "two")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert play.leave("g", ("", "two")).members[0].error_code == 0
    assert play.heartbeat("g", two, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_duplicate_of_a_waiting_static_member_fences_it() -> None:
    play = Play()
    first = play.join("g", instance="one")
    second = play.join("g", instance="one")
    assert play.answers[first].error_code == ErrorCode.FENCED_INSTANCE_ID
    play.pass_time(2 * DELAY_MS)
    assert play.answers[second].error_code == 0


# -- crashes and reverts -----------------------------------------------------------------------------------------------


def snapshot(group: ClassicGroup) -> Any:
    return (
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        {
            member.id: (
                member.instance_id,
                member.metadata(group.protocol),
                member.assignment,
                member.session_timeout_ms,
            )
            for member in group.members.values()
        },
    )


def test_a_stable_group_survives_a_crash() -> None:
    play = Play()
    members = play.stable("g", 3)
    before = snapshot(play.machine.groups["g"])
    play.restart()
    assert snapshot(play.machine.groups["g"]) == before
    assert all(play.heartbeat("g", member, 1) is ErrorCode.NONE for member in members)
    play.pass_time(SESSION_MS)
    assert state_of(play) is ClassicState.EMPTY, "their sessions began anew and ended"


def test_generations_go_on_after_a_crash_in_the_middle_of_a_rebalance() -> None:
    play = Play()
    (leader,) = play.stable("g")
    lost, _ = play.new_member("g")
    play.restart()
    assert play.heartbeat("g", lost, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.heartbeat("g", leader, 1) is ErrorCode.NONE
    _, token = play.new_member("g")
    play.join("g", leader)
    assert play.answers[token].generation_id == 2


def test_an_assignment_is_not_handed_out_before_it_is_committed() -> None:
    play = Play()
    member, _ = play.new_member("g")
    play.pass_time(DELAY_MS)
    play.is_committing = False
    token = play.sync("g", member, 1, {member: b"x"})
    heartbeat = play.ask(SyncGroupRequest("g", 1, member))
    assert token not in play.answers and heartbeat not in play.answers
    play.commit()
    assert play.answers[token].assignment == play.answers[heartbeat].assignment == b"x"


def test_the_last_rebalances_are_remembered_with_time_and_reason() -> None:
    play = Play()
    leader, other = play.stable("g", 2)
    play.leave("g", (other, None))
    play.pass_time(500)
    play.join("g", leader)
    play.sync("g", leader, 2, {})
    first, second = play.machine.groups["g"].history.last
    assert (first.generation, first.members, first.duration_ms) == (1, 2, 2 * DELAY_MS)
    assert first.reason.endswith("joins")
    assert (second.generation, second.members, second.duration_ms) == (2, 1, 500)
    assert second.reason == f"{other} left"
