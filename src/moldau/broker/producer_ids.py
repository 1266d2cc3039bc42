"""Producer ids, taken from blocks that the metadata log hands out, so that none is ever given twice."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from moldau.kernel import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.broker.node import Node

# When so few are left the next block is asked for, so that hardly anybody has to wait for it.
PREFETCH_BELOW = 100


class ProducerIds:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = node.loop
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
        from moldau.protocol.messages.allocate_producer_ids import (
            AllocateProducerIdsRequest,
            AllocateProducerIdsResponse,
        )

        node = self._node
        request = AllocateProducerIdsRequest(node.node_id, node.membership.epoch)
        answer: AllocateProducerIdsResponse = await node.channel.ask(request)
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), "The controller gave no producer ids.")
        self._ids += range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def _seen(refill: asyncio.Task[None]) -> None:
    """A refill that nobody waits for may fail in silence: the next one who needs an id tries again and is told."""
    if not refill.cancelled() and isinstance(refill.exception(), KafkaError):
        return
