"""A real broker for tests: real sockets and files, a free port, a directory that goes when the test is over.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

`Broker` serves from a thread of this process and is ready in milliseconds. `BrokerProcess` is the same as a process of
its own, for tests that kill it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Self

from moldau.broker import Node, load_settings
from moldau.broker.host import SystemClock, SystemDice, SystemDisk

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
# What a test wants otherwise than a server: no waiting, small files, no other ports.
TEST_SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
    "moldau.http.listener": "",
    "moldau.log.dir.reserve.bytes": "65536",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


class _Directory:
    """The broker's data: the caller's directory, or a temporary one."""

    def __init__(self, path: str | None) -> None:
        self.is_temporary = path is None
        self.path = path or tempfile.mkdtemp(prefix="moldau-")

    def remove(self) -> None:
        if self.is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)


def _settings(directory: str, port: int, overrides: Mapping[str, str]) -> dict[str, str]:
    return {
        **TEST_SETTINGS,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": directory,
        **overrides,
    }


class Broker:
    """A broker in a thread. `bootstrap` is its address while it runs; `log` collects what it said."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, data: str | None = None, port: int = 0) -> None:
        self._overrides = dict(settings or {})
        self._port = port
        self._directory = _Directory(data)
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.node: Node | None = None
        self.log: list[str] = []
        self.bootstrap = ""

    @property
    def data(self) -> str:
        return self._directory.path

    def start(self) -> Self:
        assert self._thread is None, "the broker runs already"
        self._ready.clear()
        self._problem = None
        self._thread = threading.Thread(target=self._run, name="moldau-broker", daemon=True)
        self._thread.start()
        if not self._ready.wait(READY_SECONDS_MAX):
            raise TimeoutError(f"the broker was not ready within {READY_SECONDS_MAX} s; it said: {self.log[-5:]}")
        if self._problem is not None:
            self._thread.join()
            self._thread = None
            raise self._problem
        return self

    def stop(self) -> None:
        """Stop cleanly; `start` may follow and finds the data again."""
        if self._thread is None:
            return
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_SECONDS_MAX)
        assert not self._thread.is_alive(), f"the broker did not stop within {STOP_SECONDS_MAX} s"
        self._thread = None

    def close(self) -> None:
        self.stop()
        self._directory.remove()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._directory.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # handed to the thread that started us
            self._problem = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings, warnings = load_settings(None, _settings(self.data, self._port, self._overrides).items(), {})
        self.log += warnings
        self.node = Node(
            settings,
            disk=SystemDisk(),
            clock=SystemClock(),
            dice=SystemDice(),
            loop=self._loop,
            say=self.log.append,
        )
        self.node.start()
        stopped = self._loop.create_task(self._stop.wait())
        waits: set[asyncio.Future[object]] = {self.node.ready, stopped}  # type: ignore[arg-type]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            await self.node.wait_ready()
        await self.node.start_http()
        self.bootstrap = self.node.listeners.bootstrap
        self._port = self.node.listeners[0].port
        self._ready.set()
        await self._stop.wait()
        await self.node.stop()


class BrokerProcess:
    """A broker as a child process, by the same command that a user types; it can be killed."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        data: str | None = None,
        port: int = 0,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._overrides = dict(settings or {})
        self._port = port
        self._directory = _Directory(data)
        self._prefix = prefix
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self.bootstrap = ""

    @property
    def data(self) -> str:
        return self._directory.path

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything that the broker said so far."""
        assert self._errors is not None
        self._errors.flush()
        with open(self._errors.name, encoding="utf-8") as file:
            return file.read()

    def start(self) -> Self:
        assert self._process is None, "the broker runs already"
        flags = [f"-X{key}={value}" for key, value in _settings(self.data, self._port, self._overrides).items()]
        if self._errors is None:
            self._errors = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed by close()
                "w+", suffix=".log", prefix="moldau-", encoding="utf-8"
            )
        self._process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "moldau", "broker", *flags],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **self._environment},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("ready "):
            self._process.wait()
            raise RuntimeError(f"the broker did not start: {line}{self.log[-2000:]}")
        fields = dict(field.partition("=")[::2] for field in line.split()[1:])
        self.bootstrap = fields["bootstrap"]
        self._port = int(self.bootstrap.rpartition(":")[2])
        return self

    def kill(self) -> None:
        """SIGKILL: what the kernel has is kept, what the process held is lost."""
        self._end(lambda process: process.kill())

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(lambda process: process.send_signal(signal.SIGTERM))

    def _end(self, how: Callable[[subprocess.Popen[str]], None]) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        how(process)
        code = process.wait(STOP_SECONDS_MAX)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def close(self) -> None:
        self.kill()
        if self._errors is not None:
            self._errors.close()
        self._directory.remove()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._directory.remove()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
