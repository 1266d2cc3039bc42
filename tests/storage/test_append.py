"""What a leader takes, what it refuses with which number, and what it writes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import Record, build_batch, build_plain_batch, control_key, iterate_records, read_header
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import Compression
from moldau.storage import PartitionLog, RecordRefusal
from moldau.testing.disk import SimulatedDisk
from tests.storage.kit import (
    DIRECTORY,
    NOW_MS,
    append,
    batch,
    content,
    fill,
    flush,
    idempotent,
    new_disk,
    offsets,
    open_log,
)


def with_field(position: int, layout: str, value: int, *, count: int = 1, seal: bool = True) -> bytearray:
    """A batch with one field changed; its checksum is made right again unless told otherwise."""
    changed = batch(count)
    struct.pack_into(layout, changed, position, value)
    if seal:
        struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return changed


REFUSED: list[tuple[str, Callable[[], bytearray], ErrorCode]] = [
    ("empty", bytearray, ErrorCode.CORRUPT_MESSAGE),
    ("a header cut short", lambda: batch()[:60], ErrorCode.CORRUPT_MESSAGE),
    ("a body cut short", lambda: batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
    ("two batches", lambda: batch() + batch(), ErrorCode.INVALID_RECORD),
    ("wrong checksum", lambda: with_field(17, ">I", 1, seal=False), ErrorCode.CORRUPT_MESSAGE),
    ("magic 0", lambda: with_field(16, ">b", 0), ErrorCode.INVALID_RECORD),
    ("magic 1", lambda: with_field(16, ">b", 1), ErrorCode.INVALID_RECORD),
    ("magic 3", lambda: with_field(16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
    ("a negative length", lambda: with_field(8, ">i", -5), ErrorCode.CORRUPT_MESSAGE),
    ("an absurd length", lambda: with_field(8, ">i", 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
    ("a base offset", lambda: with_field(0, ">q", 5), ErrorCode.INVALID_RECORD),
    ("no records", lambda: with_field(57, ">i", 0), ErrorCode.INVALID_RECORD),
    ("too many records", lambda: with_field(57, ">i", 9), ErrorCode.INVALID_RECORD),
    ("a negative delta", lambda: with_field(23, ">i", -1), ErrorCode.INVALID_RECORD),
    ("a control batch", lambda: with_field(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
    ("the broker's time", lambda: with_field(21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP),
    ("an unknown codec", lambda: with_field(21, ">h", 0x06), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("a producer without sequence", lambda: with_field(43, ">q", 3), ErrorCode.INVALID_RECORD),
]


@pytest.mark.parametrize(("name", "make", "code"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_trap_13_and_15_a_malformed_batch_is_refused_with_its_number_and_nothing_is_written(
    name: str, make: Callable[[], bytearray], code: ErrorCode
) -> None:
    log = open_log(new_disk())
    append(log)
    size = log.size_bytes
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(make(), 0, NOW_MS)
    assert refusal.value.code is code
    assert refusal.value.message
    assert (log.end_offset, log.size_bytes) == (1, size)


def test_trap_14_offset_and_epoch_are_set_in_place_and_the_rest_stays_the_producers_bytes() -> None:
    log = open_log(new_disk())
    append(log, 3)
    sent = batch(2)
    original = bytes(sent)
    result = log.append_as_leader(sent, 9, NOW_MS)
    piece = log.read(3, 1, offset_max=5)
    assert piece is not None
    stored = piece.read()
    assert (result.base_offset, result.last_offset, result.log_append_time_ms, result.duplicate) == (3, 4, -1, False)
    assert (read_header(stored).base_offset, read_header(stored).leader_epoch) == (3, 9)
    assert stored[8:12] + stored[16:] == original[8:12] + original[16:]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"compact": True},
        {"segment_bytes": 400},
        {"index_interval_bytes": 100},
        {"compression_type": "gzip"},
        {"message_timestamp_type": "LogAppendTime"},
    ],
    ids=str,
)
def test_a_batch_of_our_own_is_stored_as_a_clients_would_be(config: dict[str, Any]) -> None:
    own, clients = new_disk(), new_disk()
    logs = open_log(own, **config), open_log(clients, **config)
    for number in range(30):
        records = [(b"key", b"v" * number), (b"other", None)]
        epoch, now_ms = number // 10, NOW_MS + number
        logs[0].append_own(build_plain_batch(records, now_ms), 2, now_ms, epoch, now_ms)
        logs[1].append_as_leader(build_plain_batch(records, now_ms), epoch, now_ms)
    for log in logs:
        log.close(clean=True, now_ms=NOW_MS)
    assert {name: own.read_file(f"{DIRECTORY}/{name}") for name in own.list(DIRECTORY)} == {
        name: clients.read_file(f"{DIRECTORY}/{name}") for name in clients.list(DIRECTORY)
    }


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"max_message_bytes": 100}, ErrorCode.MESSAGE_TOO_LARGE),
        ({"segment_bytes": 100}, ErrorCode.RECORD_LIST_TOO_LARGE),
    ],
)
def test_a_batch_of_our_own_is_refused_for_its_size_alone(config: dict[str, Any], code: ErrorCode) -> None:
    log = open_log(new_disk(), **config)
    with pytest.raises(KafkaError) as refusal:
        log.append_own(build_plain_batch([(b"key", b"v" * 100)], NOW_MS), 1, NOW_MS, 0, NOW_MS)
    assert refusal.value.code is code and log.end_offset == 0


def test_a_memoryview_of_a_larger_buffer_is_taken_as_it_is() -> None:
    log = open_log(new_disk())
    frame = bytearray(b"head") + batch() + b"tail"
    log.append_as_leader(memoryview(frame)[4:-4], 0, NOW_MS)
    assert content(log) == frame[4:-4]


def test_max_message_bytes_bounds_the_whole_batch() -> None:
    sent = batch(value=b"x" * 200)
    assert append(open_log(new_disk(), max_message_bytes=len(sent)), value=b"x" * 200) == 0
    log = open_log(new_disk(), max_message_bytes=len(sent) - 1)
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(sent, 0, NOW_MS)
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_larger_than_a_segment_is_refused_as_a_list_too_large() -> None:
    log = open_log(new_disk(), segment_bytes=100)
    with pytest.raises(KafkaError) as refusal:
        append(log, value=b"x" * 200)
    assert refusal.value.code is ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("codec", ["producer", "zstd"])
def test_trap_14_log_append_time_sets_the_attribute_the_timestamp_and_a_new_checksum(codec: str) -> None:
    log = open_log(new_disk(), message_timestamp_type="LogAppendTime", compression_type=codec)
    result = log.append_as_leader(batch(2, timestamp=5), 0, NOW_MS + 40)
    assert result.log_append_time_ms == NOW_MS + 40
    stored = content(log)
    assert read_header(stored).is_log_append_time
    assert [record.timestamp for record in iterate_records(stored)] == [NOW_MS + 40] * 2
    log.close(clean=False, now_ms=NOW_MS)


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("source", list(Compression))
def test_batches_are_stored_in_the_topics_codec_with_the_same_records(target: str, source: Compression) -> None:
    disk = new_disk()
    log = open_log(disk, compression_type=target)
    sent = batch(3, value=b"abc" * 50, compression=source)
    expected = list(iterate_records(sent))
    log.append_as_leader(sent, 0, NOW_MS)
    stored = content(log)
    wanted = Compression.NONE if target == "uncompressed" else Compression[target.upper()]
    assert read_header(stored).compression is wanted
    assert [record[1:] for record in iterate_records(stored)] == [record[1:] for record in expected]
    assert open_log(disk).end_offset == 3


def test_a_codec_that_makes_the_batch_too_large_is_refused_after_recompression() -> None:
    sent = batch(value=b"a" * 5000, compression=Compression.ZSTD)
    log = open_log(new_disk(), compression_type="uncompressed", max_message_bytes=1000)
    assert len(sent) < 1000
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(sent, 0, NOW_MS)
    assert refusal.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_trap_15_timestamps_outside_of_the_bounds_are_refused_with_record_errors() -> None:
    log = open_log(new_disk(), message_timestamp_after_max_ms=1000, message_timestamp_before_max_ms=5000)
    for timestamp in (NOW_MS + 1001, NOW_MS - 5001):
        with pytest.raises(RecordRefusal) as refusal:
            append(log, timestamp=timestamp)
        assert refusal.value.code is ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in refusal.value.record_errors] == [0]
    for timestamp in (NOW_MS + 1000, NOW_MS - 5000, -1):
        append(log, timestamp=timestamp)


def test_trap_15_an_old_record_in_the_middle_of_a_batch_is_found_although_the_header_does_not_show_it() -> None:
    log = open_log(new_disk(), message_timestamp_before_max_ms=5000)
    records = [Record(0, NOW_MS, b"k", b""), Record(1, NOW_MS - 9000, b"k", b""), Record(2, NOW_MS, b"k", b"")]
    with pytest.raises(RecordRefusal) as refusal:
        log.append_as_leader(build_batch(records), 0, NOW_MS)
    assert [index for index, _ in refusal.value.record_errors] == [1]


def test_the_default_allows_any_past_and_an_hour_of_future() -> None:
    log = open_log(new_disk())
    append(log, timestamp=0)
    append(log, timestamp=NOW_MS + 3_600_000)
    with pytest.raises(KafkaError) as refusal:
        append(log, timestamp=NOW_MS + 3_600_001)
    assert refusal.value.code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
def test_trap_15_a_keyless_record_on_a_compacted_topic_is_refused_and_named(codec: Compression) -> None:
    log = open_log(new_disk(), compact=True)
    records = [Record(index, NOW_MS, key, b"v") for index, key in enumerate([b"a", None, b"", None])]
    with pytest.raises(RecordRefusal) as refusal:
        log.append_as_leader(build_batch(records, compression=codec), 0, NOW_MS)
    assert refusal.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in refusal.value.record_errors] == [1, 3]
    append(log, 3)


def test_config_changes_take_effect_with_the_next_append() -> None:
    log = open_log(new_disk())
    append(log, key=None)
    log.apply_config(open_log(new_disk(1), compact=True, segment_bytes=200).config)
    with pytest.raises(RecordRefusal):
        append(log, key=None)
    fill(log, 4)
    assert len(log.segment_base_offsets) > 1


# -- trap 17 -----------------------------------------------------------------------------------------------------------


def test_trap_17_the_last_five_batches_are_answered_with_their_first_offsets_and_not_written_again() -> None:
    log = open_log(new_disk())
    sequence, written = 0, []
    for count in (1, 2, 3, 1, 2, 4):
        written.append((sequence, count, log.append_as_leader(idempotent(sequence, count), 0, NOW_MS)))
        sequence += count
    size = log.size_bytes
    for first, count, result in written[1:]:
        again = log.append_as_leader(idempotent(first, count), 0, NOW_MS)
        assert (again.duplicate, again.base_offset, again.last_offset) == (True, result.base_offset, result.last_offset)
    assert log.size_bytes == size
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(idempotent(written[0][0], written[0][1]), 0, NOW_MS)
    assert refusal.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


SEQUENCES = [
    ("a gap", idempotent(4, epoch=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("a step back", idempotent(1, epoch=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("another size of an old batch", idempotent(0, 2, epoch=2), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ("an older epoch", idempotent(3, epoch=1), ErrorCode.INVALID_PRODUCER_EPOCH),
    ("a new epoch in the middle", idempotent(3, epoch=3), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
]


@pytest.mark.parametrize(("name", "sent", "code"), SEQUENCES, ids=[name for name, _, _ in SEQUENCES])
def test_trap_17_what_does_not_follow_is_refused(name: str, sent: bytearray, code: ErrorCode) -> None:
    log = open_log(new_disk())
    log.append_as_leader(idempotent(0, 3, epoch=2), 0, NOW_MS)
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(bytearray(sent), 0, NOW_MS)
    assert refusal.value.code is code
    assert log.end_offset == 3


def test_trap_17_a_new_epoch_starts_at_zero_and_an_unknown_producer_anywhere() -> None:
    log = open_log(new_disk())
    log.append_as_leader(idempotent(500), 0, NOW_MS)
    log.append_as_leader(idempotent(501), 0, NOW_MS)
    log.append_as_leader(idempotent(0, epoch=1), 0, NOW_MS)
    assert not log.append_as_leader(idempotent(1, epoch=1), 0, NOW_MS).duplicate


def test_trap_17_sequences_wrap_from_the_largest_to_zero() -> None:
    log = open_log(new_disk())
    last = 2**31 - 1
    log.append_as_leader(idempotent(last - 1, 3), 0, NOW_MS)
    result = log.append_as_leader(idempotent(1), 0, NOW_MS)
    assert result.base_offset == 3
    again = log.append_as_leader(idempotent(last - 1, 3), 0, NOW_MS)
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 0, 2)


def test_trap_17_zero_follows_the_largest_sequence_exactly() -> None:
    log = open_log(new_disk())
    log.append_as_leader(idempotent(2**31 - 2, 2), 0, NOW_MS)
    with pytest.raises(KafkaError):
        log.append_as_leader(idempotent(1), 0, NOW_MS)
    assert log.append_as_leader(idempotent(0), 0, NOW_MS).base_offset == 2


@pytest.mark.parametrize("clean", [True, False])
def test_trap_17_producers_are_known_after_a_restart(clean: bool) -> None:
    disk = new_disk()
    log = open_log(disk, segment_bytes=300)
    for sequence in range(9):
        log.append_as_leader(idempotent(sequence), 0, NOW_MS)
    log.close(clean=clean, now_ms=NOW_MS)
    log = open_log(disk, segment_bytes=300, clean=clean, recovery_point=log.recovery_point)
    again = log.append_as_leader(idempotent(8), 0, NOW_MS)
    assert (again.duplicate, again.base_offset) == (True, 8)
    with pytest.raises(KafkaError):
        log.append_as_leader(idempotent(11), 0, NOW_MS)
    assert log.append_as_leader(idempotent(9), 0, NOW_MS).base_offset == 9


def test_producers_expire_after_a_day_and_may_then_begin_anywhere() -> None:
    log = open_log(new_disk())
    log.append_as_leader(idempotent(0), 0, NOW_MS)
    log.expire_producers(NOW_MS + 86_399_999)
    assert len(log.producers) == 1
    log.expire_producers(NOW_MS + 86_400_000)
    assert len(log.producers) == 0
    log.append_as_leader(idempotent(77), 0, NOW_MS)


# -- control batches and transactions ----------------------------------------------------------------------------------


def marker(*, aborted: bool, producer_id: int = 7, epoch: int = 0, coordinator_epoch: int = 3) -> bytearray:
    return build_batch(
        [Record(0, NOW_MS, control_key(0 if aborted else 1), struct.pack(">hi", 0, coordinator_epoch))],
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


def test_an_open_transaction_bounds_the_last_stable_offset_until_its_marker() -> None:
    disk = new_disk()
    log = open_log(disk)
    append(log)
    log.append_as_leader(idempotent(0, 2, transactional=True), 0, NOW_MS)
    log.append_as_leader(idempotent(0, producer_id=8, transactional=True), 0, NOW_MS)
    assert log.last_stable_offset_bound == 1
    assert open_log(disk.kill()).last_stable_offset_bound == 1
    log.append_control(marker(aborted=True), 0, NOW_MS)
    assert log.last_stable_offset_bound == 3
    log.append_control(marker(aborted=False, producer_id=8), 0, NOW_MS)
    assert log.last_stable_offset_bound is None
    (aborted,) = log.aborted_transactions(0, log.end_offset)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset) == (7, 1, 4, 3)
    assert log.aborted_transactions(5, log.end_offset) == []
    for reopened in (open_log(disk.kill()), _closed_and_opened(log, disk)):
        assert reopened.aborted_transactions(0, 6) == [aborted]
        assert reopened.last_stable_offset_bound is None


def _closed_and_opened(log: PartitionLog, disk: SimulatedDisk) -> PartitionLog:
    log.close(clean=True, now_ms=NOW_MS)
    return open_log(disk, clean=True, recovery_point=log.recovery_point)


def test_a_damaged_index_of_aborted_transactions_is_made_again_from_the_log() -> None:
    disk = new_disk()
    log = open_log(disk)
    log.append_as_leader(idempotent(0, 2, transactional=True), 0, NOW_MS)
    log.roll(NOW_MS)
    log.append_control(marker(aborted=True), 0, NOW_MS)
    expected = log.aborted_transactions(0, 3)
    log = _closed_and_opened(log, disk)
    path = "data/orders-0/00000000000000000002.txnindex"
    disk.flip_bit(path, 1)
    assert log.aborted_transactions(0, 3) == expected != []


def test_writing_outside_of_an_open_transaction_and_a_fenced_coordinator_are_refused() -> None:
    log = open_log(new_disk())
    log.append_as_leader(idempotent(0, transactional=True), 0, NOW_MS)
    with pytest.raises(KafkaError) as refusal:
        log.append_as_leader(idempotent(1), 0, NOW_MS)
    assert refusal.value.code is ErrorCode.INVALID_TXN_STATE
    log.append_control(marker(aborted=False, coordinator_epoch=5), 0, NOW_MS)
    with pytest.raises(KafkaError) as refusal:
        log.append_control(marker(aborted=False, coordinator_epoch=4), 0, NOW_MS)
    assert refusal.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


# -- followers ---------------------------------------------------------------------------------------------------------


def test_a_follower_stores_the_leaders_bytes_with_offsets_epochs_producers_and_indexes() -> None:
    leader, follower = open_log(new_disk(), segment_bytes=700), open_log(new_disk(1), segment_bytes=500)
    for sequence in range(20):
        leader.append_as_leader(idempotent(sequence), sequence // 7, NOW_MS + sequence)
    data = content(leader)
    follower.append_as_follower(data[:-5])
    assert follower.end_offset == 19
    follower.append_as_follower(data[len(content(follower)) :])
    assert content(follower) == data
    assert follower.epochs == leader.epochs
    assert [p.snapshot_fields for p in follower.producers.active()] == [
        p.snapshot_fields for p in leader.producers.active()
    ]
    assert len(follower.segment_base_offsets) > 3
    assert follower.offset_for_timestamp(NOW_MS + 11) == leader.offset_for_timestamp(NOW_MS + 11)


def test_a_follower_refuses_damage_and_offsets_that_go_back_but_takes_gaps() -> None:
    leader, follower = open_log(new_disk()), open_log(new_disk(1))
    fill(leader, 3)
    data = bytearray(content(leader))
    size = len(data) // 3
    with pytest.raises(KafkaError) as refusal:
        follower.append_as_follower(data[:size] + data[:size])
    assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert follower.end_offset == 1
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as refusal:
        follower.append_as_follower(damaged[size:])
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
    assert follower.end_offset == 2
    append(leader)
    follower.append_as_follower(content(leader)[3 * size :])
    assert offsets(follower) == [(0, 0), (1, 1), (3, 3)]


def test_flush_after_appends_moves_the_recovery_point() -> None:
    log = open_log(new_disk())
    fill(log, 3)
    assert log.recovery_point == 0
    flush(log)
    assert log.recovery_point == 3
    assert log.flush_task() is None
