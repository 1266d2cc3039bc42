"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where things are, and where they begin."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moldau.protocol.compression import Compression
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tests.differential.batches import BASE_MS, batch
from tests.differential.pair import Pair, versions_of

pytestmark = pytest.mark.oracle

# Kafka answers partitions in the order of a hash map.
HASHED = ("topics.*.partitions",)
SPECIAL = (-1, -2, -3, -4, -5, -6, -7, -100)
# Times that do not rise: 0, 10, 20 | 5, 30 | 30, 7 (compressed) ms after the base.
BATCHES = (
    batch(b"a", b"b", b"c", timestamps=[BASE_MS, BASE_MS + 10, BASE_MS + 20]),
    batch(b"d", b"e", timestamps=[BASE_MS + 5, BASE_MS + 30]),
    batch(b"f", b"g", timestamps=[BASE_MS + 30, BASE_MS + 7], compression=Compression.LZ4),
)


def _list(
    version: int, topic: str, *wanted: tuple[int, int] | tuple[int, int, int], isolation: int = 0
) -> ListOffsetsRequest:
    partitions = []
    for each in wanted:
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=each[0], timestamp=each[1])
        if version >= 4 and len(each) > 2:
            partition.current_leader_epoch = each[2]
        partitions.append(partition)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(topic, partitions)])
    if version >= 2:
        request.isolation_level = isolation
    if version >= 10:
        request.timeout_ms = 1000
    return request


@pytest.mark.parametrize("version", versions_of(2))
def test_offsets_by_time(pair: Pair, version: int) -> None:
    topic, empty = pair.create("t", 2, batches=BATCHES), pair.create("empty")
    times = (0, BASE_MS - 1, *(BASE_MS + shift for shift in (0, 1, 5, 6, 10, 11, 20, 21, 29, 30, 31)), 2**62)
    for isolation in (0, 1):
        for time in (*SPECIAL, *times):
            pair.ask(_list(version, topic, (0, time), isolation=isolation), version, say=f"time {time}")
            pair.ask(_list(version, empty, (0, time), isolation=isolation), version, say=f"empty, time {time}")
    pair.ask(_list(version, topic, (0, -1), (1, -2)), version, unordered=HASHED, say="two partitions")
    pair.ask(_list(version, topic, (0, -1), (7, -1)), version, unordered=HASHED, say="one unknown partition")
    pair.ask(_list(version, topic, (-1, -1)), version, say="a negative partition")
    pair.ask(_list(version, topic, (0, -1), (0, -2)), version, unordered=HASHED, say="a partition twice")
    pair.ask(
        _list(version, topic, (0, -1), (0, -2), (1, -1)),
        version,
        unordered=HASHED,
        say="twice, one good",
    )
    pair.ask(_list(version, pair.topic("missing"), (0, -1)), version, say="unknown topic")
    pair.ask(_list(version, "bad name", (0, -1)), version, say="invalid topic")
    for epoch in (-1, 0, 1, 99, -2):
        pair.ask(_list(version, topic, (0, -1, epoch)), version, say=f"leader epoch {epoch}")
    pair.ask(ListOffsetsRequest(replica_id=-1), version, say="nothing")
    several = _list(version, topic, (0, -1))
    several.topics += _list(version, empty, (0, -1)).topics
    pair.ask(several, version, unordered=("topics",), say="two topics")


def _epochs(version: int, topic: str, *wanted: tuple[int, int, int]) -> OffsetForLeaderEpochRequest:
    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                topic, [OffsetForLeaderEpochRequest.OffsetForLeaderPartition(*each) for each in wanted]
            )
        ]
    )
    if version >= 3:
        request.replica_id = -1
    return request


@pytest.mark.parametrize("version", versions_of(23))
def test_ends_of_leader_epochs(pair: Pair, version: int) -> None:
    topic, empty = pair.create("t", batches=BATCHES), pair.create("empty")
    for current in (-1, 0, 1, -2):
        for epoch in (-1, 0, 1, 99):
            pair.ask(_epochs(version, topic, (0, current, epoch)), version, say=f"current {current}, asked {epoch}")
            pair.ask(_epochs(version, empty, (0, current, epoch)), version, say=f"empty, current {current}")
    pair.ask(_epochs(version, topic, (5, -1, 0)), version, say="unknown partition")
    pair.ask(_epochs(version, topic, (0, -1, 0), (5, -1, 0)), version, say="one of two")
    pair.ask(_epochs(version, pair.topic("missing"), (0, -1, 0)), version, say="unknown topic")
    pair.ask(OffsetForLeaderEpochRequest(), version, say="nothing")


def _trim(topics: Sequence[tuple[str, Sequence[tuple[int, int]]]]) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name, [DeleteRecordsRequest.DeleteRecordsPartition(*each) for each in partitions]
            )
            for name, partitions in topics
        ],
        timeout_ms=10_000,
    )


@pytest.mark.parametrize("version", versions_of(21))
def test_records_are_deleted_up_to_an_offset(pair: Pair, version: int) -> None:
    topic, empty = pair.create("t", 2, batches=BATCHES), pair.create("empty")
    compacted = pair.create("compacted", 1, {"cleanup.policy": "compact"}, batches=BATCHES)
    both = pair.create("both", 1, {"cleanup.policy": "compact,delete"}, batches=BATCHES)
    for offset in (0, 1, 4, 3, 8, 100, -2, -100, 7, 7, -1, 0):
        pair.ask(_trim([(topic, [(0, offset)])]), version, say=f"offset {offset}")
        pair.ask(_list(7, topic, (0, -2), (0, -1)), 7, unordered=HASHED, say=f"after {offset}")
        pair.ask(_list(7, topic, (0, -2)), 7, say=f"start after {offset}")
        pair.ask(_list(7, topic, (0, BASE_MS)), 7, say=f"by time after {offset}")
    for request, say in (
        (_trim([(empty, [(0, -1)])]), "an empty partition"),
        (_trim([(empty, [(0, 1)])]), "beyond an empty partition"),
        (_trim([(compacted, [(0, 1)])]), "a compacted topic"),
        (_trim([(both, [(0, 1)])]), "a topic that compacts and deletes"),
        (_trim([(topic, [(1, 0), (9, 0)])]), "an unknown partition"),
        (_trim([(pair.topic("missing"), [(0, 0)])]), "an unknown topic"),
        (_trim([(topic, [(1, -1)]), (pair.topic("missing"), [(0, 0)])]), "one of two"),
        (_trim([]), "nothing"),
    ):
        pair.ask(request, version, unordered=("topics", "topics.*.partitions"), say=say)
    pair.ask(_epochs(4, topic, (0, -1, 0)), 4, say="epochs after all")
