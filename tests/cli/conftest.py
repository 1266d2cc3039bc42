"""The `moldau` command as users have it: a process against a running broker, or typer's runner where speed matters."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.app import app
from moldau.client import Producer
from moldau.testing import Broker

SECONDS_MAX = 60
# A bar comes where work is long, which it is not on every machine.
BAR_AT_ONCE = (
    "-c",
    "import runpy; from moldau.cli import output; output.PROGRESS_AFTER_SECONDS = 0;"
    " runpy.run_module('moldau', run_name='__main__')",
)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        # Not splitlines: a text may hold other characters that Python takes for line ends.
        return [json.loads(line) for line in self.out.split("\n") if line]


class Moldau:
    """Commands against one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def environment(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MOLDAU_")}
        return {**kept, "MOLDAU_BOOTSTRAP": self.bootstrap, **more}

    def __call__(self, *args: str, code: int = 0) -> Done:
        """Inside this process, which saves the start."""
        result = CliRunner().invoke(app, list(args), env={"MOLDAU_BOOTSTRAP": self.bootstrap}, prog_name="moldau")
        done = Done(result.exit_code, result.stdout, result.stderr)
        assert done.code == code, done
        assert "Traceback" not in done.err
        return done

    def run(self, *args: str, stdin: bytes = b"", code: int = 0, **environment: str) -> Done:
        """As a process of its own."""
        process = subprocess.run(
            [sys.executable, "-m", "moldau", *args],
            input=stdin,
            capture_output=True,
            timeout=SECONDS_MAX,
            env=self.environment(**environment),
        )
        done = Done(process.returncode, process.stdout.decode(errors="surrogateescape"), process.stderr.decode())
        assert done.code == code, done
        assert "Traceback" not in done.err
        return done

    def fill(self, topic: str, partition: int, *values: bytes, timestamp_ms: int | None = None) -> None:
        """Records for tests whose subject is not how they came there."""

        async def work() -> None:
            async with Producer(self.bootstrap) as producer:
                for value in values:
                    await producer.send(topic, value, partition=partition, timestamp_ms=timestamp_ms)

        asyncio.run(work())

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "moldau", *args], env=self.environment(), **options)

    def on_terminal(
        self,
        *args: str,
        typed: bytes = b"",
        until: bytes = b"",
        program: tuple[str, str] = ("-m", "moldau"),
        **environment: str,
    ) -> tuple[int, str]:
        """On a terminal of its own: the exit code and all that was shown. `typed` follows once `until` is shown."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, *program, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=self.environment(TERM="xterm", COLUMNS="160", **environment),
            start_new_session=True,
        )
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            if typed and until in shown:
                os.write(ours, typed)
                typed = b""
            if not select.select([ours], [], [], 0.5)[0]:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        return process.wait(SECONDS_MAX), shown.decode(errors="replace").replace("\r\n", "\n")


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": "1"}) as running:
        yield running


@pytest.fixture(scope="session")
def moldau(broker: Broker) -> Moldau:
    return Moldau(broker.bootstrap)


_numbers = itertools.count()


@pytest.fixture
def new_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Topic names that no other test or worker uses."""
    base = re.sub(r"[^a-z]", "-", request.node.originalname.removeprefix("test_"))[:40]
    return lambda: f"cli-{base}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def topic(moldau: Moldau, new_name: Callable[[], str]) -> str:
    """A fresh topic of one partition."""
    name = new_name()
    moldau("topic", "create", name, "-p", "1")
    return name


@pytest.fixture(params=["moldau", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Moldau:
    """The same commands on both."""
    if request.param == "kafka":
        return Moldau(request.getfixturevalue("apache_kafka").bootstrap)
    found: Moldau = request.getfixturevalue("moldau")
    return found
