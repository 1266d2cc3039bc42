"""`moldau topic export` and `import`: a topic that comes back is the same, record by record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol import Compression, Record, build_batch
from moldau.protocol.batches import iterate_batches, iterate_records
from moldau.testing import Broker
from tests.broker.test_produce_and_fetch import fetch, fetched, produce
from tests.cli.conftest import Moldau
from tests.differential.wire import Wire

TIME_MS = 1_700_000_000_000
# Keys and values of every kind, headers that repeat, and times that go back.
RECORDS = [
    (None, b"plain", ()),
    (b"k", None, ()),
    (None, None, ()),
    (b"", b"", (("", b""), ("a", None), ("a", b"\xff\x00"))),
    (b"\xff\xfe", bytes(range(256)), (("h", b"x"),)),
    ("žluťoučký".encode(), "kůň\n".encode(), (("ž", "ů".encode()),)),
]


def records_of(wire: Wire, topic: str, partition: int) -> list[tuple[Any, ...]]:
    request = fetch(topic, 0)
    request.topics[0].partitions[0].partition = partition
    data = bytes(fetched(wire.ask(request, 11)).records)
    return [
        (record.timestamp, record.key, record.value, tuple(record.headers))
        for _, batch in iterate_batches(data)
        for record in iterate_records(batch)
    ]


@pytest.fixture(scope="module")
def filled() -> Any:
    with Broker() as broker:
        moldau, wire = Moldau(broker.bootstrap), Wire(broker.bootstrap)
        moldau("topic", "create", "t", "-p", "3")
        for partition, codec in ((0, Compression.NONE), (2, Compression.ZSTD)):
            for first in range(0, 30, len(RECORDS)):
                records = [
                    Record(index, TIME_MS + (first + index) * (1 if index % 2 else -1), *record)
                    for index, record in enumerate(RECORDS)
                ]
                request = produce("t", build_batch(records, compression=codec))
                request.topic_data[0].partition_data[0].index = partition
                wire.ask(request, 9)
        yield broker, moldau, wire


@pytest.mark.parametrize("file_format", ("jsonl", "parquet"))
def test_a_topic_that_is_exported_and_imported_is_the_same(filled: Any, tmp_path: Path, file_format: str) -> None:
    _, moldau, wire = filled
    to = str(tmp_path)
    command = ("topic", "export", "t", "--to", to, "--format", file_format, "--records-per-file", "8", "-o", "json")
    rows = moldau(*command).json
    assert [(row["partition"], row["files"], row["records"]) for row in rows] == [(0, 4, 30), (2, 4, 30)]
    files = sorted(path.name for path in (tmp_path / "topic=t" / "partition=2").iterdir())
    assert files[1] == f"offsets-{8:020d}-{15:020d}.{file_format}" and files[-1].startswith(
        f"offsets-{24:020d}-{29:020d}"
    )

    # Again: nothing is missing, so nothing is written; a file that is gone is.
    gone = tmp_path / "topic=t" / "partition=2" / files[2]
    before = gone.read_bytes()
    gone.unlink()
    assert [row["files"] for row in moldau(*command).json] == [0, 1]
    assert file_format == "parquet" or gone.read_bytes() == before

    copy = f"copy-{file_format}"
    moldau("topic", "create", copy, "-p", "3")
    assert "there is no topic=" in moldau("topic", "import", copy, "--from", to, code=1).err
    moldau("topic", "import", copy, "--from", to, "--exported-as", "t")
    for partition in range(3):
        assert records_of(wire, copy, partition) == records_of(wire, "t", partition)
    assert moldau("topic", "import", copy, "--from", to, "--exported-as", "t", "-o", "json").json == [], "all is done"


def test_ranges_of_offsets_and_times(filled: Any, tmp_path: Path) -> None:
    _, moldau, _ = filled
    base = ("topic", "export", "t", "--to", str(tmp_path), "-o", "json", "--partitions", "0")
    (row,) = moldau(*base, "--from", "5", "--until", "9").json
    assert (row["start"], row["end"], row["records"]) == (5, 9, 4)
    (row,) = moldau(*base, "--from", "5").json
    names = [path.name for path in (tmp_path / "topic=t" / "partition=0").iterdir()]
    assert names == [f"offsets-{5:020d}-{29:020d}.jsonl"], "one that reaches further replaces the shorter"
    (row,) = moldau(*base, "--from", f"@{TIME_MS + 19}").json
    assert row["start"] == 19
    assert moldau(*base, "--from", "2100-01-01T00:00").json == []
    assert "no partition 9" in moldau(*base[:-1], "9", code=3).err
    assert [row["partition"] for row in moldau(*base[:-1], "0,2", "--overwrite").json] == [0, 2]
    assert "--partitions all" in moldau(*base[:-1], "all", code=2).err


def test_parquet_without_arrow_says_what_to_install(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, moldau, _ = filled
    monkeypatch.setitem(sys.modules, "moldau.protocol.columnar", None)
    done = moldau("topic", "export", "t", "--to", str(tmp_path), "--format", "parquet", code=1)
    assert "pip install 'moldau[arrow]'" in done.err


def test_too_few_partitions_are_refused_before_anything_is_sent(filled: Any, tmp_path: Path) -> None:
    _, moldau, wire = filled
    moldau("topic", "export", "t", "--to", str(tmp_path))
    moldau("topic", "create", "narrow", "-p", "1")
    done = moldau("topic", "import", "narrow", "--from", str(tmp_path), "--exported-as", "t", code=1)
    assert "has 1 partitions, the files have 3" in done.err
    assert records_of(wire, "narrow", 0) == []
