"""Records in and out: formats, places to start, round trips, and streams that are long, cut off or interrupted."""

from __future__ import annotations

import array
import base64
import fcntl
import json
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer as TransactionalProducer

from moldau.testing import Broker
from tests.cli.conftest import BAR_AT_ONCE, SECONDS_MAX, Moldau

MANY = 200_000
# A process that held 200 k records as objects would need far more; the base is some 45 MB.
RESIDENT_KB_MAX = 100_000


def test_lines_in_values_out(moldau: Moldau, topic: str) -> None:
    done = moldau.run("produce", topic, stdin="eins\n\nzwölf\nohne Ende".encode())
    assert done.out == "" and done.err.startswith(f"produced 4 records to {topic} in ")
    assert moldau.run("consume", topic, "-e").out == "eins\n\nzwölf\nohne Ende\n"


def test_key_separator_headers_time_and_codec(moldau: Moldau, topic: str) -> None:
    options = ("-K", ":", "-H", "a=1", "-H", "a=two words", "-t", "2026-11-01T10:00:00.250Z", "-z", "zstd")
    moldau.run("produce", topic, *options, stdin=b"k1:v1\nk2:v:2\n")
    first, second = moldau("consume", topic, "-e", "-o", "jsonl").lines
    assert (first["key"], first["value"], first["timestamp"]) == ("k1", "v1", 1793527200250)
    assert (second["key"], second["value"]) == ("k2", "v:2")
    assert first["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "two words"}]
    done = moldau.run("produce", topic, "-K", ":", stdin=b"k:v\nno key\n", code=1)
    assert "1 of 1 records were delivered" in done.err and "line 2 has no key" in done.err


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(moldau: Moldau, topic: str, tmp_path: Path, codec: str) -> None:
    source = tmp_path / "in.txt"
    source.write_text("same line\n" * 1000)
    moldau("produce", topic, "--from", str(source), "-z", codec, "--acks", "1")
    assert moldau("consume", topic, "-e").out == source.read_text()


def test_jsonl_round_trips_bytes_nulls_headers_partitions_and_times(
    moldau: Moldau, new_name: Callable[[], str], tmp_path: Path
) -> None:
    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    records: list[dict[str, Any]] = [
        {"partition": 2, "timestamp": 1000, "key": "k", "value": 'text "quoted"\n\u2028 ü', "headers": []},
        {"partition": 0, "timestamp": 1001, "key_base64": encoded(b"\xff\x00"), "value": None, "headers": []},
        {"partition": 1, "timestamp": 1002, "key": None, "value_base64": encoded(bytes(range(256))), "headers": []},
        {"partition": 1, "timestamp": 1003, "key": "", "value": "", "headers": [{"name": "n", "value": None}]},
        {
            "partition": 2,
            "timestamp": 1004,
            "key": "k",
            "value": "v",
            "headers": [{"name": "n", "value": "1"}, {"name": "n", "value_base64": encoded(b"\x80")}],
        },
    ]
    first, second = new_name(), new_name()
    moldau("topic", "create", first, second, "-p", "3")
    source = tmp_path / "records.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    moldau("produce", first, "--from", str(source))
    copied = moldau("consume", first, "-e", "-o", "jsonl")
    got = [
        {key: one[key] for key in sent}
        for sent in records
        for one in copied.lines
        if one["timestamp"] == sent["timestamp"]
    ]
    assert got == records
    # And the command's own output is its own input.
    moldau.run("produce", second, "--format", "jsonl", stdin=copied.out.encode())
    again = moldau("consume", second, "-e", "-o", "jsonl")

    def comparable(text: str) -> list[str]:
        return sorted(text.replace(second, first).split("\n"))

    assert comparable(again.out) == comparable(copied.out)


def test_jsonl_by_hand_takes_json_values_and_header_objects(moldau: Moldau, topic: str) -> None:
    lines = b'{"value": {"id": 1, "name": "\xc3\xbc"}, "key": 7, "headers": {"a": "b"}}\n\n{"value": null}\n'
    moldau.run("produce", topic, "--format", "jsonl", stdin=lines)
    first, second = moldau("consume", topic, "-e", "-o", "json").json
    assert (first["key"], first["value"]) == ("7", '{"id":1,"name":"ü"}')
    assert first["headers"] == [{"name": "a", "value": "b"}]
    assert (second["key"], second["value"]) == (None, None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"plain", "line 2 is no JSON"),
        (b"3", "line 2 is no JSON object"),
        (b'{"key": "k"}', 'line 2 has no "value"'),
        (b'{"value": "v", "partition": "x"}', 'line 2 has a "partition" that is no whole number'),
        (b'{"value_base64": "%%%"}', 'line 2 has a "value_base64" that is no base64'),
        (b'{"value": "v", "headers": ["x"]}', 'line 2 has "headers"'),
        (b'{"value": "\\ud800"}', 'line 2 has a "value" with half a character'),
    ],
)
def test_a_bad_line_stops_and_says_where(moldau: Moldau, topic: str, tmp_path: Path, line: bytes, says: str) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_bytes(b'{"value": "good"}\n' + line + b'\n{"value": "not sent"}\n')
    done = moldau("produce", topic, "--from", str(source), "-o", "json", code=1)
    assert "1 of 1 records were delivered" in done.err and says in done.err and done.err.count("\n") == 1
    assert done.json["delivered"] == 1 and says in done.json["error"]
    assert moldau("consume", topic, "-e").out == "good\n"


