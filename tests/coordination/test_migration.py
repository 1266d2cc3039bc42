"""Groups between the classic and the consumer protocol: upgrade, both kinds in one group, downgrade."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from moldau.coordination.groups import ClassicGroup, GroupMachine
from moldau.coordination.groups.consumer import ConsumerGroup
from moldau.kernel import ErrorCode
from moldau.protocol.consumer_protocol import write_assignment
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.testing.dice import SeededDice
from tests.coordination.classic_client import ClassicClient, subscription
from tests.coordination.consumer_play import Client, ConsumerPlay, settle
from tests.coordination.test_consumer_group import commit
from tests.coordination.test_consumer_simulation import picture
from tests.coordination.topics import Topics

AnyClient = Client | ClassicClient


def new_play(**settings: Any) -> ConsumerPlay:
    return ConsumerPlay(Topics(orders=6), **settings)


def run_until(play: ConsumerPlay, clients: Sequence[AnyClient], is_done: Callable[[], bool], ms: int = 500) -> None:
    for _ in range(60):
        if is_done():
            return
        for client in clients:
            client.beat()
        play.pass_time(ms)
    raise AssertionError([(client.id, client.held) for client in clients])


def is_shared_out(clients: Sequence[AnyClient]) -> bool:
    """All six partitions are read, each once, by loads that differ by one at most."""
    held = [partition for client in clients for partition in client.held.get("orders", ())]
    loads = [len(client.held.get("orders", ())) for client in clients]
    return sorted(held) == list(range(6)) and max(loads) - min(loads) <= 1


def classic_group(play: ConsumerPlay, count: int = 2, **options: Any) -> list[ClassicClient]:
    clients = [ClassicClient(play, ["orders"], **options) for _ in range(count)]
    run_until(play, clients, lambda: is_shared_out(clients))
    return clients


def kind(play: ConsumerPlay) -> type[Any]:
    return type(play.machine.groups["g"])


# -- upgrade -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_a_live_classic_group_is_upgraded_by_the_first_new_member(is_cooperative: bool) -> None:
    play = new_play()
    old = classic_group(play, is_cooperative=is_cooperative)
    generation = old[0].generation
    held = [dict(client.held) for client in old]
    new = Client(play, "new", topics=["orders"])
    assert new.beat() is ErrorCode.NONE
    assert kind(play) is ConsumerGroup
    assert play.group().epoch == generation + 1
    assert [client.held for client in old] == held, "nobody is disturbed before its next heartbeat"
    assert new.held == {}
    run_until(play, [*old, new], lambda: is_shared_out([*old, new]))
    assert play.group().classic_count == 2


def test_an_upgrade_logs_a_tombstone_of_the_classic_group_and_then_the_new_one() -> None:
    play = new_play()
    classic_group(play)
    logged = len(play.log)
    Client(play, "new", topics=["orders"]).beat()
    kinds = play.kinds_logged(logged)
    assert kinds[:9] == [
        (2, True),
        (5, False),
        (5, False),
        (3, False),
        (7, False),
        (7, False),
        (6, False),
        (8, False),
        (8, False),
    ]


@pytest.mark.parametrize("policy", ["disabled", "downgrade", "DISABLED"])
def test_an_upgrade_that_the_policy_forbids_is_refused(policy: str) -> None:
    play = new_play(group__consumer__migration__policy=policy)
    classic_group(play)
    logged = len(play.log)
    assert play.beat("new", topics=["orders"]) is ErrorCode.GROUP_ID_NOT_FOUND
    assert (kind(play), len(play.log)) == (ClassicGroup, logged)


def test_a_group_that_does_not_speak_the_consumers_formats_is_not_upgraded() -> None:
    play = new_play()
    play.stable("g", 1, protocol_type="connect")
    assert play.beat("new", topics=["orders"]) is ErrorCode.GROUP_ID_NOT_FOUND
    play.stable("h", 1, protocols=[("range", b"garbage")])
    assert play.beat("new", topics=["orders"], group="h") is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("protocol", "code"), [("mine", ErrorCode.GROUP_ID_NOT_FOUND), ("cooperative-sticky", ErrorCode.NONE)]
)
def test_only_the_data_of_a_custom_assignor_is_too_good_to_be_thrown_away(protocol: str, code: ErrorCode) -> None:
    play = new_play()
    (member,) = play.stable("g", 1, protocols=[(protocol, subscription(["orders"]))])
    plain = write_assignment({"orders": [0]}, 0)
    play.machine.groups["g"].members[member].assignment = plain[:-4] + (4).to_bytes(4, "big") + b"data"
    assert Client(play, "new", topics=["orders"]).beat() is code


def test_members_that_wait_in_a_rebalance_are_sent_to_the_new_group() -> None:
    play = new_play()
    (old,) = classic_group(play, 1)
    other = ClassicClient(play, ["orders"])
    other.join()
    assert other.join_token is not None, "it waits for the first to join again"
    new = Client(play, "new", topics=["orders"])
    new.beat()
    assert play.answers[other.join_token].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    clients: list[AnyClient] = [old, other, new]
    run_until(play, clients, lambda: is_shared_out(clients))


def test_an_empty_classic_group_simply_becomes_the_other_kind_and_back() -> None:
    play = new_play(group__consumer__migration__policy="disabled")
    (old,) = classic_group(play, 1)
    old.leave()
    new = Client(play, "new", topics=["orders"])
    assert new.beat() is ErrorCode.NONE
    assert kind(play) is ConsumerGroup
    new.leave()
    classic_group(play, 1)
    assert kind(play) is ClassicGroup


# -- both kinds in one group -------------------------------------------------------------------------------------------


def test_a_classic_member_joins_a_consumer_group_and_is_assigned_by_the_broker() -> None:
    play = new_play()
    new = Client(play, "new", topics=["orders"])
    new.beat()
    old = ClassicClient(play, ["orders"])
    old.beat()
    assert (old.is_joined, old.held) == (True, {})
    run_until(play, [new, old], lambda: is_shared_out([new, old]))
    described = play.machine.consumer.describe(play.group())
    assert sorted((member.member_id, member.member_type) for member in described.members) == sorted(
        [("new", 1), (old.id, 0)]
    )


def test_classic_members_are_refused_where_migration_is_disabled() -> None:
    play = new_play(group__consumer__migration__policy="disabled")
    Client(play, "new", topics=["orders"]).beat()
    token = play.join("g", protocols=[("range", subscription(["orders"]))])
    assert play.answers[token] is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_must_agree_on_a_protocol() -> None:
    play = new_play()
    Client(play, "new", topics=["orders"]).beat()
    ClassicClient(play, ["orders"]).beat()
    refused = [
        play.join("g", protocols=[("roundrobin", subscription(["orders"]))]),
        play.join("g", protocols=[("range", subscription(["orders"]))], protocol_type="connect"),
        play.join("g", protocols=[("range", b"")]),
    ]
    assert {play.answers[token] for token in refused} == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}


def test_what_a_classic_member_is_told_by_its_heartbeats() -> None:
    play = new_play()
    new, old = Client(play, "new", topics=["orders"]), ClassicClient(play, ["orders"])
    run_until(play, [new, old], lambda: is_shared_out([new, old]))

    def beat(member: str, generation: int) -> Any:
        answer = play.answer(HeartbeatRequest("g", generation, member))
        return answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)

    assert beat(old.id, old.generation) is ErrorCode.NONE
    assert beat(old.id, old.generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert beat("x", old.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert beat("new", new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID, "it speaks the other protocol"
    Client(play, "newer", topics=["orders"]).beat()
    assert beat(old.id, old.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert play.answers[play.sync("g", old.id, old.generation)].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_classic_member_that_does_not_join_again_in_time_is_out() -> None:
    play = new_play()
    new, old = Client(play, "new", topics=["orders"]), ClassicClient(play, ["orders"])
    run_until(play, [new, old], lambda: is_shared_out([new, old]))
    newer = Client(play, "newer", topics=["orders"])
    newer.beat()
    for _ in range(8):
        play.heartbeat("g", old.id, old.generation)
        new.beat()
        newer.beat()
        play.pass_time(5000)
    assert set(play.group().members) == {"new", "newer"}


def test_a_classic_member_that_does_not_fetch_its_assignment_in_time_is_out() -> None:
    play = new_play()
    new = Client(play, "new", topics=["orders"])
    new.beat()
    protocols = [("range", subscription(["orders"]))]
    member, _ = play.new_member("g", protocols=protocols)
    for _ in range(7):
        if member in play.group().members:
            play.heartbeat("g", member, play.group().members[member].holding.epoch)
        new.beat()
        play.pass_time(5000)
    assert set(play.group().members) == {"new"}


def test_classic_members_commit_in_their_generation() -> None:
    play = new_play()
    new, old = Client(play, "new", topics=["orders"]), ClassicClient(play, ["orders"])
    run_until(play, [new, old], lambda: is_shared_out([new, old]))
    partition = min(old.held["orders"])
    assert commit(play, old.id, old.generation, "orders", partition, version=8) is ErrorCode.NONE
    assert commit(play, old.id, old.generation + 1, "orders", partition) is ErrorCode.ILLEGAL_GENERATION
    assert commit(play, old.id, 0, "orders", partition) is ErrorCode.ILLEGAL_GENERATION


def test_leaving_by_the_classic_protocol() -> None:
    play = new_play()
    new, other = Client(play, "new", topics=["orders"], instance="one"), Client(play, "other", topics=["orders"])
    old = ClassicClient(play, ["orders"])
    clients: list[AnyClient] = [new, other, old]
    run_until(play, clients, lambda: is_shared_out(clients))
    answer = play.leave("g", (old.id, None), ("x", None), ("", "nobody"), ("y", "one"))
    assert [member.error_code for member in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    play.leave("g", ("", "one"))
    assert set(play.group().members) == {"other"}
    settle(play, [other])
    assert is_shared_out([other])


# -- downgrade ---------------------------------------------------------------------------------------------------------


def test_the_group_is_classic_again_when_the_last_new_member_leaves() -> None:
    play = new_play()
    old = classic_group(play)
    new = Client(play, "new", topics=["orders"])
    clients: list[AnyClient] = [*old, new]
    run_until(play, clients, lambda: is_shared_out(clients))
    epoch = play.group().epoch
    new.leave()
    assert kind(play) is ClassicGroup
    assert play.machine.groups["g"].generation == epoch
    run_until(play, old, lambda: is_shared_out(old))
    play.restart()
    assert kind(play) is ClassicGroup
    for client in old:
        client.beat()
    assert is_shared_out(old)


def test_the_group_is_classic_again_when_the_last_new_member_dies() -> None:
    play = new_play()
    old = classic_group(play)
    Client(play, "new", topics=["orders"]).beat()
    run_until(play, old, lambda: kind(play) is ClassicGroup, ms=2000)
    run_until(play, old, lambda: is_shared_out(old))


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_without_downgrades_classic_members_live_on_in_a_consumer_group(policy: str) -> None:
    play = new_play()
    classic_group(play)
    new = Client(play, "new", topics=["orders"])
    new.beat()
    play.settings.values["group.consumer.migration.policy"] = policy  # type: ignore[assignment]
    new.leave()
    assert kind(play) is ConsumerGroup


def test_a_static_member_that_goes_back_to_the_classic_protocol_takes_the_group_with_it() -> None:
    play = new_play()
    (old,) = classic_group(play, 1, instance="one")
    new = Client(play, "new", topics=["orders"], instance="two")
    run_until(play, [old, new], lambda: is_shared_out([old, new]))
    held = {client.id: client.held for client in (old, new)}
    new.leave(-2)
    back = ClassicClient(play, ["orders"], instance="two")
    back.beat()
    assert kind(play) is ClassicGroup
    assert (back.is_joined, back.held) == (True, held["new"]), "its place and its partitions, without a rebalance"
    old.beat()
    assert is_shared_out([old, back])


def test_a_static_member_moves_to_the_consumer_protocol_in_its_place() -> None:
    play = new_play()
    (old,) = classic_group(play, 1, instance="one")
    new = Client(play, "new", topics=["orders"], instance="one")
    assert new.beat() is ErrorCode.NONE
    assert new.held == {"orders": set(range(6))}
    assert set(play.group().members) == {"new"}
    assert play.heartbeat("g", old.id, old.generation, "one") is ErrorCode.FENCED_INSTANCE_ID


# -- rolling -----------------------------------------------------------------------------------------------------------


# In 105 and 130 a group goes classic and back while partitions change hands: what members have must be remembered then,
# not what they were to get.
@pytest.mark.parametrize("seed", [*range(40), 105, 130])
def test_rolling_upgrades_and_downgrades_never_let_two_read_one_partition(seed: int) -> None:
    dice = random.Random(f"migration {seed}")
    play = new_play(group__consumer__assignment__interval__ms=dice.choice([0, 1000]))
    clients: list[AnyClient] = list(classic_group(play, 3))
    for number in range(12):
        for _ in range(dice.randrange(12)):
            dice.choice(clients).beat()
            check_one_reader(play, clients)
            play.pass_time(dice.choice([10, 300, 1500]))
        if dice.random() < 0.2:
            play.restart()
            lose_waiting(clients)
        leaving = clients.pop(dice.randrange(len(clients)))
        if dice.random() < 0.8:
            leaving.leave()
        is_new = dice.random() < (0.7 if number < 6 else 0.3)
        clients.append(Client(play, f"n{number}", topics=["orders"]) if is_new else ClassicClient(play, ["orders"]))
        check_one_reader(play, clients)
    run_until(play, clients, lambda: is_shared_out(clients), ms=2000)
    check_one_reader(play, clients)
    replayed = GroupMachine(play.settings, SeededDice(0), play.topics, print)
    for record in play.log:
        replayed.replay(record.key, record.value)
    group = play.machine.groups["g"]
    assert type(replayed.groups["g"]) is type(group)
    assert picture(replayed.groups["g"]) == picture(group)


def lose_waiting(clients: Sequence[AnyClient]) -> None:
    """The broker is gone: no answer comes to what was asked before."""
    for client in clients:
        if isinstance(client, ClassicClient):
            client.join_token = client.sync_token = None


def check_one_reader(play: ConsumerPlay, clients: Sequence[AnyClient]) -> None:
    readers: dict[int, str] = {}
    members = play.machine.groups["g"].members if "g" in play.machine.groups else {}
    for client in clients:
        if client.id in members:
            for partition in client.held.get("orders", ()):
                assert readers.setdefault(partition, client.id) == client.id
