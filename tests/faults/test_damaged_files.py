"""Checkpoints, indexes, snapshots and a log's tail, damaged together after a SIGKILL: a real broker's real files.

What was acknowledged is readable, or the broker says in one line which file is in the way and what to do about it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.storage import LogDirectoryError
from moldau.storage.log_directory import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE
from moldau.testing import Broker, BrokerProcess
from moldau.testing.dice import SeededDice
from tests.broker.test_produce_and_fetch import create
from tests.differential.wire import Wire
from tests.faults.test_failing_disks import answer_to, values_of

CHECKPOINTS = (RECOVERY_POINT_FILE, REPLICATION_OFFSET_FILE, LOG_START_OFFSET_FILE)
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": "20",
    "log.flush.start.offset.checkpoint.interval.ms": "20",
    "log.flush.interval.messages": "1",
}
RECORDS = 40
SEEDS = range(24)
FATES = ("whole", "whole", "missing", "empty", "cut", "zeroed")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a SIGKILL left: several segments, every checkpoint, nothing closed."""
    data = tmp_path_factory.mktemp("killed") / "data"
    with BrokerProcess(SETTINGS, data=str(data)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"internal.segment.bytes": "1000"})
        for number in range(RECORDS):
            assert answer_to(wire, "t", value(number)).error_code == 0
        broker.stop()
        broker.start()
        assert answer_to(Wire(broker.bootstrap), "t", value(RECORDS)).error_code == 0
        broker.kill()
        assert len(list((data / "t-0").glob("*.log"))) > 3
        assert all((data / name).exists() for name in CHECKPOINTS), sorted(path.name for path in data.iterdir())
        yield data


def value(number: int) -> bytes:
    return b"value-%04d-" % number + b"v" * 90


def suffer(path: Path, fate: str, dice: SeededDice) -> None:
    data = path.read_bytes()
    if fate == "missing":
        path.unlink()
    elif fate == "empty":
        path.write_bytes(b"")
    elif fate == "cut":
        path.write_bytes(data[: dice.below(len(data) or 1)])
    elif fate == "zeroed":
        path.write_bytes(bytes(len(data)))


def fate_of(dice: SeededDice) -> str:
    return FATES[dice.below(len(FATES))]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_readable_or_one_line_names_the_file(killed: Path, tmp_path: Path, seed: int) -> None:
    dice = SeededDice(seed)
    data = tmp_path / "data"
    shutil.copytree(killed, data)
    for name in CHECKPOINTS:
        suffer(data / name, fate_of(dice), dice)
    for path in sorted((data / "t-0").iterdir()):
        if path.suffix in {".index", ".timeindex", ".snapshot", ".txnindex"} or path.name == "leader-epoch-checkpoint":
            suffer(path, fate_of(dice), dice)
    # What was written and not acknowledged any more: half a batch.
    newest = max((data / "t-0").glob("*.log"))
    newest.write_bytes(newest.read_bytes() + newest.read_bytes()[:50])
    broker = Broker({}, data=str(data))
    for _ in CHECKPOINTS:
        try:
            broker.start()
            break
        except LogDirectoryError as error:
            (named,) = [name for name in CHECKPOINTS if name in str(error)]
            assert "does not read" in str(error) and "remove it" in str(error)
            (data / named).unlink()
    else:
        broker.start()
    wire = Wire(broker.bootstrap)
    assert values_of(wire, "t", 0, RECORDS + 1) == [value(number) for number in range(RECORDS + 1)]
    assert answer_to(wire, "t", b"next").base_offset == RECORDS + 1
    broker.stop()
