"""The page of the demo: static files, one address with all that its charts show, and the tables themselves.

GET /               the page
GET /api/state      what it shows, asked for every other second
GET /tables...      as `moldau table serve` answers
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from moldau.client import ClusterClient, IsolationLevel, PartitionReader, Start
from moldau.demo.page_state import PageState
from moldau.demo.scale import Scale
from moldau.demo.topics import DEAD_LETTERS, TABLES
from moldau.kernel import TopicPartition
from moldau.spark.pipelines import dead_letter_of
from moldau.tables.service import Service
from moldau.tables.view import TableView

_PAGE = Path(__file__).with_name("page")
_LETTERS_SHOWN = 5
# Everything is ours and on this machine: nothing else is to be loaded.
_HEADERS = {"Content-Security-Policy": "default-src 'self'; img-src 'self' data:", "Cache-Control": "no-cache"}


class Dashboard:
    """The page over one view."""

    def __init__(self, view: TableView, scale: Scale, folders: Sequence[Path]) -> None:
        self._tables = Service(view, TABLES)
        self._reader = view.reader()
        self._state = PageState(self._reader, scale, folders)
        self._reading = ThreadPoolExecutor(1, "page-state")
        self._letters: dict[str, Any] = {"count": 0, "newest": []}
        self.first_data_at: float | None = None  # by time.monotonic()
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/api/state", self._answer),
                Mount("/static", StaticFiles(directory=_PAGE)),
                *self._tables.app.routes,
            ],
            exception_handlers=self._tables.app.exception_handlers,
        )

    @contextlib.asynccontextmanager
    async def following(self, bootstrap: str) -> AsyncIterator[None]:
        """Keep all that is shown current meanwhile."""
        async with self._tables.following(bootstrap), ClusterClient(bootstrap, client_id="moldau-page") as client:
            counting = asyncio.create_task(self._count_letters(client))
            try:
                yield
            finally:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)

    def close(self) -> None:
        self._reading.shutdown()
        self._reader.close()
        self._tables.close()

    async def read(self) -> dict[str, Any]:
        """What the page shows now."""
        now_ms = time.time_ns() // 1_000_000
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, self._state.read, now_ms, self._letters)

    async def _page(self, request: Request) -> Response:
        return FileResponse(_PAGE / "index.html", headers=_HEADERS)

    async def _answer(self, request: Request) -> Response:
        return JSONResponse(await self.read(), headers=_HEADERS)

    async def _count_letters(self, client: ClusterClient) -> None:
        start: dict[TopicPartition, Start] = {TopicPartition(DEAD_LETTERS, 0): "earliest"}
        async with PartitionReader(client, start, isolation_level=IsolationLevel.READ_COMMITTED) as reader:
            async for records in reader:
                newest = [
                    {"reason": letter.reason, "offset": letter.offset, "partition": letter.partition}
                    for record in records[-_LETTERS_SHOWN:]
                    if (letter := dead_letter_of(record.headers)) is not None
                ]
                shown = [*newest[::-1], *self._letters["newest"]][:_LETTERS_SHOWN]
                self._letters = {"count": self._letters["count"] + len(records), "newest": shown}
