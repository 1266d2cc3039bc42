"""`moldau demo run` as `make run` starts it: a page with data, a browser that shows it, an end that leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from moldau.demo.running import told_of_end
from tests.browser import look_at

SECONDS_MAX = 240.0


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
    return {**kept, "PYTHONUNBUFFERED": "1", **more}


def start(directory: Path, *args: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "moldau", "demo", "run", "--port", "0", "--http-port", "0", "--data"]
    return subprocess.Popen(
        [*command, str(directory), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**more),
    )


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        found = re.search(pattern, line)
        if found is not None:
            return found
    raise AssertionError("".join(seen))


def children(data: Path) -> list[int]:
    """The processes whose command names the directory, which all of the demo's do, or whose parent is one of them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            stat = (path.parent / "stat").read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = (path.read_bytes().decode(errors="replace"), int(stat[1]), stat[0])
        except OSError:
            continue
    mine = {pid for pid, (command, _, state) in found.items() if str(data) in command and state != "Z"}
    while more := {pid for pid, (_, parent, state) in found.items() if parent in mine and state != "Z"} - mine:
        mine |= more
    return sorted(mine - {os.getpid()})


def wait_until_all_ended(data: Path) -> None:
    """A JVM deletes its temporary files after the Python process that it served has ended."""
    deadline = time.monotonic() + SECONDS_MAX
    while left := children(data):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.timeout(600)
def test_the_demo_shows_data_in_a_browser_and_ends_whole(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    process = start(data, "--rate", "200", "--sites", "3", "--seed", "5", "--master", "local[2]")
    try:
        found = wait_for_line(process, r"open (http://\S+) in a browser \(broker on (\S+);")
        address = found[1]
        wait_for_line(process, r"the first chart has data, \d+ s after the start")
        state = until(address, lambda told: len(told["queries"]) == 9 and len(told["active"]["minute"]) > 4)
        assert len(state["sites"]) == 3 and {one["state"] for one in state["queries"]} == {"running"}
        page = look_at(address)
        assert page.console == []
        points = dict(re.findall(r'<div id="(\w+)"><div class="chart"><svg[^>]*data-points="(\d+)"', page.html))
        assert int(points["requests"]) > 1 and int(points["users"]) > 1 and int(points["latency"]) > 1, points
        assert len(children(data)) > 4
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, rest
    assert "ending: generator, pipeline, broker" in rest
    wait_until_all_ended(data)
    assert "sent " in (data / "logs" / "generator.log").read_text()
    refused = start(data, "--day", "10m")
    told, _ = refused.communicate(timeout=SECONDS_MAX)
    assert refused.returncode == 1 and "holds a demo with --day 5m" in told


def until(address: str, is_so: Any) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with urllib.request.urlopen(f"{address}/api/state") as answer:
            state = json.loads(answer.read())
        if is_so(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.5)


def test_without_java_the_broker_runs_alone_and_says_why(tmp_path: Path) -> None:
    # Nothing of this machine's Java is found: neither by the environment nor where systems install it.
    hide = "import moldau.spark.java as j; j._homes = lambda *_: iter(()); from moldau.cli import main; main()"
    command = [sys.executable, "-c", hide, "demo", "run", "--port", "0", "--data", str(tmp_path / "demo")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(JAVA_HOME="")
    )
    try:
        wait_for_line(process, r"no analytics here: Spark needs Java 17, 21 or 25, and none is installed: install one")
        wait_for_line(process, r"^ready bootstrap=127\.0\.0\.1:\d+")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0


def test_who_was_killed_is_told_by_the_signal() -> None:
    assert told_of_end(1, "no broker (see x.log)") == "has ended: no broker (see x.log)"
    told = told_of_end(-9, "at org.apache.spark (see x.log)")
    assert told == "was ended by SIGKILL, perhaps for want of memory; its last line: at org.apache.spark (see x.log)"


def test_a_master_that_is_none_is_told_before_anything_starts(tmp_path: Path) -> None:
    process = start(tmp_path / "demo", "--master", "foo://x")
    told, _ = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 2 and "--master foo://x is none: write local[*]" in told
    assert not (tmp_path / "demo").exists()


def test_a_port_that_is_taken_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start(tmp_path / "demo", "--http-port", port)
        told, _ = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 1
        assert told == f"error: cannot listen on 127.0.0.1:{port}: Address already in use; give another --http-port\n"
        broker = start(tmp_path / "demo", "--port", port)
        told, _ = broker.communicate(timeout=SECONDS_MAX)
        assert broker.returncode == 1 and "error: the broker did not start: " in told and "Traceback" not in told
    assert children(tmp_path / "demo") == []
