"""Transactions against what they stand on: shards loaded anew, late batches, zombies, requests nobody would send."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from moldau.broker.verification import PRODUCERS_REMEMBERED_MAX, Verifications
from moldau.coordination import partition_of
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError, ProducerIdAndEpoch
from moldau.protocol.messages.describe_producers import DescribeProducersRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from moldau.storage import ProducerStates
from moldau.testing import Broker
from tests.broker.test_coordinator import committed
from tests.broker.test_produce_and_fetch import create
from tests.differential.transactions import (
    Producer,
    add_offsets,
    add_partitions,
    codes,
    commit_offsets,
    end,
    settled,
    transactional,
)
from tests.differential.wire import Wire
from tests.robustness.kit import alter, ask_in_thread, wait_until

TOPIC_KIND = 2
TRANSACTION_KIND = 1
UNVERIFIED = {"transaction.partition.verification.enable": "false"}
ONE_SHARD = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}


def ready(broker: Broker, *topics: str) -> Wire:
    wire = Wire(broker.bootstrap)
    for topic in topics:
        create(wire, topic)
    for kind in (0, TRANSACTION_KIND):
        wire.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"]), 6)
    return wire


def ask_until_settled(wire: Wire, request: Any, version: int) -> Any:
    answers: list[Any] = []

    def is_settled() -> bool:
        answers.append(wire.ask(request, version))
        return settled(answers[-1])

    assert wait_until(is_settled), answers[-1]
    return answers[-1]


def init(wire: Wire, transactional_id: str = "id") -> Producer:
    answer = ask_until_settled(wire, InitProducerIdRequest(transactional_id, 60_000), 4)
    assert answer.error_code == 0, answer
    return Producer(transactional_id, answer.producer_id, answer.producer_epoch)


def begin(wire: Wire, one: Producer, *topics: str) -> None:
    answer = ask_until_settled(wire, add_partitions(3, one, {topic: [0] for topic in topics}), 3)
    assert not any(codes(answer)), answer


def send(wire: Wire, one: Producer, topic: str, sequence: int, version: int = 11) -> ErrorCode:
    answer: Any = wire.ask(transactional(one, topic, sequence, b"v"), version)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def open_since(wire: Wire, topic: str) -> list[int]:
    """First offsets of the transactions that are open on the topic's only partition."""
    wanted = DescribeProducersRequest([DescribeProducersRequest.TopicRequest(topic, [0])])
    answer: Any = wire.ask(wanted, 0)
    producers = answer.topics[0].partitions[0].active_producers
    return [each.current_txn_start_offset for each in producers if each.current_txn_start_offset >= 0]


def load_anew(wire: Wire) -> None:
    """A record that the log does not take: the shard begins again from the log."""
    answer: Any = wire.ask(InitProducerIdRequest("x" * 5_000, 60_000), 4)
    assert ErrorCode(answer.error_code) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_order_of_before_the_shard_was_loaded_anew_ends_no_later_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Broker({**ONE_SHARD, "message.max.bytes": "4000"}) as broker:
        wire = ready(broker, "t")
        one = init(wire)
        begin(wire, one, "t")
        assert send(wire, one, "t", 0) is ErrorCode.NONE
        wire.ask(alter(TOPIC_KIND, "t", min__insync__replicas="2"), 1)
        monkeypatch.setattr("moldau.broker.markers.RETRY_MS_MIN", 2_000)
        ending, _ = ask_in_thread(Wire(broker.bootstrap), end(one, commit=True), 4)
        assert wait_until(lambda: any("marker_not_written" in line for line in broker.log))
        monkeypatch.setattr("moldau.broker.markers.RETRY_MS_MIN", 10)
        load_anew(wire)
        wire.ask(alter(TOPIC_KIND, "t", min__insync__replicas="1"), 1)
        assert wait_until(lambda: not open_since(wire, "t"))
        begin(wire, one, "t")
        assert send(wire, one, "t", 1) is ErrorCode.NONE
        assert open_since(wire, "t") == [2]
        wait_until(lambda: any("markers_left" in line for line in broker.log) or open_since(wire, "t") != [2])
        assert open_since(wire, "t") == [2], "nobody has ended the second transaction"
        ending.join(10)


