"""What scans may ask, and that nothing else gets through."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.tables.conditions import CONDITION_CHARACTERS_MAX, TERMS_MAX, ConditionError, parse_condition

ROWS = {
    "a": '{"count": 12, "city": "Praha", "place": {"street": "U Vltavy"}, "is_open": true}',
    "b": '{"count": 9.5, "city": "Brno", "is_open": false}',
    "c": '{"count": null, "city": "O\'Hara"}',
    "d": "no json",
}


def keys(condition: str) -> str:
    parsed = parse_condition(condition)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE rows (key_text TEXT, value)")
    database.executemany("INSERT INTO rows VALUES (?, ?)", ROWS.items())
    sql = f"SELECT key_text FROM rows WHERE {parsed.sql} ORDER BY key_text"
    return "".join(row[0] for row in database.execute(sql, parsed.parameters))


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("count > 10", "a"),
        ("count>=9.5 and count < 1e3", "ab"),
        ("count != 12", "b"),
        ("city = 'Praha' AND is_open = true", "a"),
        ("is_open == false", "b"),
        ("city = 'O''Hara'", "c"),
        ("place.street = 'U Vltavy'", "a"),
        ("place.street is not null", "a"),
        ("count is null", "cd"),
        ("key <> 'a' and key <= 'c'", "bc"),
        ("city > 'C'", "ac"),
        ("count = -1", ""),
    ],
)
def test_conditions_find_rows(condition: str, found: str) -> None:
    assert keys(condition) == found


@pytest.mark.parametrize(
    ("condition", "place"),
    [
        ("", "the end at character 1 where the name of a field"),
        ("count", "the end at character 6 where a comparison"),
        ("count >", "the end at character 8 where a number"),
        ("count > 1 or city = 'x'", "'or' at character 11 where and"),
        ("count > other", "'other' at character 9 where a number"),
        ("city = 'open", '"\'open" at character 8'),
        ("count is 3", "'3' at character 10 where null"),
        ("(count > 1)", "'(count > 1)' at character 1"),
        ("count > 1; drop table rows", "'; drop table rows' at character 10"),
        ("a" * (CONDITION_CHARACTERS_MAX + 1), "characters"),
        (" and ".join(["a = 1"] * (TERMS_MAX + 1)), f"more than {TERMS_MAX}"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(condition: str, place: str) -> None:
    with pytest.raises(ConditionError) as error:
        parse_condition(condition)
    assert place in str(error.value)


@given(st.text(max_size=60))
def test_no_text_breaks_the_sql(text: str) -> None:
    for condition in (text, f"city = '{text}'", f"{text} > 1"):
        try:
            keys(condition)
        except ConditionError:
            pass
