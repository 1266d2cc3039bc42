"""`buffer.memory`: how many bytes of batches a producer may hold, and who waits for room, in turn."""

from __future__ import annotations

import asyncio
from collections import deque


class BufferMemory:
    __slots__ = ("_waiters", "bytes_max", "free")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.free = bytes_max
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, count: int, *, has_waited: bool) -> bool:
        """Take room, if there is. Those who wait already come first, or large records would wait for ever."""
        if self.free < count or (self._waiters and not has_waited):
            return False
        self.free -= count
        return True

    def give(self, count: int) -> None:
        self.free += count
        free = self.free
        for wanted, waiter in self._waiters:
            if wanted > free:
                break
            free -= wanted
            _wake(waiter)

    async def wait(self, count: int, deadline: float) -> None:
        """Until there may be room for `count` bytes; TimeoutError at the deadline, in the loop's time."""
        waiter = asyncio.get_running_loop().create_future()
        entry = (count, waiter)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
            self.give(0)

    def wake_all(self) -> None:
        """Let everyone look again: there will be no more room."""
        while self._waiters:
            _wake(self._waiters.popleft()[1])


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
