"""Subscriptions by regular expression: RE2's syntax, resolved by the broker."""

from __future__ import annotations

import pytest

from moldau.coordination.expressions import matching, matching_after, require_valid
from moldau.coordination.groups.consumer import MemberAbout
from moldau.coordination.groups.consumer_records import epoch_record, member_record
from moldau.coordination.shard import Logged
from moldau.kernel import ErrorCode, KafkaError
from tests.coordination.consumer_play import Client, ConsumerPlay, settle
from tests.coordination.topics import Topics


def new_play() -> ConsumerPlay:
    return ConsumerPlay(Topics(orders=2, orders_eu=2, users=2))


@pytest.mark.parametrize("expression", ["[", "(", "*", "(?=ahead)", "(?P<n", "\\"])
def test_what_re2_does_not_know_is_refused(expression: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        require_valid(expression)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert str(refusal.value).startswith(f"SubscribedTopicRegex `{expression}` is not a valid regular expression: ")


def test_an_expression_matches_whole_names() -> None:
    assert matching("orders", ["orders", "orders_eu", "my-orders"]) == {"orders"}
    assert matching("orders.*", ["orders", "orders_eu", "my-orders"]) == {"orders", "orders_eu"}


def test_an_expression_that_would_hang_a_backtracking_engine_is_matched_at_once() -> None:
    assert matching("(a*)*b", ["a" * 5000]) == frozenset()


def test_an_expression_in_the_log_that_we_cannot_read_matches_nothing_and_is_loaded() -> None:
    play = new_play()
    about = MemberAbout(topics=frozenset({"users"}), expression="(", rebalance_timeout_ms=1000)
    play.log += [Logged(*record.encode()) for record in (member_record("g", "m", about), epoch_record("g", 2, 0))]
    play.restart()
    client = Client(play, "n", topics=["orders"])
    client.beat()
    assert client.held == {"orders": {0, 1}}
    assert play.group().targets["m"] == {play.topics.ids["users"]: {0, 1}}


def test_only_changed_names_are_matched_again() -> None:
    known = frozenset({"a1", "a2"})
    assert matching_after("a.*", known, frozenset({"a2", "a3", "b"}), ["a3", "b"]) == {"a1", "a3"}


def test_a_member_gets_the_topics_that_its_expression_matches() -> None:
    play = new_play()
    client = Client(play, "m", regex="orders.*")
    client.beat()
    assert client.held == {"orders": {0, 1}, "orders_eu": {0, 1}}
    assert [kind for kind, _ in play.kinds_logged(0)][:3] == [5, 16, 3]


def test_names_and_an_expression_add_up() -> None:
    play = new_play()
    client = Client(play, "m", regex="orders", topics=["users"])
    client.beat()
    assert client.held == {"orders": {0, 1}, "users": {0, 1}}


def test_topics_that_come_and_go_are_followed() -> None:
    play = new_play()
    client = Client(play, "m", regex="orders.*")
    client.beat()
    play.topics.create("orders_us", 1)
    play.change_topics("orders_us")
    settle(play, [client])
    assert set(client.held) == {"orders", "orders_eu", "orders_us"}
    play.topics.delete("orders")
    play.change_topics(deleted=["orders"])
    settle(play, [client])
    assert set(client.held) == {"orders_eu", "orders_us"}


def test_a_topic_that_came_while_the_broker_was_down_is_found_when_it_is_back() -> None:
    play = new_play()
    client = Client(play, "m", regex="orders.*")
    client.beat()
    play.topics.create("orders_us", 1)
    play.restart()
    settle(play, [client])
    assert "orders_us" in client.held


def test_expressions_are_matched_anew_after_the_refresh_interval() -> None:
    play = new_play()
    client = Client(play, "m", regex="orders.*")
    client.beat()
    play.topics.create("orders_us", 1)  # and nobody says so
    for _ in range(31):
        play.pass_time(20_000)
        client.beat()
    settle(play, [client])
    assert "orders_us" in client.held


def test_the_record_of_an_expression_goes_with_its_last_member() -> None:
    play = new_play()
    first, second = Client(play, "a", regex="orders.*"), Client(play, "b", regex="orders.*")
    settle(play, [first, second])
    first.leave()
    assert set(play.group().resolved) == {"orders.*"}
    logged = len(play.log)
    second.beat(regex="users")
    assert set(play.group().resolved) == {"users"}
    assert (16, True) in play.kinds_logged(logged)
    settle(play, [second])
    assert second.held == {"users": {0, 1}}
    second.leave()
    assert play.group().resolved == {}


def test_a_member_may_give_up_its_expression() -> None:
    play = new_play()
    client = Client(play, "m", regex="orders.*")
    client.beat()
    client.beat(regex="", topics=["users"])
    settle(play, [client])
    assert client.held == {"users": {0, 1}}
