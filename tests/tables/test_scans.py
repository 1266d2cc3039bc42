"""Many scans at once: some run, some wait, and the rest is told to come again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from moldau.tables import TableView
from moldau.tables.service import SCANS_AT_ONCE_MAX, SCANS_WAITING_MAX, Service


async def ask(service: Service, path: str) -> int:
    """The status of the answer, without a socket."""
    told: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            told.append(message["status"])

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }
    await service.app(scope, receive, send)
    return told[0]


def test_no_more_scans_wait_than_there_is_room_for(tmp_path: Path) -> None:
    view = TableView(tmp_path / "view.sqlite")
    view.begin("t", "id", 0)
    view.note_current("t", 0)
    service = Service(view, ["t"])
    go_on = threading.Event()
    for _ in range(SCANS_AT_ONCE_MAX):
        service._scanning.submit(go_on.wait)

    async def work() -> None:
        room = SCANS_AT_ONCE_MAX + SCANS_WAITING_MAX
        waiting = [asyncio.create_task(ask(service, "/tables/t/rows")) for _ in range(room)]
        await asyncio.sleep(0)  # each has begun
        assert await ask(service, "/tables/t/rows") == 503
        go_on.set()
        assert await asyncio.gather(*waiting) == [200] * room
        assert await ask(service, "/tables/t/rows") == 200

    try:
        asyncio.run(work())
    finally:
        go_on.set()
        service.close()
        view.close()
