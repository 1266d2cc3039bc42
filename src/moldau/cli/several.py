"""Several brokers on one machine as one cluster, a process each, started and stopped together.

    python -m moldau.cli.several '{"brokers": [{...}, {...}, {...}], "remove": null}'

This process only looks after the others: it passes SIGINT and SIGTERM on, says when all are ready, and starts one that
died again after a while, so that what happens without it can be seen. It knows nothing of what they do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

RESTART_SECONDS = 5.0
Order = dict[str, Any]


def main(argument: str) -> int:
    """Serve until SIGINT or SIGTERM; the exit code."""
    order: Order = json.loads(argument)
    try:
        return asyncio.run(_Several(order["brokers"], _announce).run())
    finally:
        if order["remove"]:
            shutil.rmtree(order["remove"], ignore_errors=True)


def _announce(lines: list[str]) -> None:
    """One line for all, in the form of one broker's."""
    found = [dict(field.partition("=")[::2] for field in line.split()[1:]) for line in lines]
    bootstrap = ",".join(fields["bootstrap"] for fields in found)
    print(f"ready bootstrap={bootstrap} nodes={len(found)} cluster={found[0]['cluster']}", flush=True)
    command = "moldau"
    if not shutil.which(command):
        command = os.path.relpath(os.path.join(os.path.dirname(sys.executable), command))
    print(
        "\nTry it in another terminal:\n"
        f"  echo hello | {command} produce greetings -b {bootstrap}\n"
        f"  {command} consume greetings -b {bootstrap}\n"
        f"or point any Kafka client at these addresses. Ctrl-C stops all {len(found)} brokers.\n",
        file=sys.stderr,
        flush=True,
    )


class _Several:
    def __init__(self, orders: Sequence[Order], on_ready: Callable[[list[str]], None]) -> None:
        self._orders = orders
        self._on_ready = on_ready
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._lines: dict[int, str] = {}
        self._is_stopping = False
        self._code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        await asyncio.gather(*(self._keep(index, order) for index, order in enumerate(self._orders)))
        return self._code

    def _stop(self) -> None:
        self._is_stopping = True
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def _keep(self, index: int, order: Order) -> None:
        while not self._is_stopping:
            # A session of its own: Ctrl-C is ours to pass on, once.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "moldau.broker",
                json.dumps(order),
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            self._processes[index] = process
            if self._is_stopping:
                process.send_signal(signal.SIGTERM)
            was_ready = await self._wait_ready(index, process)
            code = await process.wait()
            if self._is_stopping:
                self._code = max(self._code, code)
                return
            if not was_ready:
                self._code = code if code > 0 else 1
                self._stop()
                return
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            print(
                f"broker {index + 1} {how}; the others go on. It is started again in {RESTART_SECONDS:.0f} s.",
                file=sys.stderr,
                flush=True,
            )
            await self._pause()

    async def _wait_ready(self, index: int, process: asyncio.subprocess.Process) -> bool:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().strip()
        if not line.startswith("ready "):
            return False
        is_first_time = len(self._lines) < len(self._orders)
        self._lines[index] = line
        if is_first_time and len(self._lines) == len(self._orders):
            self._on_ready([self._lines[each] for each in sorted(self._lines)])
        return True

    async def _pause(self) -> None:
        until = asyncio.get_running_loop().time() + RESTART_SECONDS
        while not self._is_stopping and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
