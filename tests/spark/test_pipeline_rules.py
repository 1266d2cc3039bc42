"""What pipelines decide without Spark: why a record is bad, what a dead letter says, which row is the newest."""

from __future__ import annotations

import pytest

from moldau.spark.pipelines import DeadLetter, dead_letter_of, row_key
from moldau.spark.pipelines import dead_letters as names
from moldau.spark.pipelines.complaints import STACK_CHARACTERS_MAX, Field, complain_of_json, complain_of_text
from moldau.spark.pipelines.lookup_rules import Change, newest

FIELDS = [
    Field("id", "bigint"),
    Field("user", "string", is_required=True),
    Field("small", "tinyint"),
    Field("share", "double"),
    Field("is_paid", "boolean"),
    Field("at", "timestamp"),
    Field("tags", "array<string>"),
    Field("place", "struct<city:string>"),
]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the value is null, which is a tombstone: only tables have them"),
        (b"\xff", "the value is not UTF-8: invalid start byte at byte 0"),
        (b"{", "the value is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"[1, 2]", "the value is a JSON list, not an object: [1, 2]"),
        (b"{}", "field user is missing, and the schema says NOT NULL"),
        (b'{"user": null}', "field user is null, and the schema says NOT NULL"),
        (b'{"user": "a", "id": "x"}', 'field id is "x", which is no bigint'),
        (b'{"user": "a", "id": true}', "field id is true, which is no bigint"),
        (b'{"user": "a", "id": 9223372036854775808}', "field id is 9223372036854775808, which is no bigint"),
        (b'{"user": "a", "small": 128}', "field small is 128, which is no tinyint"),
        (b'{"user": "a", "share": "1"}', 'field share is "1", which is no double'),
        (b'{"user": "a", "is_paid": 1}', "field is_paid is 1, which is no boolean"),
        (b'{"user": "a", "at": "soon"}', 'field at is "soon", which is no timestamp'),
        (b'{"user": "a", "tags": {}}', "field tags is {}, which is no array<string>"),
        (b'{"user": "a", "place": [1]}', "field place is [1], which is no struct<city:string>"),
        (b'{"user": "a", "tags": "%s"}' % (b"x" * 200), f'field tags is "{"x" * 79}..., which is no array<string>'),
    ],
)
def test_a_complaint_names_the_field_and_what_is_in_it(value: bytes | None, reason: str) -> None:
    found = complain_of_json(value, FIELDS)
    assert (found.kind, found.reason) == ("UnreadableRecord", reason)
    assert "complaints.py" in found.stack


def test_what_only_spark_finds_wrong_is_told_with_the_schema() -> None:
    found = complain_of_json(b'{"user": "a", "at": "2026-99-99"}', [Field("user", "string"), Field("at", "timestamp")])
    assert found.reason == "the value does not fit the schema user string, at timestamp"


def test_a_value_as_deep_as_a_stack_is_a_complaint_like_another() -> None:
    found = complain_of_json(b"[" * 200_000, FIELDS)
    assert found.reason and len(found.stack) <= STACK_CHARACTERS_MAX


def test_text_is_complained_of_when_it_is_none() -> None:
    assert complain_of_text(b"a\xff").reason == "the value is not UTF-8: invalid start byte at byte 1"


def test_a_dead_letter_says_where_it_came_from_and_keeps_its_own_headers() -> None:
    headers = [
        ("own", b"1"),
        (names.TOPIC, b"orders"),
        (names.PARTITION, b"3"),
        (names.OFFSET, b"12"),
        (names.REASON, b"first"),
        (names.OFFSET, b"120"),
        (names.REASON, b"again"),
        (names.EXCEPTION, b"UnreadableRecord"),
        (names.STACK, b"Traceback"),
        (names.PIPELINE, None),
        ("own", None),
    ]
    assert dead_letter_of(headers) == DeadLetter(
        "orders", 3, 120, "again", "UnreadableRecord", "Traceback", None, (("own", b"1"), ("own", None))
    )


@pytest.mark.parametrize(
    "headers", [[], [("own", b"1")], [(names.TOPIC, b"t")], [(names.TOPIC, b"t"), (names.PARTITION, b"x")]]
)
def test_a_record_that_does_not_say_where_it_came_from_is_no_dead_letter(
    headers: list[tuple[str, bytes | None]],
) -> None:
    assert dead_letter_of(headers) is None


def test_keys_are_text_to_type_and_no_two_rows_have_one() -> None:
    assert row_key(["42"]) == b"42"
    assert row_key(["eu", "42"]) == b'["eu","42"]'
    assert row_key(["42"], "2026-11-18T10:00:00.000Z") == b'["42","2026-11-18T10:00:00.000Z"]'
    assert row_key([], "2026-11-18T10:00:00.000Z") == b'["2026-11-18T10:00:00.000Z"]'
    assert row_key(['a","b']) != row_key(["a", "b"]) and row_key(['a","b', "c"]) != row_key(["a", "b", "c"])
    assert row_key(["ř"], "t") == '["ř","t"]'.encode()


def test_the_higher_offset_is_the_newer_row_in_whatever_order_they_come() -> None:
    changes = [Change(7, "old"), Change(9, None), Change(8, "middle")]
    found = None
    for change in changes:
        found = newest(found, change)
    assert found == Change(9, None)