def test_a_batch_that_need_not_be_asked_about_is_not_overtaken_while_another_of_its_request_is() -> None:
    """Two requests in one breath: the second must not find a gap where the first one's batch is waiting."""
    with Broker(ONE_SHARD) as broker:
        wire = ready(broker, "a", "b")
        one = init(wire)
        assert send(wire, one, "a", 0, version=12) is ErrorCode.NONE
        first = transactional(one, "a", 1, b"v")
        first.topic_data += transactional(one, "b", 0, b"v").topic_data
        second = transactional(one, "a", 2, b"v")
        wire.send(wire.frame(first, 12) + wire.frame(second, 12))
        told = [
            ErrorCode(each.partition_responses[0].error_code)
            for answer in (wire.decode(0, wire.receive(), 12), wire.decode(0, wire.receive(), 12))
            for each in cast("Any", answer).responses
        ]
        assert told == [ErrorCode.NONE] * 3


def test_a_batch_for_a_transaction_that_is_ending_is_decided_at_once_though_another_is_asked_about() -> None:
    """It is open when the request comes, so nothing has to be asked about it; later it would open another."""
    with Broker(ONE_SHARD) as broker:
        wire = ready(broker, "a", "b")
        one = init(wire)
        begin(wire, one, "a", "b")
        assert send(wire, one, "a", 0) is ErrorCode.NONE
        wire.ask(alter(TOPIC_KIND, "a", min__insync__replicas="2"), 1)
        ending, _ = ask_in_thread(Wire(broker.bootstrap), end(one, commit=True), 4)
        assert wait_until(lambda: any("marker_not_written" in line for line in broker.log))
        late = transactional(one, "a", 1, b"v")
        late.topic_data += transactional(one, "b", 0, b"v").topic_data
        asking, answers = ask_in_thread(Wire(broker.bootstrap), late, 11)
        assert broker.node is not None
        partition = broker.node.replicas.require("b", 0)
        assert wait_until(lambda: len(partition.verifications) == 1), "the coordinator is being asked"
        wire.ask(alter(TOPIC_KIND, "a", min__insync__replicas="1"), 1)
        asking.join(10)
        told = [ErrorCode(each.partition_responses[0].error_code) for each in answers[0].responses]
        assert told == [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.TRANSACTION_ABORTABLE]
        assert open_since(wire, "a") == open_since(wire, "b") == []
        ending.join(10)


