"""Producer ids, taken from blocks that the metadata log hands out, so that none is ever given twice."""

from __future__ import annotations

import asyncio
from collections import deque

from moldau.broker.controller import Controller
from moldau.cluster import decide_allocate_producer_ids
from moldau.kernel import KafkaError

# When so few are left the next block is asked for, so that hardly anybody has to wait for it.
PREFETCH_BELOW = 100


class ProducerIds:
    def __init__(self, controller: Controller, node_id: int, loop: asyncio.AbstractEventLoop) -> None:
        self._controller = controller
        self._node_id = node_id
        self._loop = loop
        self._ids: deque[int] = deque()
        self._refill: asyncio.Task[None] | None = None

    def take(self) -> int | None:
        """An id that nobody had before; None when there is none at hand, but soon."""
        if len(self._ids) <= PREFETCH_BELOW:
            self._refill_soon()
        return self._ids.popleft() if self._ids else None

    async def ready(self) -> None:
        """Until `take` gives one; KafkaError when the metadata log cannot."""
        while not self._ids:
            await asyncio.shield(self._refill_soon())

    async def next(self) -> int:
        while (producer_id := self.take()) is None:
            await self.ready()
        return producer_id

    def _refill_soon(self) -> asyncio.Task[None]:
        if self._refill is None or self._refill.done():
            self._refill = self._loop.create_task(self._fetch_block())
            self._refill.add_done_callback(_seen)
        return self._refill

    async def _fetch_block(self) -> None:
        block = await self._controller.change(lambda image: decide_allocate_producer_ids(image, self._node_id))
        self._ids += block


def _seen(refill: asyncio.Task[None]) -> None:
    """A refill that nobody waits for may fail in silence: the next one who needs an id tries again and is told."""
    if not refill.cancelled() and isinstance(refill.exception(), KafkaError):
        return
