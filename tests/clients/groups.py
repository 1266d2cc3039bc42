"""Groups of real clients, each member a process: what they say of themselves, awaited."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.clients.needs import require_java
from tests.oracle import LIBS, java, java_command

SECONDS_MAX = 60.0
SOURCES = [
    str(Path(__file__).parent / "java" / name) for name in ("GroupMember.java", "Transactions.java", "WordCount.java")
]


@cache
def java_classes() -> str:
    """Our Java programs compiled, once for a run."""
    require_java()
    classes = tempfile.mkdtemp(prefix="moldau-java-")
    atexit.register(shutil.rmtree, classes, ignore_errors=True)
    compiler = str(Path(java() or "").resolve().with_name("javac"))
    subprocess.run([compiler, "-cp", f"{LIBS}/*", "-d", classes, *SOURCES], check=True)
    return classes


def java_program(name: str, *arguments: str) -> list[str]:
    """The command that runs one of them."""
    classes = java_classes()
    command = java_command(name, *arguments)
    place = command.index("-cp") + 1
    command[place] += f":{classes}"
    return command


class GroupMember:
    """A process that reads a topic in a group; `assigned` and `seen` are what it said last."""

    def __init__(self, command: Sequence[str]) -> None:
        self.assigned: list[int] | None = None
        self.history: list[list[int]] = []
        self.seen: set[tuple[int, int]] = set()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
        )
        self._errors: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    @classmethod
    def start(cls, library: str, bootstrap: str, group: str, topic: str, **settings: Any) -> GroupMember:
        """`__` in a setting's name stands for a dot."""
        given = json.dumps({name.replace("__", "."): value for name, value in settings.items()})
        if library == "java":
            return cls(java_program("GroupMember", bootstrap, group, topic, given))
        return cls([sys.executable, "-m", "tests.clients.group_member", library, bootstrap, group, topic, given])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith(b"{"):
                continue
            said = json.loads(line)
            if "assigned" in said:
                self.assigned = said["assigned"]
                self.history.append(said["assigned"])
            if "seen" in said:
                self.seen.add((said["partition"], said["offset"]))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)

    @property
    def errors(self) -> str:
        return b"".join(self._errors[-30:]).decode(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """In good order: it leaves the group."""
        assert self._process.stdin is not None
        if self.is_running:
            self._process.stdin.close()
            try:
                self._process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise AssertionError(f"the member did not end: {self.errors}") from None
        self.assigned = None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.assigned = None


def await_that(condition: Callable[[], bool], members: Sequence[GroupMember], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            states = [(member.assigned, len(member.seen), member.errors[-500:]) for member in members]
            raise AssertionError(f"{what} did not come: {states}")
        time.sleep(0.02)


def await_shared(members: Sequence[GroupMember], partitions: int) -> None:
    """Every partition is owned once, and nobody has two more than another."""

    def is_shared() -> bool:
        owned = [member.assigned for member in members]
        if any(each is None for each in owned):
            return False
        sizes = [len(each or ()) for each in owned]
        everything = sorted(partition for each in owned for partition in each or ())
        return everything == list(range(partitions)) and max(sizes) - min(sizes) <= 1

    await_that(is_shared, members, f"a fair share of {partitions} partitions")


def await_all_seen(members: Sequence[GroupMember], count: int) -> None:
    await_that(lambda: len(set().union(*(member.seen for member in members))) >= count, members, f"{count} records")