def test_csv_rows_become_json_with_a_key_column(moldau: Moldau, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "orders.csv"
    source.write_text('\ufeffid,note\r\n1,"two\nlines, ""quoted"""\r\n2,plain\r\n')
    moldau("produce", topic, "--from", str(source), "--key-column", "id")
    first, second = moldau("consume", topic, "-e", "-o", "jsonl").lines
    assert (first["key"], json.loads(first["value"])) == ("1", {"id": "1", "note": 'two\nlines, "quoted"'})
    assert (second["key"], second["value"]) == ("2", '{"id":"2","note":"plain"}')
    moldau("produce", topic, "--from", str(source), "--value-column", "note")
    assert moldau("consume", topic, "-e", "-s", "-1").out == "plain\n"
    assert "no column 'x'" in moldau("produce", topic, "--from", str(source), "--key-column", "x", code=1).err
    source.write_text("a,b\n1\n")
    assert (
        "line 2 has 1 columns where the first row has 2" in moldau("produce", topic, "--from", str(source), code=1).err
    )


def test_tombstones(moldau: Moldau, topic: str) -> None:
    moldau.run("produce", topic, "-k", "gone", "-Z", stdin=b"\n")
    (record,) = moldau("consume", topic, "-e", "-o", "jsonl").lines
    assert (record["key"], record["value"]) == ("gone", None)
    assert moldau("consume", topic, "-e", "-Z", "-f", "%k=%v\\n").out == "gone=NULL\n"
    assert moldau("consume", topic, "-e", "-f", "%k=%v %S\\n").out == "gone= -1\n"


@pytest.mark.parametrize("isolation", ("read_committed", "read_uncommitted"))
@pytest.mark.parametrize("flags", ((), ("-Z",)))
def test_many_values_are_the_same_by_columns(
    moldau: Moldau, new_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch, isolation: str, flags: tuple[str, ...]
) -> None:
    name = new_name()
    moldau("topic", "create", name, "-p", "2")
    lines = b'{"value": "first"}\n{"value": null}\n{"value": ""}\n{"value": "zw\xc3\xb6lf"}\n{"value": "two\\nlines"}\n'
    for place, codec in enumerate(("none", "zstd")):
        moldau.run("produce", name, "--format", "jsonl", "-p", str(place), "-z", codec, stdin=lines * 50)
    aborted = TransactionalProducer({"bootstrap.servers": moldau.bootstrap, "transactional.id": name})
    aborted.init_transactions()
    aborted.begin_transaction()
    aborted.produce(name, b"aborted", partition=1)
    aborted.flush()
    aborted.abort_transaction()
    command = ("consume", name, "-e", "--isolation", isolation, *flags)
    by_records = moldau(*command).out
    assert ("aborted" in by_records) == (isolation == "read_uncommitted")
    monkeypatch.setattr("moldau.cli.consume.COLUMNS_RECORDS_MIN", 1)
    monkeypatch.setattr("moldau.client.PartitionReader", None)  # whoever makes an object of each record
    by_columns = moldau(*command).out
    assert sorted(by_columns.split("\n")) == sorted(by_records.split("\n"))


def test_format_as_in_kcat(moldau: Moldau, topic: str) -> None:
    moldau.run("produce", topic, "-k", "key", "-H", "a=1", "-H", "b=2", "-t", "1234", stdin=b"value\n")
    shown = moldau("consume", topic, "-e", "-f", "%t|%p|%o|%k|%v|%s|%h|%T|%K|%S|%%|\\x41\\t\\\\\\n").out
    assert shown == f"{topic}|0|0|key|value|value|a=1,b=2|1234|3|5|%|A\t\\\n"


def test_table_output_has_columns(moldau: Moldau, topic: str) -> None:
    moldau.run("produce", topic, "-k", "k", "-t", "2026-11-01T10:00:00Z", stdin=b"a\tb\n")
    header, row = moldau("consume", topic, "-e", "-o", "table").out.splitlines()
    assert header.split("\t") == ["TOPIC", "PARTITION", "OFFSET", "TIME", "KEY", "VALUE"]
    assert row.split("\t") == [topic, "0", "0", "2026-11-01T10:00:00.000Z", "k", "a\\tb"]


def test_places_to_start(moldau: Moldau, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "timed.jsonl"
    base = 1_793_527_200_000  # 2026-11-01T10:00Z
    source.write_text("".join(f'{{"value": "{n}", "timestamp": {base + n * 1000}}}\n' for n in range(10)))
    moldau("produce", topic, "--from", str(source))

    def read(start: str, *more: str) -> str:
        return moldau("consume", topic, "-e", "-s", start, *more).out.replace("\n", "")

    assert read("start") == read("0") == "0123456789"
    assert read("-3") == "789"
    assert read("-300") == "0123456789"
    assert read("7") == "789"
    assert read("end") == ""
    assert read("@2026-11-01T10:00:08Z") == "89"
    assert read("@2026-11-01T12:00:08+02:00") == "89"
    assert read(f"@{base + 5000}") == "56789"
    assert read("@2040-01-01T00:00Z") == ""
    assert read("2", "-n", "3") == "234"
    assert read("2", "-n", "0") == ""
    assert moldau("consume", topic, "--offset", "9", "-n", "1").out == "9\n"
    assert "offset 99 is past the end" in moldau("consume", topic, "-s", "99", code=1).err
    moldau("topic", "trim", topic, "--to-offset", "4")
    assert read("2") == read("start") == "456789"


def test_several_topics_and_chosen_partitions(moldau: Moldau, new_name: Callable[[], str]) -> None:
    first, second = new_name(), new_name()
    moldau("topic", "create", first, second, "-p", "2")
    for name in (first, second):
        for partition in ("0", "1"):
            moldau.run("produce", name, "-p", partition, stdin=f"{partition}\n".encode())
    assert len(moldau("consume", first, second, "-e").out.splitlines()) == 4
    found = moldau("consume", first, second, "-e", "-p", "1", "-f", "%t %p\\n").out.splitlines()
    assert sorted(found) == sorted([f"{first} 1", f"{second} 1"])
    assert "has no partition 5" in moldau("consume", first, "-p", "5", code=3).err
    assert "has no partition 5" in moldau.run("produce", first, "-p", "5", code=3).err


def test_where_records_went_and_a_summary_for_programs(moldau: Moldau, topic: str) -> None:
    placed = moldau.run("produce", topic, "-o", "jsonl", stdin=b"a\nb\n").lines
    assert [(one["partition"], one["offset"]) for one in placed] == [(0, 0), (0, 1)]
    summary = moldau.run("produce", topic, "-o", "json", stdin=b"a\nb\n").json
    assert (summary["delivered"], summary["failed"], summary["error"]) == (2, 0, None)


def test_refused_records_do_not_stop_the_others(moldau: Moldau, new_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_name()
    moldau("topic", "create", name, "-p", "1", "-c", "max.message.bytes=2000")
    source = tmp_path / "in.txt"
    source.write_text("small\n" + "x" * 5000 + "\nlast\n")
    # Batches are no larger than the topic takes, so that the broker's refusal hits one record.
    done = moldau("produce", name, "--from", str(source), code=1)
    assert f"2 of 3 records were delivered to {name}" in done.err and "MESSAGE_TOO_LARGE" in done.err
    assert moldau("consume", name, "-e").out == "small\nlast\n"
    sizes = ("-X", "batch.size=100000", "-X", "max.request.size=1000")
    refused = moldau("produce", name, "--from", str(source), *sizes, code=1)
    assert "2 of 3 records were delivered" in refused.err and "line 2: " in refused.err


def test_auto_creation_is_told_and_its_absence_is_not_found(moldau: Moldau, new_name: Callable[[], str]) -> None:
    name = new_name()
    assert f"note: topic '{name}' did not exist" in moldau.run("produce", name, stdin=b"x\n").err
    with Broker({"auto.create.topics.enable": "false"}) as strict:
        done = Moldau(strict.bootstrap).run("produce", "nope", stdin=b"x\n", code=3)
        assert done.err.startswith("error: topic 'nope' does not exist") and done.err.count("\n") == 1


def test_unknown_producer_property_is_named(moldau: Moldau, topic: str) -> None:
    assert "did you mean 'linger.ms'?" in moldau.run("produce", topic, "-X", "linger=1", code=2).err
    moldau.run("produce", topic, "-X", "linger.ms=0", "-X", "request.timeout.ms=5000", stdin=b"x\n")


def test_long_streams_have_bounded_memory(moldau: Moldau, new_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_name()
    moldau("topic", "create", name, "-p", "3")
    numbers = tmp_path / "numbers"
    numbers.write_text("".join(f"{n:0100d}\n" for n in range(MANY)))
    # A parent of its own for each: the kernel keeps the largest child only.
    program = (
        "import resource, subprocess, sys\n"
        "code = subprocess.call([sys.executable, '-m', 'moldau', *sys.argv[1:]])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    copy = tmp_path / "copy"

    def peak(*args: str, stdin: int | None = None, stdout: int | None = None) -> int:
        done = subprocess.run(
            [sys.executable, "-c", program, *args],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=moldau.environment(),
            timeout=SECONDS_MAX,
            check=True,
        )
        return int(done.stderr.split()[-1])

    with numbers.open("rb") as source:
        produced = peak("produce", name, stdin=source.fileno())
    with copy.open("wb") as target:
        consumed = peak("consume", name, "-e", "-o", "jsonl", stdout=target.fileno())
    values = sorted(json.loads(line)["value"] for line in copy.read_text().splitlines())
    assert values == numbers.read_text().split()
    assert max(produced, consumed) < RESIDENT_KB_MAX, (produced, consumed)


def test_produce_and_consume_in_one_pipeline(moldau: Moldau, new_name: Callable[[], str]) -> None:
    first, second = new_name(), new_name()
    moldau("topic", "create", first, second)
    moldau.run("produce", first, stdin=b"".join(b"%d\n" % n for n in range(5000)))
    me = f"{sys.executable} -m moldau"
    command = f"{me} consume {first} -e -o jsonl | {me} produce {second} --format jsonl"
    subprocess.run(
        command, shell=True, check=True, env=moldau.environment(), timeout=SECONDS_MAX, stderr=subprocess.PIPE
    )
    assert moldau("consume", second, "-e").out.split() == [str(n) for n in range(5000)]


def test_head_ends_the_stream_quietly_with_0(moldau: Moldau, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{n:0100d}\n" for n in range(20_000)))
    moldau("produce", topic, "--from", str(source))
    # Not --exit: with a live stream nothing but the closed pipe can end it.
    with moldau.start("consume", topic, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"%0100d\n" % 0
        process.stdout.close()
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr.read() == b""


def test_a_closed_pipe_is_noticed_without_another_record(moldau: Moldau, topic: str) -> None:
    moldau.run("produce", topic, stdin=b"only\n")
    with moldau.start("tail", topic, "-s", "start", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().endswith(b"only\n")
        process.stdout.close()
        assert process.wait(10) == 0
        assert process.stderr.read() == b""


def test_head_on_a_table_is_quiet_too(moldau: Moldau) -> None:
    with moldau.start("config", "get", "broker/1", "--all", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("arguments", [("consume", "-o", "json"), ("tail", "-s", "start")])
def test_ctrl_c_ends_a_stream_quietly(moldau: Moldau, topic: str, arguments: tuple[str, ...]) -> None:
    moldau.run("produce", topic, stdin=b"one\n")
    command, *options = arguments
    with moldau.start(command, topic, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        shown = process.stdout.readline()
        assert b"one" in shown
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(SECONDS_MAX) == 0
        assert process.stderr.read() == b""
        if command == "consume":
            assert [one["value"] for one in json.loads(shown + rest)] == ["one"]


def wait_until_read(pipe: int) -> None:
    """Until the reader of our pipe has taken everything."""
    unread = array.array("i", [1])
    while unread[0]:
        time.sleep(0.02)
        fcntl.ioctl(pipe, termios.FIONREAD, unread)
    time.sleep(0.1)


def test_ctrl_c_while_producing_keeps_what_was_typed(moldau: Moldau, topic: str) -> None:
    options = ("-X", "linger.ms=60000", "-X", "delivery.timeout.ms=120000")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with moldau.start("produce", topic, *options, **pipes) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"typed\n")
        process.stdin.flush()
        wait_until_read(process.stdin.fileno())
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
        assert process.stderr.read().startswith(b"produced 1 record to ")
    assert moldau("consume", topic, "-e").out == "typed\n"


def test_tail_is_live_from_the_end_and_coloured_on_a_terminal_only(moldau: Moldau, topic: str) -> None:
    moldau.run("produce", topic, stdin=b"before\n")
    with moldau.start("tail", topic, "-n", "1", stdout=subprocess.PIPE) as process:
        # When it is at the end cannot be seen from outside.
        while process.poll() is None:
            moldau.run("produce", topic, "-k", "k", "-H", "h=1", stdin=b"after\n")
        out, _ = process.communicate(timeout=SECONDS_MAX)
    place, *rest = out.decode().split()[1:]
    assert place.startswith(f"{topic}-0@") and rest == ["k", "after", "h=1"]
    assert b"\x1b" not in out
    code, shown = moldau.on_terminal("tail", topic, "-s", "start", "-n", "2")
    assert code == 0 and f"\x1b[36m{topic}-0@0\x1b[0m" in shown
    _, plain = moldau.on_terminal("tail", topic, "-s", "start", "-n", "2", NO_COLOR="1")
    assert "\x1b" not in plain and f"{topic}-0@0" in plain


def test_records_cannot_drive_the_terminal(moldau: Moldau, topic: str) -> None:
    moldau.run("produce", topic, stdin=b"\x1b]0;title\x07\xff\n")
    for command in (("consume", topic, "-n", "1"), ("tail", topic, "-s", "start", "-n", "1")):
        _, shown = moldau.on_terminal(*command, NO_COLOR="1")
        assert "\\x1b]0;title\\x07\\xff" in shown and "\x1b" not in shown
    assert moldau.run("consume", topic, "-n", "1").out.encode(errors="surrogateescape") == b"\x1b]0;title\x07\xff\n"


def test_long_work_shows_a_bar_on_a_terminal(moldau: Moldau, new_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_name()
    source = tmp_path / "in.jsonl"
    source.write_text('{"value": "0123456789"}\n' * MANY)
    code, shown = moldau.on_terminal("produce", name, "--from", str(source), program=BAR_AT_ONCE)
    assert code == 0 and f"producing to {name}" in shown and "lines" in shown
    assert f"produced {MANY} records to {name}" in shown


def test_typing_records_on_a_terminal(moldau: Moldau, topic: str) -> None:
    code, shown = moldau.on_terminal("produce", topic, typed=b"hello\n\x04", until=b"Ctrl-D ends")
    assert code == 0 and f"produced 1 record to {topic}" in shown
    assert moldau("consume", topic, "-e").out == "hello\n"


def test_a_line_without_end_is_refused_with_bounded_memory(moldau: Moldau, topic: str) -> None:
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with moldau.start("produce", topic, **pipes) as process:
        assert process.stdin is not None and process.stderr is not None
        try:
            for _ in range(70):
                process.stdin.write(b"x" * (1 << 20))
        except BrokenPipeError:
            pass
        process.stdin = None
        assert process.wait(SECONDS_MAX) == 1
        assert b"a line is longer than 64 MiB" in process.stderr.read()


def test_a_missing_input_file_is_one_line(moldau: Moldau, topic: str) -> None:
    done = moldau("produce", topic, "--from", "/nonexistent/file", code=1)
    assert done.err == "error: /nonexistent/file: No such file or directory\n"


def test_a_broker_that_goes_away_is_a_fault_with_a_count(tmp_path: Path) -> None:
    with Broker() as broker:
        moldau = Moldau(broker.bootstrap)
        moldau("topic", "create", "t")
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        times = ("-X", "delivery.timeout.ms=1000", "-X", "request.timeout.ms=900", "-X", "linger.ms=0")
        with moldau.start("produce", "t", *times, **pipes) as process:
            assert process.stdin is not None and process.stderr is not None
            process.stdin.write(b"first\n")
            process.stdin.flush()
            deadline = time.monotonic() + 10
            while moldau("consume", "t", "-e").out != "first\n" and time.monotonic() < deadline:
                time.sleep(0.1)
            broker.stop()
            process.stdin.write(b"second\n")
            process.stdin.close()
            assert process.wait(SECONDS_MAX) == 1
            text = process.stderr.read().decode()
    assert text.startswith("error: 1 of 2 records were delivered to t; first error: ") and text.count("\n") == 1
