"""Fetch: offsets, limits, epochs, isolation, topic ids and sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from moldau.protocol.compression import Compression
from moldau.protocol.messages.fetch import FetchRequest
from tests.differential.batches import batch
from tests.differential.deliberate import WHOLE_BATCHES
from tests.differential.pair import Pair, Side, versions_of

pytestmark = pytest.mark.oracle

UNKNOWN_ID = bytes(range(16))
SESSION = ("session_id",)  # dice
Wanted = tuple[str, int, int]


def _partition(index: int, offset: int, version: int, **more: Any) -> FetchRequest.FetchPartition:
    limit = more.pop("bytes_max", 1 << 20)
    if version < 9:
        more.pop("current_leader_epoch", None)
    if version < 12:
        more.pop("last_fetched_epoch", None)
    return FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=limit, **more)


def _fetch(
    version: int,
    wanted: Sequence[tuple[str, FetchRequest.FetchPartition]],
    *,
    session: Callable[[Side], tuple[int, int]] = lambda side: (0, -1),
    forgotten: Sequence[tuple[str, list[int]]] = (),
    wait_ms: int = 0,
    bytes_min: int = 0,
    bytes_max: int = 1 << 24,
    isolation: int = 0,
) -> Callable[[Side], FetchRequest]:
    """A fetch, by topic ids from version 13 on. A name that the side does not know becomes an unknown id."""

    def build(side: Side) -> FetchRequest:
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=bytes_min, max_bytes=bytes_max, isolation_level=isolation)
        if version >= 7:
            request.session_id, request.session_epoch = session(side)
        for topic, partition in wanted:
            if version >= 13:
                entry = FetchRequest.FetchTopic(topic_id=side.topic_ids.get(topic, UNKNOWN_ID), partitions=[partition])
            else:
                entry = FetchRequest.FetchTopic(topic=topic, partitions=[partition])
            request.topics.append(entry)
        for topic, indexes in forgotten:
            if version >= 13:
                gone = FetchRequest.ForgottenTopic(topic_id=side.topic_ids.get(topic, UNKNOWN_ID), partitions=indexes)
            else:
                gone = FetchRequest.ForgottenTopic(topic=topic, partitions=indexes)
            request.forgotten_topics_data.append(gone)
        return request

    return build


THREE = (batch(b"a", b"b"), batch(b"c", b"d", b"e"), batch(b"f", compression=Compression.GZIP))


@pytest.mark.parametrize("version", versions_of(1))
def test_records_are_fetched(pair: Pair, version: int) -> None:
    topic, empty = pair.create("t", 2, batches=THREE), pair.create("empty")
    for offset in (0, 1, 2, 4, 5, 6):
        pair.ask(_fetch(version, [(topic, _partition(0, offset, version))]), version, say=f"offset {offset}")
    for offset in (7, 100, -1, -2, 2**40):
        pair.ask(_fetch(version, [(topic, _partition(0, offset, version))]), version, say=f"out of range {offset}")
    for limit in (0, 1, 90, 100, 170, 1 << 20):
        one = [(topic, _partition(0, 0, version, bytes_max=limit))]
        pair.ask(_fetch(version, one), version, deliberate=(WHOLE_BATCHES,), say=f"partition_max_bytes {limit}")
        two = [
            (topic, _partition(0, 0, version)),
            (empty, _partition(0, 0, version)),
            (topic, _partition(1, 0, version)),
        ]
        pair.ask(_fetch(version, two, bytes_max=limit), version, deliberate=(WHOLE_BATCHES,), say=f"max_bytes {limit}")
    for isolation in (0, 1):
        pair.ask(_fetch(version, [(topic, _partition(0, 0, version))], isolation=isolation), version, say="isolation")
        pair.ask(_fetch(version, [(empty, _partition(0, 0, version))], isolation=isolation), version, say="isolation")
    pair.ask(_fetch(version, []), version, say="nothing")
    pair.ask(
        _fetch(version, [(topic, _partition(0, 6, version))], wait_ms=20, bytes_min=1), version, say="waits in vain"
    )
    pair.ask(
        _fetch(version, [(topic, _partition(0, 0, version))], wait_ms=20, bytes_min=10**6), version, say="too little"
    )


@pytest.mark.parametrize("version", versions_of(1))
def test_what_is_not_there_is_refused(pair: Pair, version: int) -> None:
    topic, missing = pair.create("t", batches=THREE), pair.topic("missing")
    for index in (1, -1, 99):
        pair.ask(_fetch(version, [(topic, _partition(index, 0, version))]), version, say=f"partition {index}")
    pair.ask(_fetch(version, [(missing, _partition(0, 0, version))]), version, say="unknown topic")
    both = [(topic, _partition(0, 0, version)), (missing, _partition(0, 0, version))]
    pair.ask(_fetch(version, both), version, unordered=("responses",), say="one there, one not")
    if version < 13:
        pair.ask(_fetch(version, [("", _partition(0, 0, version))]), version, say="no name")


@pytest.mark.parametrize("version", range(9, 19))
def test_leader_epochs_are_checked(pair: Pair, version: int) -> None:
    topic = pair.create("t", batches=THREE)
    for epoch in (-1, 0, 1, 99, -2):
        wanted = [(topic, _partition(0, 0, version, current_leader_epoch=epoch))]
        pair.ask(_fetch(version, wanted), version, say=f"leader epoch {epoch}")
    if version < 12:
        return
    for offset, last in ((0, 0), (6, 0), (7, 0), (6, 1), (0, 5), (0, -1), (3, -2)):
        wanted = [(topic, _partition(0, offset, version, last_fetched_epoch=last))]
        pair.ask(_fetch(version, wanted), version, say=f"offset {offset} after epoch {last}")


@pytest.mark.parametrize("version", range(7, 19))
def test_sessions(pair: Pair, version: int) -> None:
    a, b = pair.create("a", 2, batches=THREE), pair.create("b", batches=THREE)
    missing = pair.topic("missing")

    def step(
        wanted: Sequence[tuple[str, int, int]], epoch: int, say: str, *, shift: int = 0, **more: Any
    ) -> tuple[Any, Any]:
        answers = pair.ask(
            _fetch(
                version,
                [(topic, _partition(index, offset, version)) for topic, index, offset in wanted],
                session=lambda side: (side.notes.get("session", 0) + shift, epoch),
                **more,
            ),
            version,
            masks=SESSION,
            say=say,
        )
        for side, answer in zip(pair.sides, answers, strict=True):
            assert (answer.session_id != 0) == (answers[1].session_id != 0), f"{side.name}: {say}"
        return answers

    opened = step([(a, 0, 0), (a, 1, 0), (b, 0, 6)], 0, "opens")
    for side, answer in zip(pair.sides, opened, strict=True):
        side.notes["session"] = answer.session_id
    step([], 1, "repeats: the one with data again")
    step([(a, 0, 6)], 2, "moves on")
    step([], 3, "nothing new")
    step([(b, 0, 0)], 4, "moves back")
    step([], 4, "an epoch that was used")
    step([], 7, "an epoch too far")
    step([], 5, "goes on")
    step([], 6, "forgets", forgotten=[(b, [0])])
    step([(b, 0, 3), (a, 1, 0)], 7, "adds again")
    step([(missing, 0, 0)], 8, "adds what is not there")
    step([], 9, "asks again")
    step([(a, 0, 99)], 10, "out of range", forgotten=[(missing, [0])])
    step([], 11, "still out of range")
    step([(a, 0, 0)], 1, "another session", shift=1)
    step([], -5, "a negative epoch")
    step([(a, 0, 0)], -1, "closes")
    step([], 12, "is closed")
    again = step([(a, 0, 0)], 0, "opens another, naming the closed one")
    for side, answer in zip(pair.sides, again, strict=True):
        side.notes["session"] = answer.session_id
    replaced = step([(a, 0, 1)], 0, "replaces it")
    step([], 1, "the replaced one is gone")
    for side, answer in zip(pair.sides, replaced, strict=True):
        side.notes["session"] = answer.session_id
    step([], 1, "the new one goes on", isolation=1)
    step([], -1, "closes without partitions")
    step([], 0, "opens with nothing")


def test_a_session_does_not_mix_names_and_ids(pair: Pair) -> None:
    topic = pair.create("t", batches=THREE)
    for first, then in ((12, 13), (13, 12)):
        answers = pair.ask(
            _fetch(first, [(topic, _partition(0, 0, first))], session=lambda side: (0, 0)), first, masks=SESSION
        )
        for side, answer in zip(pair.sides, answers, strict=True):
            side.notes["session"] = answer.session_id
        mixed = _fetch(then, [(topic, _partition(0, 0, then))], session=lambda side: (side.notes["session"], 1))
        pair.ask(mixed, then, masks=SESSION, say=f"{first} then {then}")
