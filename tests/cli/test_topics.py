"""`moldau topic`: the words of its verbs against a running broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Moldau


def write(moldau: Moldau, tmp_path: Path, topic: str, lines: list[str], *options: str) -> None:
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"{line}\n" for line in lines))
    moldau("produce", topic, "--from", str(source), *options)


def test_create_then_list_and_describe(moldau: Moldau, new_name: Callable[[], str]) -> None:
    name = new_name()
    (made,) = moldau("topic", "create", name, "-p", "3", "-r", "1", "-c", "retention.ms=60000", "-o", "json").json
    assert (made["result"], made["partitions"], made["replication_factor"]) == ("created", 3, 1)
    (listed,) = [row for row in moldau("topic", "list", "-o", "jsonl").lines if row["name"] == name]
    assert listed["partitions"] == 3 and listed["topic_id"] == made["topic_id"]
    (described,) = moldau("topic", "describe", name, "-o", "json").json
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2]
    assert {one["leader"] for one in described["partitions"]} == {1}
    assert described["configs"] == [
        {"name": "file.delete.delay.ms", "value": "0", "source": "static_broker"},
        # With eligible leader replicas the cluster has one from its birth.
        {"name": "min.insync.replicas", "value": "1", "source": "dynamic_default_broker"},
        {"name": "retention.ms", "value": "60000", "source": "dynamic_topic"},
    ]


def test_tables_in_a_pipe_are_aligned_words_without_borders_or_colour(moldau: Moldau, topic: str) -> None:
    done = moldau.run("topic", "list")
    header, *rows = done.out.splitlines()
    assert header.split() == ["NAME", "PARTITIONS", "REPLICATION", "ID"]
    assert [row.split()[:3] for row in rows if row.split()[0] == topic] == [[topic, "1", "1"]]
    assert done.out.isascii() and "\x1b" not in done.out
    assert len({row.index(row.split()[-1]) for row in [header, *rows]}) == 1


def test_tables_on_a_terminal_are_drawn(moldau: Moldau, topic: str) -> None:
    code, shown = moldau.on_terminal("topic", "list")
    assert code == 0 and topic in shown and "─" in shown and "\x1b[1m" in shown
    _, plain = moldau.on_terminal("topic", "list", NO_COLOR="1")
    assert "\x1b[3" not in plain


def test_create_twice_is_refused_unless_told(moldau: Moldau, topic: str) -> None:
    assert "already exists" in moldau("topic", "create", topic, code=1).err
    (row,) = moldau("topic", "create", topic, "--if-not-exists", "-o", "json").json
    assert row == {"name": topic, "result": "exists"}


def test_validate_only_creates_nothing(moldau: Moldau, new_name: Callable[[], str]) -> None:
    name = new_name()
    (row,) = moldau("topic", "create", name, "--validate-only", "-o", "json").json
    assert row["result"] == "valid"
    assert name not in moldau("topic", "list").out
    refused = moldau("topic", "create", name, "--validate-only", "-r", "3", code=1)
    assert "INVALID_REPLICATION_FACTOR" in refused.err


def test_alter_adds_partitions_with_a_warning_and_changes_configs(moldau: Moldau, topic: str) -> None:
    done = moldau("topic", "alter", topic, "--partitions", "4", "--set", "retention.ms=1", "--set", "segment.ms=2")
    assert "keys move" in done.err
    done = moldau("topic", "alter", topic, "--unset", "segment.ms")
    assert done.err == ""
    (described,) = moldau("topic", "describe", topic, "-o", "json").json
    assert len(described["partitions"]) == 4
    own = [one for one in described["configs"] if one["source"] == "dynamic_topic"]
    assert [(one["name"], one["value"]) for one in own] == [("retention.ms", "1")]
    assert "INVALID_PARTITIONS" in moldau("topic", "alter", topic, "--partitions", "2", code=1).err


def test_a_terminal_is_asked_before_keys_move_or_topics_go(moldau: Moldau, topic: str) -> None:
    code, shown = moldau.on_terminal("topic", "alter", topic, "--partitions", "2", typed=b"n\n", until=b"[y/N]")
    assert code == 1 and "nothing was done" in shown
    code, shown = moldau.on_terminal("topic", "delete", topic, typed=b"\n", until=b"[y/N]")
    assert code == 1 and "nothing was done" in shown
    assert len(moldau("topic", "describe", topic, "-o", "json").json[0]["partitions"]) == 1
    code, _ = moldau.on_terminal("topic", "delete", topic, typed=b"y\n", until=b"[y/N]")
    assert code == 0 and topic not in moldau("topic", "list").out


def test_yes_answers_the_question(moldau: Moldau, topic: str) -> None:
    code, shown = moldau.on_terminal("topic", "delete", topic, "--yes")
    assert code == 0 and "[y/N]" not in shown and "deleted" in shown


def test_delete_several_goes_on_after_a_missing_one(moldau: Moldau, new_name: Callable[[], str]) -> None:
    first, last = new_name(), new_name()
    moldau("topic", "create", first, last)
    done = moldau("topic", "delete", first, "missing-one", last, "-o", "json", code=3)
    assert [row["result"] for row in done.json] == ["deleted", "not found", "deleted"]
    assert done.err.startswith("error: topic 'missing-one' does not exist")
    assert moldau("topic", "delete", "missing-one", "--if-exists").err == ""


def test_trim_by_offset_by_time_and_all(moldau: Moldau, new_name: Callable[[], str], tmp_path: Path) -> None:
    name = new_name()
    moldau("topic", "create", name, "-p", "2")
    for second, partition in ((1, "0"), (2, "0"), (3, "0"), (2, "1")):
        write(moldau, tmp_path, name, ["a", "b"], "-p", partition, "-t", f"2024-05-01T10:00:0{second}Z")
    (row,) = moldau("topic", "trim", name, "--to-offset", "1", "--partition", "0", "-o", "json").json
    assert row == {"partition": 0, "start": 1, "end": 6, "trimmed": 1}
    rows = moldau("topic", "trim", name, "--before", "2024-05-01T10:00:03Z", "-o", "json").json
    assert [(one["start"], one["trimmed"]) for one in rows] == [(4, 3), (2, 2)]
    refused = moldau("topic", "trim", name, "--to-offset", "5", code=1)
    assert f"{name}-1 ends at offset 2" in refused.err
    rows = moldau("topic", "trim", name, "--all", "-o", "json").json
    assert [(one["start"], one["end"], one["trimmed"]) for one in rows] == [(6, 6, 2), (2, 2, 0)]
    assert moldau("consume", name, "-e").out == ""


def test_trim_asks_on_a_terminal_and_tells_how_many(moldau: Moldau, topic: str, tmp_path: Path) -> None:
    write(moldau, tmp_path, topic, ["a", "b", "c"])
    code, shown = moldau.on_terminal("topic", "trim", topic, "--all", typed=b"n\n", until=b"[y/N]")
    assert code == 1 and f"Delete 3 records of {topic}?" in shown
    assert moldau("consume", topic, "-e").out == "a\nb\nc\n"


def test_a_created_topic_is_there_for_the_next_command(moldau: Moldau, new_name: Callable[[], str]) -> None:
    name = new_name()
    moldau("topic", "create", name)
    started = time.monotonic()
    moldau("topic", "describe", name)
    assert time.monotonic() - started < 1
