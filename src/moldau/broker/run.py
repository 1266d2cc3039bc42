"""A broker as a process: descriptors, signals, one event loop, and the line that says it is ready."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from moldau.broker.cleaner_process import clean_in_process
from moldau.broker.host import SystemClock, SystemDice, SystemDisk
from moldau.broker.node import Node
from moldau.broker.settings import Settings

EXIT_OK, EXIT_FAULT = 0, 1


def say_on_stderr(line: str) -> None:
    """Logs are past-tense events with fields, one line each, whatever names clients choose for their groups."""
    if not line.isprintable():
        line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    print(f"{stamp}.{int(now * 1000) % 1000:03d}Z {line}", file=sys.stderr, flush=True)


def run_broker(
    settings: Settings,
    *,
    say: Callable[[str], None] = say_on_stderr,
    on_ready: Callable[[Node], None],
    cluster_id: str | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. What stands in the way of starting is raised."""
    _raise_descriptor_limit()
    # Requests make no reference cycles; collecting often would only look at the same long-lived objects again.
    gc.set_threshold(50_000, 20, 100)
    return asyncio.run(_serve(settings, say, on_ready, cluster_id))


async def _serve(
    settings: Settings, say: Callable[[str], None], on_ready: Callable[[Node], None], cluster_id: str | None
) -> int:
    loop = asyncio.get_running_loop()
    node = Node(
        settings,
        disk=SystemDisk(),
        clock=SystemClock(),
        dice=SystemDice(),
        loop=loop,
        say=say,
        cluster_id=cluster_id,
        run_cleaning=clean_in_process,
    )
    asked: asyncio.Future[str] = loop.create_future()

    def stop(name: str) -> None:
        if not asked.done():
            asked.set_result(name)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)
    node.start()
    started: set[asyncio.Future[Any]] = {asked, node.failed, node.ready}
    await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
    if node.ready.done():
        node.ready.result()
        await node.start_http()
        gc.freeze()
        on_ready(node)
    waits: set[asyncio.Future[Any]] = {asked, node.failed}
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if node.failed.done():
        say(f"node_failed reason={str(node.failed.result())!r}")
        return EXIT_FAULT
    say(f"stop_requested signal={asked.result()}")
    await node.stop()
    return EXIT_OK


def _raise_descriptor_limit() -> None:
    """A partition keeps a file open, a client a socket: take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
