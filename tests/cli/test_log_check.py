"""`moldau log verify` and `moldau log repair`, on files that a broker wrote and somebody damaged."""

from __future__ import annotations

from pathlib import Path

from moldau.kernel import ErrorCode
from moldau.testing import Broker
from tests.broker.test_produce_and_fetch import batch_of, create, produce
from tests.cli.conftest import Moldau
from tests.differential.wire import Wire
from tests.faults.test_failing_disks import answer_to, values_of

BATCHES = 6
VALUES = [b"%d" % number * 50 for number in range(BATCHES)]


def test_a_damaged_partition_is_offline_until_it_is_repaired_and_others_go_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = Broker(data=str(data)).start()
    moldau = Moldau(broker.bootstrap)
    wire = Wire(broker.bootstrap)
    for topic in ("t", "u"):
        create(wire, topic)
        for value in VALUES:
            wire.ask(produce(topic, batch_of(value)), 9)
    broker.stop()
    assert moldau("log", "verify", str(data), "-o", "json").json == []
    (data / ".kafka_cleanshutdown").unlink()
    segment = data / "t-0" / f"{0:020d}.log"
    size = len(batch_of(VALUES[0]))
    with open(segment, "r+b") as file:
        file.seek(2 * size + 80)
        file.write(b"\xff\xff\xff")
    damaged = segment.read_bytes()

    broker.start()
    wire = Wire(broker.bootstrap)
    answer = answer_to(wire, "t", b"x")
    assert ErrorCode(answer.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
    assert "damaged at offset 2" in answer.error_message and "moldau log repair" in answer.error_message
    assert any(line.startswith("partition_unavailable partition=t-0") for line in broker.log)
    assert values_of(wire, "u", 0, BATCHES) == VALUES
    in_use = moldau("log", "repair", str(data / "t-0"), "--yes", code=1)
    assert "stop the broker first" in in_use.err
    broker.stop()
    assert segment.read_bytes() == damaged, "a broker does not touch it"

    found = moldau("log", "verify", str(data), "-o", "json", code=1)
    assert [(row["partition"], row["effect"], row["first_offset"], row["next_offset"]) for row in found.json] == [
        ("t-0", "lost", 2, 3)
    ]
    assert "moldau log repair" in found.err
    repaired = moldau("log", "repair", str(data / "t-0"), "--yes")
    assert f"t-0: offsets 2 to 2 will be lost ({size} bytes" in repaired.err
    assert "partition_repaired partition=t-0" in (data / "moldau-repair.log").read_text()
    assert moldau("log", "verify", str(data / "t-0")).code == 0
    assert "nothing is damaged" in moldau("log", "repair", str(data)).err

    broker.start()
    assert values_of(Wire(broker.bootstrap), "t", 0, BATCHES) == VALUES[:2] + VALUES[3:]
    assert answer_to(Wire(broker.bootstrap), "t", b"next").base_offset == BATCHES, "no offset is given out twice"
    broker.close()


def test_verify_names_damaged_indexes_and_checkpoints(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data=str(data)) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t")
        wire.ask(produce("t", batch_of(b"x")), 9)
    moldau = Moldau("127.0.0.1:1")
    partition = data / "t-0"
    for name, content in (
        (f"{0:020d}.index", b"\1" * 7),
        (f"{0:020d}.timeindex", b"\1" * 13),
        (f"{0:020d}.txnindex", b"\1" * 3),
        (f"{1:020d}.snapshot", b"junk"),
        ("leader-epoch-checkpoint", b"junk"),
    ):
        (partition / name).write_bytes(content)
    found = moldau("log", "verify", str(data), "-o", "json").json
    assert {row["effect"] for row in found} == {"rebuilt"}
    assert sorted(row["file"] for row in found) == sorted(
        [
            f"{0:020d}.index",
            f"{0:020d}.timeindex",
            f"{0:020d}.txnindex",
            f"{1:020d}.snapshot",
            "leader-epoch-checkpoint",
        ]
    )
    (data / "recovery-point-offset-checkpoint").write_bytes(b"junk")
    assert "does not read" in moldau("log", "verify", str(data), "-o", "json", code=1).out
    assert "no such directory" in moldau("log", "verify", str(data / "nowhere"), code=1).err
