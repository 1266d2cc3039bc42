"""Groups of real clients: what their members say of themselves, awaited.

A member is a process, so that it can be killed; but those of "java" share a JVM, for one of its own costs more than all
that a member does. "java-process" has one.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tests import java
from tests.clients.needs import require_java

SECONDS_MAX = 60.0


def java_program(name: str, *arguments: str) -> list[str]:
    """The command that runs one of our programs."""
    require_java()
    return java.java_program(name, *arguments, sources=[f"clients/java/{name}.java"])


class Member:
    """Who reads a topic in a group; `assigned` and `seen` are what it said last."""

    def __init__(self) -> None:
        self.assigned: list[int] | None = None
        self.history: list[list[int]] = []
        self.seen: set[tuple[int, int]] = set()

    def hear(self, said: dict[str, Any]) -> None:
        if "assigned" in said:
            self.assigned = said["assigned"]
            self.history.append(said["assigned"])
        if "seen" in said:
            self.seen.add((said["partition"], said["offset"]))

    @property
    def errors(self) -> str:
        """What it complained of last."""
        raise NotImplementedError

    def close(self) -> None:
        """In good order: it leaves the group."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The test is over."""
        raise NotImplementedError


class GroupMember(Member):
    """A process."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)
        )
        self._errors: list[bytes] = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self.hear(json.loads(line))

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

    def order(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
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

    def abandon(self) -> None:
        if self.is_running:
            self.kill()


class JavaMembers(GroupMember):
    """A JVM with members."""

    def __init__(self) -> None:
        self.members: dict[int, JavaMember] = {}
        super().__init__(java_program("GroupMembers"))

    def hear(self, said: dict[str, Any]) -> None:
        self.members[said["member"]].hear(said)


@cache
def java_members() -> JavaMembers:
    """The JVM that members of this test run share."""
    found = JavaMembers()
    atexit.register(found.abandon)
    return found


class JavaMember(Member):
    def __init__(self, bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> None:
        super().__init__()
        self._ended = threading.Event()
        self._jvm = java_members()
        self._name = len(self._jvm.members)
        self._jvm.members[self._name] = self
        self._jvm.order(java_order(self._name, bootstrap, group, topic, settings))
        self._is_told = False

    def hear(self, said: dict[str, Any]) -> None:
        super().hear(said)
        if "ended" in said:
            self._ended.set()

    @property
    def errors(self) -> str:
        return self._jvm.errors

    def close(self) -> None:
        self.abandon()
        assert self._ended.wait(SECONDS_MAX), f"the member did not end: {self.errors}"
        self.assigned = None

    def abandon(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._jvm.order({"member": self._name})


def java_order(name: int, bootstrap: str, group: str, topic: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What makes GroupMembers.java start a member."""
    return {"member": name, "bootstrap": bootstrap, "group": group, "topic": topic, "settings": settings}


def start_member(library: str, bootstrap: str, group: str, topic: str, **settings: Any) -> Any:
    """A member of the group by the name of its library; `__` in a setting's name stands for a dot."""
    given = {name.replace("__", "."): value for name, value in settings.items()}
    if library == "java":
        return JavaMember(bootstrap, group, topic, given)
    if library == "java-process":
        alone = GroupMember(java_program("GroupMembers"))
        alone.order(java_order(0, bootstrap, group, topic, given))
        return alone
    program = [sys.executable, "-m", "tests.clients.group_member", library]
    return GroupMember([*program, bootstrap, group, topic, json.dumps(given)])


def await_that(condition: Callable[[], bool], members: Sequence[Member], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        if time.monotonic() > deadline:
            states = [(member.assigned, len(member.seen), member.errors[-500:]) for member in members]
            raise AssertionError(f"{what} did not come: {states}")
        time.sleep(0.02)


def await_shared(members: Sequence[Member], partitions: int) -> None:
    """Every partition is owned once, and nobody has two more than another."""

    def is_shared() -> bool:
        owned = [member.assigned for member in members]
        if any(each is None for each in owned):
            return False
        sizes = [len(each or ()) for each in owned]
        everything = sorted(partition for each in owned for partition in each or ())
        return everything == list(range(partitions)) and max(sizes) - min(sizes) <= 1

    await_that(is_shared, members, f"a fair share of {partitions} partitions")


def await_all_seen(members: Sequence[Member], count: int) -> None:
    await_that(lambda: len(set().union(*(member.seen for member in members))) >= count, members, f"{count} records")
