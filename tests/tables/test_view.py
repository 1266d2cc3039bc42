"""A view on disk: rows and the offsets that they reflect, together or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.client import ConsumedRecord, TimestampType
from moldau.tables import TableView, ViewInUse, parse_condition
from moldau.tables.view import ScanTooLong


def record(key: str | None, value: str | None, offset: int, partition: int = 0) -> ConsumedRecord:
    encoded = None if value is None else value.encode()
    key_bytes = None if key is None else key.encode()
    return ConsumedRecord("t", partition, offset, 1000 + offset, TimestampType.CREATE_TIME, key_bytes, encoded, ())


@pytest.fixture
def view(tmp_path: Path) -> TableView:
    opened = TableView(tmp_path / "deep" / "view.sqlite")
    opened.begin("t", "id", 7)
    return opened


def test_the_newest_row_of_each_key_is_there_and_a_tombstone_deletes(view: TableView, tmp_path: Path) -> None:
    rows = [record("a", "1", 0), record("b", "2", 1), record("a", "3", 2), record(None, "4", 3), record("b", None, 4)]
    view.apply("t", rows, {0: 5})
    view.apply("t", [record("c", "6", 7, partition=1)], {1: 8})
    view.note_current("t", 99)
    view.close()
    again = TableView(tmp_path / "deep" / "view.sqlite")
    reader = again.reader()
    found = reader.get("t", b"a")
    assert found.row is not None and (found.row.value, found.row.offset, found.row.timestamp) == ("3", 2, 1002)
    assert found.reflects == {0: 5}
    assert reader.get("t", b"b").row is None and reader.get("t", b"b").reflects == {0: 5, 1: 8}
    stored = again.stored("t")
    assert stored is not None
    assert (stored.topic_id, dict(stored.positions), stored.current_at_ms) == ("id", {0: 5, 1: 8}, 99)
    assert again.stored("other") is None
    again.begin("t", "id-2", 8)
    assert reader.get("t", b"a").row is None
    state = reader.state("t")
    assert state is not None and not state.is_complete and state.reflects == {}
    begun = again.stored("t")
    assert begun is not None and begun.current_at_ms == 8


def test_a_piece_that_fails_leaves_rows_and_positions_as_they_were(view: TableView) -> None:
    view.apply("t", [record("a", "1", 0)], {0: 1})
    with pytest.raises(OverflowError):
        view.apply("t", [record("a", "2", 1)], {0: 1 << 70})  # more than SQLite's numbers
    found = view.reader().get("t", b"a")
    assert found.row is not None and (found.row.value, found.reflects) == ("1", {0: 1})


def test_a_scan_goes_page_by_page_in_the_order_of_keys(view: TableView) -> None:
    view.apply("t", [record(f"k{number:03}", f'{{"n": {number}}}', number) for number in range(250)], {0: 250})
    view.apply("t", [record("x", "\xff", 250)], {0: 251})
    reader = view.reader()
    seen: list[bytes] = []
    after = b""
    while True:
        page = reader.scan("t", parse_condition("n >= 50"), after=after, limit=90)
        assert page.reflects == {0: 251}
        seen += [row.key for row in page.rows]
        if page.after is None:
            break
        after = page.after
    assert seen == [b"k%03d" % number for number in range(50, 250)]
    assert [row.key for row in reader.scan("t", prefix=b"k00").rows] == [b"k%03d" % number for number in range(10)]
    assert [row.key for row in reader.scan("t", prefix=b"k24", after=b"k247").rows] == [b"k248", b"k249"]
    assert reader.scan("t", prefix=b"\xff").rows == []


def test_a_prefix_that_ends_in_the_highest_byte_has_an_end(view: TableView) -> None:
    keys = [b"a\xfe", b"a\xff", b"a\xff\x01", b"b"]
    rows = [record("", "1", number)._replace(key=key) for number, key in enumerate(keys)]
    view.apply("t", rows, {0: 4})
    assert [row.key for row in view.reader().scan("t", prefix=b"a\xff").rows] == [b"a\xff", b"a\xff\x01"]


def test_a_page_of_large_rows_is_shorter_and_has_one_at_least(view: TableView) -> None:
    view.apply("t", [record(f"k{number}", "x" * 1000, number) for number in range(5)], {0: 5})
    reader = view.reader()
    page = reader.scan("t", bytes_max=2500)
    assert [row.key for row in page.rows] == [b"k0", b"k1"] and page.after == b"k1"
    rest = reader.scan("t", after=b"k3", bytes_max=10)
    assert [row.key for row in rest.rows] == [b"k4"] and rest.after is None


def test_a_scan_that_takes_too_long_is_given_up_and_the_next_one_works(view: TableView) -> None:
    view.apply("t", [record(f"k{number}", '{"n": 1}', number) for number in range(20_000)], {0: 20_000})
    reader = view.reader()
    with pytest.raises(ScanTooLong, match="ask for a prefix"):
        reader.scan("t", parse_condition("n = 2"), seconds_max=0)
    assert reader.scan("t", prefix=b"k17").rows


def test_a_second_process_is_told_that_the_view_is_in_use(view: TableView) -> None:
    with pytest.raises(ViewInUse, match=r"view\.sqlite current"):
        TableView(view.path)
    view.close()
    TableView(view.path).close()
