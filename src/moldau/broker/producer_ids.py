"""Producer ids for idempotent producers, taken from blocks that the metadata log hands out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from moldau.broker.controller import Controller
from moldau.cluster import decide_allocate_producer_ids


class ProducerIds:
    def __init__(self, controller: Controller, node_id: int) -> None:
        self._controller = controller
        self._node_id = node_id
        self._block: Iterator[int] = iter(())
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody had before; waits for the metadata log once in a thousand times."""
        producer_id = next(self._block, None)
        if producer_id is not None:
            return producer_id
        async with self._refill:
            producer_id = next(self._block, None)
            while producer_id is None:
                block = await self._controller.change(lambda image: decide_allocate_producer_ids(image, self._node_id))
                self._block = iter(block)
                producer_id = next(self._block, None)
            return producer_id
