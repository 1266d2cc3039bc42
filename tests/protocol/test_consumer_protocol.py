"""Subscriptions and assignments in a classic group's opaque bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.consumer_protocol import read_assignment, read_subscription, write_assignment, write_subscription
from moldau.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

SUBSCRIPTION = ConsumerProtocolSubscription(
    topics=["a", "b"],
    user_data=b"mine",
    owned_partitions=[ConsumerProtocolSubscription.TopicPartition("a", [0, 2])],
    generation_id=7,
    rack_id="r",
)


def test_what_is_written_is_read_back() -> None:
    assert read_subscription(write_subscription(SUBSCRIPTION)) == SUBSCRIPTION
    assignment = read_assignment(write_assignment({"a": [0, 1], "b": [2]}))
    assert assignment is not None
    assert [(each.topic, each.partitions) for each in assignment.assigned_partitions] == [("a", [0, 1]), ("b", [2])]


def test_an_assignment_is_written_in_the_version_that_its_member_reads() -> None:
    assert write_assignment({"a": [0]}, 1)[:2] == b"\0\1"
    assert write_assignment({"a": [0]}, 99)[:2] == struct.pack(">h", ConsumerProtocolAssignment.VERSION_MAX)


def test_no_bytes_are_an_assignment_of_nothing_but_no_subscription() -> None:
    assert read_assignment(b"") == ConsumerProtocolAssignment()
    assert read_subscription(b"") is None


def test_a_newer_version_is_read_as_far_as_we_know_it() -> None:
    newer = struct.pack(">h", 99)
    assert read_subscription(newer + write_subscription(SUBSCRIPTION)[2:] + b"what comes next") == SUBSCRIPTION
    assignment = read_assignment(newer + write_assignment({"a": [0]})[2:] + b"what comes next")
    assert assignment is not None and assignment.assigned_partitions[0].partitions == [0]


@pytest.mark.parametrize("damaged", [b"\0", b"\xff\xff", b"\0\0", b"\0\1\0\0\0\x7f", b"\0\3\xff\xff\xff\xfe"])
def test_what_does_not_read_is_none(damaged: bytes) -> None:
    assert read_subscription(damaged) is None
    assert read_assignment(damaged) is None


@given(st.binary(max_size=60))
def test_garbage_is_read_or_none_and_never_an_error(garbage: bytes) -> None:
    read_subscription(garbage)
    read_assignment(garbage)
