"""`moldau log dump`: every kind of file that a broker writes, and what it says about damaged ones."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections import Counter
from pathlib import Path

import pytest

from moldau.cli.log_files import dump_file
from moldau.protocol import Record, build_batch
from moldau.storage import AbortedTransaction, TransactionIndex
from moldau.testing import Broker
from tests.cli.conftest import Moldau


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that a broker wrote and left."""
    directory = tmp_path_factory.mktemp("dump") / "data"
    source = directory.parent / "in.jsonl"
    lines = [{"key": f"k{n}", "value": "v" * 8000, "timestamp": 1_700_000_000_000 + n} for n in range(400)]
    lines.append({"key_base64": "/wA=", "value": None, "timestamp": 1_700_000_001_000, "headers": {"h": "1"}})
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Broker(data=str(directory)) as broker:
        moldau = Moldau(broker.bootstrap)
        moldau("topic", "create", "t", "-c", "segment.bytes=1048576", "-c", "index.interval.bytes=100", "-p", "1")
        moldau("produce", "t", "--from", str(source), "-X", "batch.size=20000")
        moldau("produce", "t", "--from", str(source), "-X", "batch.size=20000", "-z", "zstd")
        moldau("topic", "trim", "t", "--to-offset", "3")
    index = TransactionIndex([AbortedTransaction(7, 10, 20, 15), AbortedTransaction(8, 11, 30, 31)])
    (directory / "t-0" / "00000000000000000000.txnindex").write_bytes(index.to_bytes())
    return directory


def test_every_file_of_a_directory_reads(moldau: Moldau, data: Path) -> None:
    directories = [str(data), str(data / "t-0"), str(data / "__cluster_metadata-0")]
    entries = moldau("log", "dump", *directories, "--records", "-o", "jsonl").lines
    kinds = Counter((Path(entry["file"]).suffix or Path(entry["file"]).name, entry["kind"]) for entry in entries)
    assert {kind for kind, _ in kinds} >= {
        ".log",
        ".index",
        ".timeindex",
        ".txnindex",
        ".snapshot",
        ".checkpoint",
        ".metadata",
        ".properties",
        "leader-epoch-checkpoint",
        "quorum-state",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
    }
    assert ("corrupt" not in {kind for _, kind in kinds}) and kinds[".txnindex", "aborted"] == 2
    assert len({entry["file"] for entry in entries if entry["file"].endswith(".log")}) > 3
    records = [entry for entry in entries if entry["kind"] == "record"]
    assert [record["offset"] for record in records] == list(range(802))
    assert (records[1]["key"], records[1]["value"]) == ("k1", "v" * 8000)
    assert (records[400]["key_hex"], records[400]["value"]) == ("ff00", None)
    assert records[400]["headers"] == [{"name": "h", "value": "1"}]
    assert {entry["compression"] for entry in entries if entry["kind"] == "batch"} >= {"none", "zstd"}
    starts = [entry for entry in entries if entry["file"].endswith("log-start-offset-checkpoint")]
    assert [(one["topic"], one["partition"], one["offset"]) for one in starts] == [("t", 0, 3)]
    producers = [entry for entry in entries if entry["kind"] == "producer"]
    assert producers and all(one["producer_epoch"] == 0 for one in producers)


def test_metadata_records_are_decoded(moldau: Moldau, data: Path) -> None:
    (log,) = (data / "__cluster_metadata-0").glob("*.log")
    entries = moldau("log", "dump", str(log), "-o", "json").json
    topics = [entry for entry in entries if entry.get("type") == "TopicRecord"]
    assert [one["data"]["name"] for one in topics] == ["t"]
    (partition,) = [entry["data"] for entry in entries if entry.get("type") == "PartitionRecord"]
    assert partition["topic_id"] == topics[0]["data"]["topic_id"] and len(partition["topic_id"]) == 22
    assert "leader_change" in [entry.get("type") for entry in entries if entry["kind"] == "control"]
    checkpoint = moldau("log", "dump", str(data / "bootstrap.checkpoint")).out
    assert "type=FeatureLevelRecord" in checkpoint and "type=snapshot_footer" in checkpoint


def test_metadata_can_be_decoded_wherever_the_file_is(moldau: Moldau, data: Path, tmp_path: Path) -> None:
    (log,) = (data / "__cluster_metadata-0").glob("*.log")
    copy = str(shutil.copy(log, tmp_path))
    assert "TopicRecord" not in moldau("log", "dump", copy).out
    assert "type=TopicRecord" in moldau("log", "dump", copy, "--metadata").out


def test_batches_without_records_by_default(moldau: Moldau, data: Path) -> None:
    out = moldau("log", "dump", str(data / "t-0" / "00000000000000000000.log")).out
    name, first, *_ = out.splitlines()
    assert name.endswith(".log")
    assert first.startswith("  batch base_offset=0 last_offset=") and "valid=true" in first
    assert "record " not in out


def corrupt(entries: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(one.get("position"), one["reason"]) for one in entries if one["kind"] == "corrupt"]


