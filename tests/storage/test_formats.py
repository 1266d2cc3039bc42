"""The files' formats, each against bytes written out by hand, and round trips of anything."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.kernel import TopicPartition
from moldau.protocol.checksum import crc32c
from moldau.storage import AbortedTransaction, LeaderEpochs, ProducerStates, TransactionIndex
from moldau.storage.checkpoints import (
    CorruptCheckpointError,
    clean_shutdown_text,
    epochs_text,
    offsets_text,
    parse_clean_shutdown,
    parse_epochs,
    parse_offsets,
    parse_partition_metadata,
    parse_properties,
    partition_metadata_text,
    properties_text,
)
from moldau.storage.indexes import CorruptIndexError, OffsetIndex, TimeIndex
from moldau.storage.producer_state import CorruptSnapshotError

INT31 = st.integers(0, 2**31 - 1)
INT63 = st.integers(0, 2**63 - 1)


# -- indexes -----------------------------------------------------------------------------------------------------------


def test_an_offset_index_is_pairs_of_four_bytes() -> None:
    index = OffsetIndex()
    index.append(3, 0x1234)
    index.append(9, 0x20000)
    assert index.to_bytes() == bytes.fromhex("00000003 00001234 00000009 00020000")


def test_a_time_index_is_eight_bytes_of_time_and_four_of_offset() -> None:
    index = TimeIndex()
    index.append(0x0102030405060708, 5)
    index.append(0x0102030405060708, 6)
    index.append(0x0102030405060709, 7)
    assert index.to_bytes() == bytes.fromhex("0102030405060708 00000005 0102030405060709 00000007")


@given(st.dictionaries(INT31, INT31, max_size=50), INT31, INT31)
def test_an_offset_index_survives_its_file_and_answers_like_a_list(
    entries: dict[int, int], offset: int, position: int
) -> None:
    pairs = list(zip(sorted(entries), sorted(set(entries.values())), strict=False))
    index = OffsetIndex()
    for pair in pairs:
        index.append(*pair)
    again = OffsetIndex.from_bytes(index.to_bytes(), 2**31)
    assert list(zip(again.offsets, again.positions, strict=True)) == pairs
    assert again.position_for_offset(offset) == max((p for o, p in pairs if o <= offset), default=0)
    assert again.position_at_or_before(position) == max((p for _, p in pairs if p <= position), default=0)
    again.truncate(position)
    assert list(zip(again.offsets, again.positions, strict=True)) == [(o, p) for o, p in pairs if p < position]


@given(st.sets(INT63, max_size=30), st.sets(INT31, max_size=30), INT63, INT31)
def test_a_time_index_survives_its_file_and_answers_like_a_list(
    times: set[int], offsets: set[int], timestamp: int, cut: int
) -> None:
    pairs = list(zip(sorted(times), sorted(offsets), strict=False))
    index = TimeIndex()
    for pair in pairs:
        index.append(*pair)
    again = TimeIndex.from_bytes(index.to_bytes())
    assert list(zip(again.timestamps, again.offsets, strict=True)) == pairs
    assert again.offset_for(timestamp) == max((o for t, o in pairs if t <= timestamp), default=0)
    again.truncate(cut)
    assert list(again.offsets) == [o for _, o in pairs if o < cut]


@pytest.mark.parametrize(
    "data", ["000000", "00000005 00000010 00000005 00000020", "00000001 00000020 00000002 00000010"]
)
def test_an_offset_index_that_cannot_be_is_refused(data: str) -> None:
    with pytest.raises(CorruptIndexError):
        OffsetIndex.from_bytes(bytes.fromhex(data), 1 << 20)
    with pytest.raises(CorruptIndexError):
        OffsetIndex.from_bytes(bytes.fromhex("00000001 00000064"), 0x64)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_index_or_refused(data: bytes) -> None:
    for parse in (lambda: OffsetIndex.from_bytes(data, 1 << 30), lambda: TimeIndex.from_bytes(data)):
        try:
            assert parse().to_bytes() == data
        except CorruptIndexError:
            pass
    try:
        assert TransactionIndex.from_bytes(data).to_bytes() == data
    except ValueError:
        pass
    try:
        ProducerStates().load_snapshot(data)
    except CorruptSnapshotError:
        pass


def test_an_aborted_transaction_is_34_bytes() -> None:
    entry = AbortedTransaction(1, 2, 3, 4)
    assert entry.to_bytes() == struct.pack(">hqqqq", 0, 1, 2, 3, 4)
    assert TransactionIndex.from_bytes(entry.to_bytes()).entries == [entry]


# -- producers ---------------------------------------------------------------------------------------------------------


def test_a_producer_snapshot_is_version_checksum_count_and_46_bytes_each() -> None:
    states = ProducerStates()
    states.note_batch(9, 2, 5, 3, 100, 777, True)
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, 8, 103, 3, 777, -1, 100)
    assert states.to_snapshot() == struct.pack(">hI", 1, crc32c(body)) + body
    again = ProducerStates()
    again.load_snapshot(states.to_snapshot())
    assert again.first_open_offset == 100
    assert [state.snapshot_fields for state in again.active()] == [state.snapshot_fields for state in states.active()]


@given(st.data())
def test_a_damaged_snapshot_is_noticed(data: st.DataObject) -> None:
    states = ProducerStates()
    for producer_id in range(3):
        states.note_batch(producer_id, 0, 0, 0, producer_id, 1, False)
    snapshot = bytearray(states.to_snapshot())
    snapshot[data.draw(st.integers(0, len(snapshot) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptSnapshotError):
        ProducerStates().load_snapshot(bytes(snapshot))


# -- epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 10)),  # older than all: ended where the first begins
        (2, (2, 20)),
        (3, (3, 21)),
        (5, (3, 21)),
        (7, (7, 40)),
        (8, (7, 40)),
        (9, (9, 55)),
        (10, (-1, -1)),  # newer than all: this log cannot tell
    ],
)
def test_trap_21_an_epoch_ends_where_the_next_begins(asked: int, answer: tuple[int, int]) -> None:
    epochs = LeaderEpochs([(2, 10), (3, 20), (7, 21), (9, 40)])
    assert epochs.end_offset_for(asked, 55) == answer
    assert LeaderEpochs().end_offset_for(asked, 55) == (-1, -1)


def test_trap_20_assigning_an_epoch_removes_what_it_contradicts() -> None:
    epochs = LeaderEpochs()
    for epoch, start in ((0, 0), (1, 10), (1, 15), (3, 20)):
        epochs.assign(epoch, start)
    assert epochs.entries == [(0, 0), (1, 10), (3, 20)]
    epochs.assign(4, 12)
    assert epochs.entries == [(0, 0), (1, 10), (4, 12)]
    epochs.assign(5, 12)
    assert epochs.entries == [(0, 0), (1, 10), (5, 12)]
    epochs.assign(-1, 50)
    assert epochs.latest == 5


def test_trap_20_epochs_are_truncated_with_the_log_at_both_ends() -> None:
    def fresh() -> LeaderEpochs:
        return LeaderEpochs([(0, 0), (1, 10), (2, 20), (3, 30)])

    for end, kept in ((31, 4), (30, 3), (20, 2), (1, 1), (0, 0)):
        epochs = fresh()
        epochs.truncate_from_end(end)
        assert epochs.entries == fresh().entries[:kept]
    for start, first in ((0, (0, 0)), (5, (0, 5)), (10, (1, 10)), (29, (2, 29)), (99, (3, 99))):
        epochs = fresh()
        epochs.truncate_from_start(start)
        assert epochs.entries[0] == first
        assert epochs.latest == 3


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), max_size=20))
def test_epochs_always_rise_and_survive_their_file(assignments: list[tuple[int, int]]) -> None:
    epochs = LeaderEpochs()
    for epoch, start in assignments:
        epochs.assign(epoch, start)
        entries = epochs.entries
        assert entries == sorted(entries)
        assert len({e for e, _ in entries}) == len({s for _, s in entries}) == len(entries)
        assert entries[-1][0] == epochs.latest == epoch
    assert LeaderEpochs(parse_epochs(epochs_text(epochs.entries))) == epochs


# -- text --------------------------------------------------------------------------------------------------------------


def test_checkpoints_are_version_count_and_lines() -> None:
    assert epochs_text([(0, 0), (3, 17)]) == b"0\n2\n0 0\n3 17\n"
    offsets = {TopicPartition("orders", 0): 5, TopicPartition("my-topic.x_y", 12): 2**60}
    assert offsets_text(offsets) == f"0\n2\norders 0 5\nmy-topic.x_y 12 {2**60}\n".encode()
    assert parse_offsets(offsets_text(offsets)) == offsets
    assert parse_offsets(b"0\n0\n") == {}


@pytest.mark.parametrize("cut", range(len(b"0\n2\na 0 15\nb 1 27\n")))
def test_a_torn_checkpoint_is_noticed_at_every_byte(cut: int) -> None:
    with pytest.raises(CorruptCheckpointError):
        parse_offsets(b"0\n2\na 0 15\nb 1 27\n"[:cut])


@pytest.mark.parametrize("data", [b"1\n0\n", b"x\n0\n", b"0\n1\na b c\n", b"0\n1\na 1\n", b"0\n-1\n", b"0\n2\na 0 1\n"])
def test_a_checkpoint_that_does_not_read_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        parse_offsets(data)


def test_partition_metadata_names_the_topic() -> None:
    text = partition_metadata_text(bytes(range(16)))
    assert text == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert parse_partition_metadata(text) == bytes(range(16))
    for damaged in (b"", text[:-1], b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"\x00" * 40):
        with pytest.raises(CorruptCheckpointError):
            parse_partition_metadata(damaged)


def test_a_clean_shutdown_carries_the_broker_epoch() -> None:
    assert clean_shutdown_text(7) == b'{"version":0,"brokerEpoch":7}'
    assert parse_clean_shutdown(clean_shutdown_text(7)) == 7
    assert parse_clean_shutdown(b"") == parse_clean_shutdown(b"[]") == -1


def test_java_properties_are_read_with_comments_escapes_and_both_separators() -> None:
    text = b"#\n#Fri Oct 25\n! other\ncluster.id=a\\:b\\=c\nnode.id: 4\n  version = 1  \nempty=\n\n"
    assert parse_properties(text) == {"cluster.id": "a:b=c", "node.id": "4", "version": "1", "empty": ""}


@given(
    st.dictionaries(st.from_regex(r"[a-z.]{1,10}", fullmatch=True), st.text(st.characters(codec="ascii"), max_size=20))
)
def test_properties_survive_their_file(fields: dict[str, str]) -> None:
    fields = {key: "".join(c for c in value if c.isprintable()).strip() for key, value in fields.items()}
    assert parse_properties(properties_text(fields)) == fields
