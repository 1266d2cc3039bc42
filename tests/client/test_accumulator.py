"""Batches and the order of sequences, without a network: the rules at the top of `accumulator`."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.accumulator import Batch, PartitionQueue, Verdict
from moldau.kernel import ErrorCode
from moldau.protocol.batches import SEQUENCE_MAX, crc_is_valid, iterate_records, read_header
from moldau.protocol.compression import Compression

blobs = st.none() | st.binary(max_size=300)
records = st.tuples(st.integers(0, 2**50), blobs, blobs, st.lists(st.tuples(st.text(max_size=20), blobs), max_size=3))


@given(st.lists(records, min_size=1, max_size=20), st.sampled_from(Compression))
def test_a_batch_reads_back_as_the_records_put_in(taken: list[tuple], codec: Compression) -> None:
    batch = Batch("t", 0, 0, 0.0, 0)
    for record in taken:
        batch.append(*record)
    batch.seal(codec, None)
    batch.stamp(7, 3, 11)
    header = read_header(batch.buffer)
    assert header.size == len(batch.buffer)
    assert crc_is_valid(batch.buffer, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert (header.record_count, header.last_offset_delta) == (len(taken), len(taken) - 1)
    assert header.max_timestamp == max(record[0] for record in taken)
    assert header.base_timestamp == taken[0][0]
    read = list(iterate_records(batch.buffer))
    assert [(one.timestamp, one.key, one.value, [tuple(h) for h in one.headers]) for one in read] == taken
    assert [one.offset for one in read] == list(range(len(taken)))


def test_a_batch_is_left_alone_by_a_value_that_is_not_bytes() -> None:
    batch = Batch("t", 0, 0, 0.0, 0)
    batch.append(0, None, b"good", None)
    before = bytes(batch.buffer)
    with pytest.raises(TypeError):
        batch.append(0, None, "text", None)  # type: ignore[arg-type]
    assert (bytes(batch.buffer), batch.count) == (before, 1)


def _queue(*, idempotent: bool = True) -> PartitionQueue:
    queue = PartitionQueue("t", 0, idempotent=idempotent)
    queue.leader = 1
    if idempotent:
        queue.adopt(1000, 0)
    return queue


def _add(queue: PartitionQueue, count: int = 1) -> Batch:
    batch = queue.open_batch(0.0, 0)
    for _ in range(count):
        batch.append(0, None, b"v", None)
    queue.close_batch()
    batch.seal(Compression.NONE, None)
    return batch


def test_sequences_run_on_from_batch_to_batch_and_wrap() -> None:
    queue = _queue()
    queue.next_sequence = SEQUENCE_MAX - 1
    _add(queue, 3), _add(queue, 2)
    queue.acknowledged = True
    assert [queue.take().base_sequence, queue.take().base_sequence] == [SEQUENCE_MAX - 1, 1]
    assert queue.next_sequence == 3


def test_one_batch_is_in_flight_until_the_partition_has_acknowledged_one() -> None:
    queue = _queue()
    _add(queue), _add(queue), _add(queue)
    first = queue.take()
    assert not queue.may_send()
    queue.on_delivered(first)
    assert queue.may_send()
    queue.take()
    assert queue.may_send()


def test_retries_go_out_in_order_one_at_a_time_and_before_new_batches() -> None:
    queue = _queue()
    queue.acknowledged = True
    first, second, third, new = (_add(queue) for _ in range(4))
    for _ in range(3):
        queue.take()
    queue.put_back(second)
    assert not queue.may_send()  # the first and third are under way
    queue.put_back(first)
    queue.put_back(third)
    assert list(queue.pending) == [first, second, third, new]
    for expected in (first, second, third):
        assert queue.may_send()
        assert queue.take() is expected
        assert not queue.may_send()
        queue.on_delivered(expected)
    assert queue.take() is new


def test_a_new_leader_gets_nothing_while_the_old_one_has_not_answered() -> None:
    queue = _queue()
    queue.acknowledged = True
    _add(queue), _add(queue)
    batch = queue.take()
    queue.leader = 2
    assert not queue.may_send()
    queue.on_delivered(batch)
    assert queue.may_send()


def test_a_gap_with_an_earlier_batch_under_way_is_waited_for_and_otherwise_starts_an_epoch() -> None:
    queue = _queue()
    queue.acknowledged = True
    first, second = _add(queue), _add(queue)
    queue.take(), queue.take()
    assert queue.judge(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.RETRY
    queue.put_back(first)
    assert queue.judge(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.RETRY
    queue.on_lost(first)
    assert queue.judge(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.NEW_EPOCH
    queue.put_back(second)
    queue.start_epoch()
    again = queue.take()
    assert (again.producer_epoch, again.base_sequence) == (1, 0)
    assert crc_is_valid(again.buffer, read_header(again.buffer))


def test_a_lost_batch_leaves_no_gap_for_those_that_were_never_sent() -> None:
    queue = _queue()
    queue.acknowledged = True
    _add(queue), _add(queue)
    lost = queue.take()
    assert queue.judge(lost, ErrorCode.INVALID_RECORD) is Verdict.FAILED
    queue.on_lost(lost)
    following = queue.take()
    assert (following.producer_epoch, following.base_sequence) == (1, 0)


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    queue = _queue()
    queue.adopt(1000, 32767)
    queue.start_epoch()
    assert queue.producer_id == -1


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, Verdict.DELIVERED),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, Verdict.DELIVERED),
        (ErrorCode.UNKNOWN_PRODUCER_ID, Verdict.NEW_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, Verdict.NEW_ID),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Verdict.RETRY),
        (ErrorCode.NOT_ENOUGH_REPLICAS, Verdict.RETRY),
        (ErrorCode.MESSAGE_TOO_LARGE, Verdict.FAILED),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Verdict.FAILED),
    ],
)
def test_an_answer_means(code: ErrorCode, verdict: Verdict) -> None:
    queue = _queue()
    _add(queue)
    assert queue.judge(queue.take(), code) is verdict


# -- the rules together, against a partition that checks sequences as Kafka does --------------------------------------


@dataclass
class Partition:
    """What a broker remembers of a producer: epoch, last sequence and the last five batches."""

    log: list[int] = field(default_factory=list)
    epoch: int = -1
    last: int = -1
    remembered: deque[int] = field(default_factory=lambda: deque(maxlen=5))

    def append(self, epoch: int, sequence: int, record: int) -> ErrorCode:
        if epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch == self.epoch and sequence in self.remembered:
            return ErrorCode.NONE
        if epoch > self.epoch:
            if self.epoch >= 0 and sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.remembered.clear()
        elif sequence != self.last + 1:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.epoch, self.last = epoch, sequence
        self.remembered.append(sequence)
        self.log.append(record)
        return ErrorCode.NONE


@pytest.mark.parametrize("give_up", [0.0, 0.1])
def test_whatever_the_network_does_nothing_is_doubled_or_reordered_and_nothing_kept_is_missing(give_up: float) -> None:
    for seed in range(400):
        dice = random.Random(f"{seed} {give_up}")
        partition, queue = Partition(), _queue()
        batches = [_add(queue) for _ in range(30)]
        numbers = {batch.order: number for number, batch in enumerate(batches)}
        delivered, lost = [], set()
        wire: deque[tuple[Batch, int, int]] = deque()  # what is sent, in order, on one connection
        while queue.pending or queue.in_flight:
            while queue.may_send() and len(queue.in_flight) < 5 and dice.random() < 0.8:
                batch = queue.take()
                wire.append((batch, batch.producer_epoch, batch.base_sequence))
            if not wire:
                continue
            if dice.random() < 0.1:  # the connection is cut: some of it was written, none of it is answered
                for batch, epoch, sequence in list(wire)[: dice.randrange(len(wire) + 1)]:
                    partition.append(epoch, sequence, numbers[batch.order])
                for batch in [sent[0] for sent in wire]:
                    if dice.random() < give_up:
                        lost.add(numbers[batch.order])
                        queue.on_lost(batch)
                    else:
                        queue.put_back(batch)
                wire.clear()
                continue
            batch, epoch, sequence = wire.popleft()
            number = numbers[batch.order]
            refused = dice.random() < 0.15
            code = ErrorCode.NOT_ENOUGH_REPLICAS if refused else partition.append(epoch, sequence, number)
            verdict = queue.judge(batch, code)
            if verdict is Verdict.DELIVERED:
                queue.on_delivered(batch)
                delivered.append(number)
            elif dice.random() < give_up:
                lost.add(number)
                queue.on_lost(batch)
            else:
                assert verdict in (Verdict.RETRY, Verdict.NEW_EPOCH), (seed, code)
                queue.put_back(batch)
                if verdict is Verdict.NEW_EPOCH:
                    queue.start_epoch()
        assert partition.log == sorted(set(partition.log)), f"seed {seed}: doubled or out of order"
        assert set(delivered) <= set(partition.log), f"seed {seed}: acknowledged and not there"
        assert set(delivered) | lost == set(range(30)), f"seed {seed}: neither delivered nor given up"
        if not give_up:
            assert partition.log == list(range(30)), f"seed {seed}"
