"""An import that is interrupted brings every record once; one that cannot know refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.cli.topic_import import LINES_PER_PIECE
from moldau.testing import Broker
from tests.cli.conftest import SECONDS_MAX, Moldau

RECORDS = 4 * LINES_PER_PIECE


@pytest.fixture(scope="module")
def moldau() -> Iterator[Moldau]:
    with Broker() as broker:
        yield Moldau(broker.bootstrap)


def line(number: int) -> bytes:
    headers = [{"name": "h", "value": None}] if number % 7 == 0 else []
    value = None if number % 5 == 0 else f"value {number}"
    fields = {"key": f"k{number % 11}", "value": value, "timestamp": 1_700_000_000_000 + number, "headers": headers}
    return json.dumps(fields).encode() + b"\n"


def file_of(directory: Path, count: int, suffix: str = "jsonl") -> Path:
    path = directory / "topic=t" / "partition=0"
    path.mkdir(parents=True, exist_ok=True)
    return path / f"offsets-{0:020d}-{count - 1:020d}.{suffix}"


def end_of(moldau: Moldau, topic: str) -> int:
    return int(moldau("topic", "describe", topic, "-o", "json").json[0]["partitions"][0]["end"])


def records_of(moldau: Moldau, topic: str) -> list[tuple[object, ...]]:
    lines = moldau("consume", topic, "-o", "jsonl", "-e").lines
    return [(one["key"], one["value"], one["timestamp"], str(one["headers"])) for one in lines]


def kill_in_the_middle(moldau: Moldau, directory: Path, topic: str, count: int, written: int) -> None:
    """An import that has sent what was written of its file, and is killed while it waits for more."""
    path = file_of(directory, count)
    os.mkfifo(path)
    process = subprocess.Popen(
        [sys.executable, "-m", "moldau", "topic", "import", topic, "--from", str(directory), "--exported-as", "t"],
        env=moldau.environment(),
    )
    try:
        with open(path, "wb") as pipe:
            pipe.writelines(line(number) for number in range(written))
            pipe.flush()
            deadline = time.monotonic() + SECONDS_MAX
            while end_of(moldau, topic) < written:
                assert process.poll() is None and time.monotonic() < deadline
            process.kill()
            process.wait()
    finally:
        process.kill()
        process.wait()
        path.unlink()


@pytest.mark.parametrize("file_format", ("jsonl", "parquet"))
def test_an_import_killed_in_the_middle_of_a_file_brings_each_record_once(
    moldau: Moldau, tmp_path: Path, file_format: str
) -> None:
    topic, written = f"killed-{file_format}", 2 * LINES_PER_PIECE
    moldau("topic", "create", topic, "original-" + file_format)
    kill_in_the_middle(moldau, tmp_path, topic, RECORDS, written)

    whole = tmp_path / "whole"
    file_of(whole, RECORDS).write_bytes(b"".join(line(number) for number in range(RECORDS)))
    command = ("topic", "import", "original-" + file_format, "--exported-as", "t", "--from", str(whole), "-o", "json")
    assert moldau(*command).json[0]["records"] == RECORDS
    moldau("topic", "export", "original-" + file_format, "--to", str(whole), "--format", file_format)
    (made,) = (whole / f"topic=original-{file_format}" / "partition=0").iterdir()
    made.rename(file_of(tmp_path, RECORDS, file_format))

    again = ("topic", "import", topic, "--exported-as", "t", "--from", str(tmp_path), "-o", "json")
    assert moldau(*again).json == [{"partition": 0, "files": 1, "records": RECORDS - written}]
    assert end_of(moldau, topic) == RECORDS
    assert records_of(moldau, topic) == records_of(moldau, "original-" + file_format)
    assert moldau(*again).json == [], "all is done"


def test_what_somebody_else_wrote_meanwhile_is_not_mistaken_for_the_files(moldau: Moldau, tmp_path: Path) -> None:
    moldau("topic", "create", "shared")
    kill_in_the_middle(moldau, tmp_path, "shared", RECORDS, LINES_PER_PIECE)
    other = tmp_path / "other"
    other.write_bytes(line(RECORDS))
    moldau("produce", "shared", "--from", str(other), "--format", "jsonl")
    file_of(tmp_path, RECORDS).write_bytes(b"".join(line(number) for number in range(RECORDS)))
    again = ("topic", "import", "shared", "--exported-as", "t", "--from", str(tmp_path), "-o", "json")
    said = moldau(*again, code=1).err
    assert f"offset {LINES_PER_PIECE} is not number {LINES_PER_PIECE} of" in said and "--again" in said
    assert end_of(moldau, "shared") == LINES_PER_PIECE + 1
    moldau(*again, "--again")
    assert end_of(moldau, "shared") == LINES_PER_PIECE + 1 + RECORDS


def test_a_longer_file_in_the_place_of_one_that_was_imported_brings_only_what_is_new(
    moldau: Moldau, tmp_path: Path
) -> None:
    moldau("topic", "create", "t")
    command = ("topic", "import", "t", "--from", str(tmp_path), "-o", "json")
    for count, new in ((20, 20), (50, 30)):
        for path in tmp_path.glob("topic=t/partition=0/*"):
            path.unlink()
        file_of(tmp_path, count).write_bytes(b"".join(line(number) for number in range(count)))
        assert moldau(*command).json[0]["records"] == new
    # Half a note, as a power cut leaves it, is not one.
    notes = tmp_path / "_imported-t"
    notes.write_bytes(notes.read_bytes()[:-5])
    assert moldau(*command).json == [{"partition": 0, "files": 1, "records": 0}], "compared, and found to be there"
    assert end_of(moldau, "t") == 50
    # A topic that was made anew has none of it.
    moldau("topic", "delete", "t", "-y")
    moldau("topic", "create", "t")
    assert moldau(*command).json[0]["records"] == 50


def test_files_that_hold_the_same_offsets_are_refused(moldau: Moldau, tmp_path: Path) -> None:
    moldau("topic", "create", "twice")
    file_of(tmp_path, 20).write_bytes(line(0))
    file_of(tmp_path, 30).write_bytes(line(0))
    said = moldau("topic", "import", "twice", "--exported-as", "t", "--from", str(tmp_path), code=1).err
    assert "hold the same offsets" in said and end_of(moldau, "twice") == 0
