"""The whole demo on this machine: broker, generator and pipeline as processes of its own, the page in this one.

Begins with the broker, ends the other way round: the generator first, so that nothing new comes; then the pipeline,
which finishes its batches; the broker last. Each process is in a session of its own, for Ctrl-C is ours to pass on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from moldau.client import ClusterClient
from moldau.demo.dashboard import Dashboard
from moldau.demo.folders import PipelineSettings, write_folders
from moldau.demo.page_state import has_points
from moldau.demo.scale import scale_from
from moldau.demo.topics import prepare
from moldau.tables import TableView
from moldau.tables.service import HttpServer, listen

READY_SECONDS_MAX = 60.0
# A batch may be at hand, and Spark takes its time.
END_SECONDS_MAX = 90.0
_LOOK_SECONDS = 0.5
_SETTINGS = "demo.json"


@dataclass(frozen=True, slots=True)
class DemoSettings:
    data: Path
    port: int = 9092
    http_port: int = 8080
    day: str = "5m"
    rate: float = 1000
    sites: int = 8
    seed: int = 1
    postgres: str = ""
    master: str = "local[*]"
    broker: Mapping[str, str] | None = None


class DemoError(RuntimeError):
    """What keeps the demo from running; one line."""


def check_data(settings: DemoSettings) -> None:
    """A directory holds one demo: with other minutes, what is in its tables and states would mean nothing."""
    path = settings.data / _SETTINGS
    mine = {"day": settings.day}
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings.data.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(mine), encoding="utf-8")
        return
    if there != mine:
        raise DemoError(
            f"{settings.data} holds a demo with --day {there.get('day')}: give that, another --data, or delete it"
        )


def told_of_end(code: int, last_line: str) -> str:
    """Who is killed has no last word: what its log ends with is not the reason."""
    if code >= 0:
        return f"has ended: {last_line}"
    memory = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{memory}; its last line: {last_line}"


class Demo:
    """One run."""

    def __init__(self, settings: DemoSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._scale = scale_from(settings.day)
        self._stopping = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._began = time.monotonic()

    async def run(self) -> int:
        """Until SIGINT or SIGTERM, or until something ends by itself; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopping.set)
        listening = listen("127.0.0.1", self._settings.http_port, "--http-port")
        view = TableView(self._settings.data / "view.sqlite")
        try:
            bootstrap = await self._start_broker()
            folders = write_folders(self._settings.data / "pipelines", self._pipeline_settings(bootstrap))
            async with ClusterClient(bootstrap) as client:
                await prepare(client, self._scale)
            await self._start_rest(bootstrap, folders)
            dashboard = Dashboard(view, self._scale, folders)
            server = HttpServer(dashboard.app)
            try:
                async with dashboard.following(bootstrap):
                    serving = asyncio.create_task(server.serve(sockets=[listening]))
                    where = f"http://127.0.0.1:{listening.getsockname()[1]}"
                    self._say(
                        f"open {where} in a browser (broker on {bootstrap}; charts come in about half a minute; "
                        "Ctrl-C ends it all)"
                    )
                    failed = await self._watch(dashboard)
                    await self._end("generator")
                    await self._end("pipeline")
                    server.stop()
                    await serving
            finally:
                dashboard.close()
            return failed
        finally:
            for name in ("generator", "pipeline", "broker"):
                await self._end(name)
            view.close()
            listening.close()

    def _pipeline_settings(self, bootstrap: str) -> PipelineSettings:
        given = self._settings
        lake = str((given.data / "lake").resolve())
        return PipelineSettings(bootstrap, given.day, lake, given.postgres, given.master)

    # -- processes -----------------------------------------------------------------------------------------------------

    async def _start_broker(self) -> str:
        given = self._settings
        flags = {
            "listeners": f"PLAINTEXT://127.0.0.1:{given.port}",
            "log.dirs": str((given.data / "broker").resolve()),
            "group.initial.rebalance.delay.ms": "100",
            **(given.broker or {}),
        }
        order = json.dumps({"file": None, "flags": flags, "remove": None, "greet": False})
        process = await self._start("broker", ["moldau.broker", order], stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), READY_SECONDS_MAX)).decode()
        if not line.startswith("ready "):
            await process.wait()
            raise DemoError(f"the broker did not start: {self._last_line('broker')}")
        return dict(field.partition("=")[::2] for field in line.split()[1:])["bootstrap"]

    async def _start_rest(self, bootstrap: str, folders: Sequence[Path]) -> None:
        given = self._settings
        events = ["moldau", "demo", "events", "--bootstrap", bootstrap, "--rate", f"{given.rate:g}", "--day", given.day]
        await self._start("generator", [*events, "--sites", str(given.sites), "--seed", str(given.seed)])
        await self._start("pipeline", ["moldau", "pipeline", "run", *map(str, folders)])

    async def _start(self, name: str, command: Sequence[str], stdout: int | None = None) -> asyncio.subprocess.Process:
        with self._log(name) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                start_new_session=True,
            )
        self._running[name] = process
        return process

    def _log(self, name: str) -> IO[bytes]:
        path = self._log_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")

    def _log_path(self, name: str) -> Path:
        return self._settings.data / "logs" / f"{name}.log"

    def _last_line(self, name: str) -> str:
        path = self._log_path(name)
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        told = [line.strip() for line in lines if line.strip()]
        errors = [line for line in told if line.startswith("error: ")]
        return f"{(errors or told or ['it says nothing'])[-1].removeprefix('error: ')} (see {path})"

    async def _watch(self, dashboard: Dashboard) -> int:
        """Wait for the end; say when the first chart has data."""
        has_data = False
        while not self._stopping.is_set():
            for name, process in self._running.items():
                if process.returncode is not None:
                    self._say(f"the {name} {told_of_end(process.returncode, self._last_line(name))}")
                    return 1
            if not has_data and has_points(await dashboard.read()):
                has_data = True
                self._say(f"the first chart has data, {time.monotonic() - self._began:.0f} s after the start")
            try:
                await asyncio.wait_for(self._stopping.wait(), _LOOK_SECONDS)
            except TimeoutError:
                continue
        self._say("ending: generator, pipeline, broker")
        return 0

    async def _end(self, name: str) -> None:
        process = self._running.get(name)
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS_MAX)
        except TimeoutError:
            # Its own session: what it started goes with it.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
