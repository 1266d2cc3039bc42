"""`moldau dlq`: dead letters are listed, shown, and sent back once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moldau.client import ClusterClient, ConsumedRecord, Producer, read_partition
from moldau.spark.pipelines import dead_letters as names
from tests.cli.conftest import Moldau


def letter(moldau: Moldau, topic: str, source: str, offset: int, value: bytes, reason: str = "no JSON") -> None:
    headers = {
        names.TOPIC: source.encode(),
        names.PARTITION: b"1",
        names.OFFSET: b"%d" % offset,
        names.REASON: reason.encode(),
        names.EXCEPTION: b"UnreadableRecord",
        names.STACK: b"Traceback: here",
        names.PIPELINE: b"shop",
    }

    async def work() -> None:
        async with Producer(moldau.bootstrap) as producer:
            await producer.send(topic, value, key=b"k", headers=[("own", b"1"), *headers.items()])

    asyncio.run(work())


def records(moldau: Moldau, topic: str, partition: int) -> list[ConsumedRecord]:
    async def work() -> list[ConsumedRecord]:
        async with ClusterClient(moldau.bootstrap) as client:
            return [record async for record in read_partition(client, topic, partition)]

    return asyncio.run(work())


@pytest.fixture
def letters(moldau: Moldau, topic: str) -> str:
    return topic


@pytest.fixture
def source(moldau: Moldau, new_name: Callable[[], str]) -> str:
    name = new_name()
    moldau("topic", "create", name, "-p", "2")
    return name


def test_letters_are_listed_and_shown_with_their_reason(moldau: Moldau, letters: str, source: str) -> None:
    letter(moldau, letters, source, 7, b"{", "first")
    letter(moldau, letters, source, 9, b"\xff", "second")
    moldau.fill(letters, 0, b"no letter")
    rows = moldau("dlq", "list", letters, "-o", "json").json
    assert [(row["offset"], row["from"], row["reason"]) for row in rows] == [
        ("0:0", f"{source}-1@7", "first"),
        ("0:1", f"{source}-1@9", "second"),
        ("0:2", None, None),
    ]
    told = moldau("dlq", "list", letters, "-n", "1")
    assert "first" not in told.out and f"3 in {letters}: 2 UnreadableRecord, 1 no dead letter" in told.err
    shown = moldau("dlq", "show", letters, "0:1", "-o", "json").json
    assert (shown["value_base64"], shown["key"], shown["stack"]) == ("/w==", "k", "Traceback: here")
    text = moldau("dlq", "show", letters, "0").out
    assert "first" in text and text.endswith("Traceback: here\n")


def test_letters_are_sent_back_once_as_they_were(moldau: Moldau, letters: str, source: str) -> None:
    letter(moldau, letters, source, 7, b"one")
    moldau.fill(letters, 0, b"no letter")
    plan = moldau("dlq", "redrive", letters)
    assert source in plan.out and "nothing is sent" in plan.err and "1 records are no dead letters" in plan.err
    assert records(moldau, source, 1) == []
    assert "1 sent back" in moldau("dlq", "redrive", letters, "--execute").err
    letter(moldau, letters, source, 8, b"two")
    moldau("dlq", "redrive", letters, "--execute")
    assert "0 sent back" in moldau("dlq", "redrive", letters, "--execute").err
    found = records(moldau, source, 1)
    assert [(one.key, one.value, [tuple(header) for header in one.headers]) for one in found] == [
        (b"k", b"one", [("own", b"1")]),
        (b"k", b"two", [("own", b"1")]),
    ]


def test_letters_go_elsewhere_when_they_are_told_to(moldau: Moldau, letters: str, topic: str, source: str) -> None:
    letter(moldau, letters, "gone", 1, b"one")
    moldau("dlq", "redrive", letters, "--to", source, "--execute")
    assert [one.value for partition in (0, 1) for one in records(moldau, source, partition)] == [b"one"]


def test_a_redrive_that_fails_sends_nothing_and_goes_on_from_the_same_place(
    moldau: Moldau, letters: str, source: str
) -> None:
    letter(moldau, letters, source, 1, b"one")
    letter(moldau, letters, "no/topic", 2, b"two")
    told = moldau("dlq", "redrive", letters, "--execute", code=3).err
    assert "topic 'no/topic', where letters came from, does not exist" in told
    moldau("dlq", "redrive", letters, "--to", source, "--execute")
    found = [one.value for partition in (0, 1) for one in records(moldau, source, partition)]
    assert sorted(value or b"" for value in found) == [b"one", b"two"]


@pytest.mark.parametrize(("place", "code"), [("x", 2), ("x:1", 2), ("5:0", 3), ("0:99", 3)])
def test_a_letter_that_is_not_there_is_told(moldau: Moldau, letters: str, place: str, code: int) -> None:
    letter(moldau, letters, "s", 1, b"one")
    assert moldau("dlq", "show", letters, place, code=code).err