def test_a_batch_for_a_topic_that_came_while_the_coordinator_was_asked_about_another_is_refused() -> None:
    with Broker(ONE_SHARD) as broker:
        wire = ready(broker, "a")
        one = init(wire)
        begin(wire, one, "a")
        assert send(wire, one, "a", 0) is ErrorCode.NONE
        wire.ask(alter(TOPIC_KIND, "a", min__insync__replicas="2"), 1)
        ending, _ = ask_in_thread(Wire(broker.bootstrap), end(one, commit=True), 4)
        assert wait_until(lambda: any("marker_not_written" in line for line in broker.log))
        create(wire, "b")
        late = transactional(one, "b", 0, b"v")
        late.topic_data += transactional(one, "c", 0, b"v").topic_data
        asking, answers = ask_in_thread(Wire(broker.bootstrap), late, 11)
        assert broker.node is not None
        partition = broker.node.replicas.require("b", 0)
        assert wait_until(lambda: len(partition.verifications) == 1), "the coordinator is being asked"
        create(wire, "c")
        wire.ask(alter(TOPIC_KIND, "a", min__insync__replicas="1"), 1)
        asking.join(10)
        told = [ErrorCode(each.partition_responses[0].error_code) for each in answers[0].responses]
        assert told == [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert open_since(wire, "c") == []
        ending.join(10)


def test_a_batch_does_not_become_the_first_because_the_one_before_it_was_refused() -> None:
    with Broker(ONE_SHARD) as broker:
        wire = ready(broker, "t")
        one = init(wire)
        assert send(wire, one, "t", 0) is ErrorCode.TRANSACTION_ABORTABLE, "the coordinator does not know of it yet"
        begin(wire, one, "t")
        assert send(wire, one, "t", 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(wire, one, "t", 0) is ErrorCode.NONE
        assert broker.node is not None
        assert not len(broker.node.replicas.require("t", 0).verifications), "nothing is kept once it is open"
        assert send(wire, one, "t", 1) is ErrorCode.NONE


def test_what_was_refused_is_forgotten_with_the_leadership() -> None:
    """Whoever leads meanwhile may open and end the producer's transaction, of which we are not told here."""
    with Broker(ONE_SHARD) as broker:
        wire = ready(broker, "t")
        assert send(wire, init(wire), "t", 0) is ErrorCode.TRANSACTION_ABORTABLE
        node = broker.node
        assert node is not None
        partition, assigned = node.replicas.require("t", 0), node.image.topics["t"].partitions[0]
        assert len(partition.verifications) == 1
        lost = assigned._replace(leader=NO_LEADER, leader_epoch=assigned.leader_epoch + 1)
        node.loop.call_soon_threadsafe(partition.follow, lost)
        assert wait_until(lambda: not len(partition.verifications))


def test_of_producers_that_were_refused_only_the_newest_are_remembered() -> None:
    verifications, producers = Verifications(), ProducerStates()
    for producer_id in range(PRODUCERS_REMEMBERED_MAX + 1):
        one = ProducerIdAndEpoch(producer_id, 0)
        begun = verifications.begin(producers, one, 0, bumps_epochs=False)
        assert begun is not None
        verifications.drop(producer_id, begun, may_try_again=True)
    assert len(verifications) == PRODUCERS_REMEMBERED_MAX
    for producer_id, is_remembered in ((0, False), (PRODUCERS_REMEMBERED_MAX, True)):
        one = ProducerIdAndEpoch(producer_id, 0)
        begun = verifications.begin(producers, one, 1, bumps_epochs=False)
        with pytest.raises(KafkaError) if is_remembered else nullcontext():
            verifications.check(producers, one, 1, begun)


@pytest.mark.parametrize("is_known", (True, False))
def test_a_partition_that_is_named_twice_is_asked_about_once(is_known: bool) -> None:
    with Broker(ONE_SHARD) as broker:
        wire = ready(broker, "t")
        one = init(wire) if is_known else Producer("nobody", 77, 0)
        twice = transactional(one, "t", 0, b"v")
        twice.topic_data *= 2
        answer: Any = wire.ask(twice, 12)
        told = [ErrorCode(each.partition_responses[0].error_code) for each in answer.responses]
        assert told == [ErrorCode.NONE if is_known else ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert broker.node is not None
        assert not len(broker.node.replicas.require("t", 0).verifications), "nothing is kept once it is answered"


@pytest.mark.parametrize(
    ("producer_id", "epoch", "told"),
    (
        (None, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
        (None, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (-1, -1, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ),
)
def test_a_zombies_offsets_are_refused_where_nothing_is_verified_and_cost_nobody_else_anything(
    producer_id: int | None, epoch: int, told: ErrorCode
) -> None:
    with Broker({**ONE_SHARD, **UNVERIFIED}) as broker:
        wire = ready(broker, "t")
        zombie = init(wire)
        one = init(wire)
        assert one.epoch == zombie.epoch + 1
        ask_until_settled(wire, add_offsets(one, "g"), 3)
        answer = ask_until_settled(wire, commit_offsets(3, one, "g", {"t": {0: 5}}), 3)
        assert not any(codes(answer)), answer
        stranger = zombie.changed(producer_id=one.producer_id if producer_id is None else producer_id, epoch=epoch)
        answer = wire.ask(commit_offsets(3, stranger, "h", {"t": {0: 6}}), 3)
        assert set(codes(answer)) == {told}
        assert not any("coordinator_append_failed" in line for line in broker.log), "its shard is not loaded anew"
        answer = ask_until_settled(wire, end(one, commit=True), 4)
        assert answer.error_code == 0
        assert committed(wire, "g") == 5 and committed(wire, "h") == -1


def test_a_marker_that_follows_another_in_its_request_sees_what_was_committed_between_them() -> None:
    """Both requests come in one turn of the loop; the second marker is written in the middle of that turn's end."""
    with Broker({**ONE_SHARD, **UNVERIFIED, "offsets.topic.num.partitions": "2"}) as broker:
        wire = ready(broker, "t")
        zombie = init(wire)
        one = init(wire)
        group = next(name for name in "abcdefgh" if partition_of(name, 2) == 1)
        ask_until_settled(wire, add_offsets(one, group), 3)
        topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic("__consumer_offsets", [0, 1])]
        marker = WriteTxnMarkersRequest.WritableTxnMarker(zombie.producer_id, zombie.epoch, False, topics, 0)
        wire.send(
            wire.frame(WriteTxnMarkersRequest([marker]), 1)
            + wire.frame(commit_offsets(3, one, group, {"t": {0: 5}}), 3)
        )
        written: Any = wire.decode(WriteTxnMarkersRequest.API_KEY, wire.receive(), 1)
        told = [ErrorCode(each.error_code) for each in written.markers[0].topics[0].partitions]
        assert told == [ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH]
        assert not any(codes(wire.decode(TxnOffsetCommitRequest.API_KEY, wire.receive(), 3)))
        assert not any("coordinator_append_failed" in line for line in broker.log)