def test_a_flipped_byte_is_reported_with_its_position_and_the_rest_is_read(
    moldau: Moldau, data: Path, tmp_path: Path
) -> None:
    source = data / "t-0" / "00000000000000000000.log"
    batches = [one for one in moldau("log", "dump", str(source), "-o", "json").json if one["kind"] == "batch"]
    second = batches[1]
    damaged = bytearray(source.read_bytes())
    damaged[second["position"] + 80] ^= 1
    copy = tmp_path / source.name
    copy.write_bytes(damaged)
    done = moldau("log", "dump", str(copy), "--records", "-o", "json", code=1)
    place = second["position"]
    assert corrupt(done.json) == [(place, f"the batch at offset {second['base_offset']} has a wrong checksum")]
    assert len([one for one in done.json if one["kind"] == "batch"]) == len(batches)
    assert (
        done.err == f"error: {copy} at byte {place}: the batch at offset {second['base_offset']} has a wrong checksum\n"
    )


def test_a_torn_tail_garbage_and_zeros(moldau: Moldau, data: Path, tmp_path: Path) -> None:
    whole = (data / "t-0" / "00000000000000000000.log").read_bytes()
    copy = tmp_path / "00000000000000000000.log"
    copy.write_bytes(whole[:-10])
    assert "a batch of " in moldau("log", "dump", str(copy), code=1).err
    copy.write_bytes(whole + b"garbage" * 20)
    assert f"at byte {len(whole)}: magic is " in moldau("log", "dump", str(copy), code=1).err
    copy.write_bytes(whole + b"x")
    assert f"at byte {len(whole)}: 1 bytes are too few" in moldau("log", "dump", str(copy), code=1).err
    copy.write_bytes(whole + bytes(5000))
    assert f"unwritten position={len(whole)} bytes=5000" in moldau("log", "dump", str(copy)).out


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("0.index", struct.pack(">iiii", 5, 100, 4, 200), "at byte 8: offset 4 at 200 does not rise"),
        ("0.index", b"abc", "at byte 0: 3 bytes are left over"),
        ("0.timeindex", struct.pack(">qiqi", 9, 1, 8, 2), "at byte 12: time 8 of offset 2 does not rise"),
        ("0.txnindex", struct.pack(">hqqqq", 3, 1, 1, 1, 1), "at byte 0: version 3"),
        ("5.snapshot", b"\x00\x01abcdefgh", "checksum does not match"),
        ("5.snapshot", b"", "too few for a snapshot"),
        ("leader-epoch-checkpoint", b"0\n2\n1 5\n", "2 lines are announced, 1 are there"),
        ("replication-offset-checkpoint", b"0\n1\nt zero 5\n", "does not read"),
        ("partition.metadata", b"nonsense", "do not read"),
        ("quorum-state", b"{", "at byte 0: "),
        ("holiday.jpg", b"jpeg", "its name is not that of a log file"),
    ],
)
def test_damaged_small_files(moldau: Moldau, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    done = moldau("log", "dump", str(path), code=1)
    assert done.err.startswith(f"error: {path}") and says in done.err and done.err.count("\n") == 1


def test_the_room_of_an_active_index_is_not_entries(moldau: Moldau, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000100.index"
    path.write_bytes(struct.pack(">iiii", 5, 100, 9, 200) + bytes(100_000))
    entries = moldau("log", "dump", str(path), "-o", "jsonl").lines
    assert [(one["offset"], one["position"]) for one in entries] == [(105, 100), (109, 200)]


def test_a_missing_file_is_one_line(moldau: Moldau) -> None:
    assert (
        moldau("log", "dump", "/nonexistent/0.log", code=1).err == "error: /nonexistent/0.log: there is no such file\n"
    )


def test_nothing_in_a_file_makes_it_raise(data: Path, tmp_path: Path) -> None:
    """Flip bytes and cut files of every kind; also batches with valid checksums around garbage."""
    dice = random.Random(11)
    sources = [path for path in data.rglob("*") if path.is_file() and path.name != ".lock"]
    target = tmp_path / "__cluster_metadata-0"
    target.mkdir()
    for _ in range(600):
        source = dice.choice(sources)
        content = bytearray(source.read_bytes())[:20_000]
        for _ in range(dice.randrange(1, 6)):
            if content:
                content[dice.randrange(len(content))] = dice.randrange(256)
        del content[dice.randrange(len(content) + 1) if dice.random() < 0.3 else len(content) :]
        path = target / source.name
        path.write_bytes(content)
        for metadata in (False, True):
            json.dumps([entry.fields for entry in dump_file(str(path), with_records=True, as_metadata=metadata)])
        path.unlink()
    log = target / "00000000000000000000.log"
    for _ in range(600):
        value = b"\x01" + dice.randbytes(dice.randrange(30))
        key = struct.pack(">hh", 0, dice.randrange(8)) if dice.random() < 0.8 else dice.randbytes(3)
        log.write_bytes(build_batch([Record(0, 0, key, value)], control=dice.random() < 0.5))
        json.dumps([entry.fields for entry in dump_file(str(log))])
