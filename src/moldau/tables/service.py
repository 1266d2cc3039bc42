"""A view's HTTP side: questions in, JSON out, with the offsets that each answer reflects.

    GET /tables                                     what is served, and how far
    GET /tables/orders_by_user/rows/42              one row
    GET /tables/orders_by_user/rows?where=&prefix=&after=&limit=
    GET /healthz

A table that has never been read to its end answers 503, for a row that is missing there is not known to be missing.
Knows nothing of topics; `Service.run` keeps followers and the server going until it is told to stop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moldau.client import ClusterClient
from moldau.tables.conditions import ConditionError, parse_condition
from moldau.tables.follower import Follower
from moldau.tables.view import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Row, ScanTooLong, TableView, ViewReader

SCANS_AT_ONCE_MAX = 4
_BACKLOG = 128
_QUESTIONS = ("where", "prefix", "after", "limit")


class Service:
    """The tables of one view."""

    def __init__(self, view: TableView, topics: Sequence[str]) -> None:
        self._view = view
        self._topics = tuple(topics)
        self._reader = view.reader()
        self._scanning = ThreadPoolExecutor(SCANS_AT_ONCE_MAX, "table-scan")
        self._scanners: list[ViewReader] = []
        self._followers: dict[str, Follower] = {}
        self.app = Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/tables", self._tables),
                Route("/tables/{topic}/rows", self._rows),
                Route("/tables/{topic}/rows/{key:path}", self._row),
            ],
            exception_handlers={HTTPException: _refusal, ScanTooLong: _too_long},  # type: ignore[dict-item]
        )

    async def run(self, bootstrap: str, host: str, port: int, on_ready: Callable[[str, int], None]) -> None:
        """Serve until SIGINT or SIGTERM."""
        server = HttpServer(self.app)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        # Bound here, so that a port that is taken is an error like any other.
        listening = listen(host, port)
        async with self.following(bootstrap):
            on_ready(host, listening.getsockname()[1])
            await server.serve(sockets=[listening])

    @contextlib.asynccontextmanager
    async def following(self, bootstrap: str) -> AsyncIterator[None]:
        """Keep the view current meanwhile."""
        with ThreadPoolExecutor(1, "table-write") as writing:
            async with ClusterClient(bootstrap, client_id="moldau-table") as client:
                self._followers = {topic: Follower(client, self._view, topic, writing) for topic in self._topics}
                tasks = [asyncio.create_task(follower.run()) for follower in self._followers.values()]
                try:
                    yield
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        self._scanning.shutdown()
        for reader in (self._reader, *self._scanners):
            reader.close()

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _tables(self, request: Request) -> Response:
        return JSONResponse([self._described(topic) for topic in self._topics])

    def _described(self, topic: str) -> dict[str, Any]:
        state = self._reader.state(topic)
        follower = self._followers.get(topic)
        return {
            "table": topic,
            "is_complete": state is not None and state.is_complete,
            "reflects": _reflects(state.reflects if state is not None else {}),
            "records_read": follower.records_read if follower is not None else 0,
            "error": follower.last_error if follower is not None else None,
        }

    async def _row(self, request: Request) -> Response:
        topic = self._complete(request.path_params["topic"])
        key = request.path_params["key"]
        answer = self._reader.get(topic, key.encode(errors="surrogateescape"))
        if answer.row is None:
            told = {"error": f"table {topic} has no row {key!r}", "reflects": _reflects(answer.reflects)}
            return JSONResponse(told, 404)
        reflects = _json(_reflects(answer.reflects))
        text = f'{{"table":{_json(topic)},{_row_text(answer.row)},"reflects":{reflects}}}'
        return Response(text, media_type="application/json")

    async def _rows(self, request: Request) -> Response:
        topic = self._complete(request.path_params["topic"])
        asked = request.query_params
        for name in asked:
            if name not in _QUESTIONS:
                raise HTTPException(400, f"there is no parameter {name}; there is {', '.join(_QUESTIONS)}")
        try:
            condition = parse_condition(asked["where"]) if asked.get("where") else None
        except ConditionError as error:
            raise HTTPException(400, f"where: {error}") from error
        after, prefix, limit = asked.get("after", ""), asked.get("prefix", ""), _limit(asked.get("limit"))

        def scan() -> str:
            reader = self._borrowed()
            try:
                page = reader.scan(topic, condition, after=after.encode(), prefix=prefix.encode(), limit=limit)
            finally:
                self._scanners.append(reader)
            rows = ",".join(f"{{{_row_text(row)}}}" for row in page.rows)
            behind = None if page.after is None else page.after.decode(errors="replace")
            rest = f'"after":{_json(behind)},"reflects":{_json(_reflects(page.reflects))}'
            return f'{{"table":{_json(topic)},"rows":[{rows}],{rest}}}'

        text = await asyncio.get_running_loop().run_in_executor(self._scanning, scan)
        return Response(text, media_type="application/json")

    def _complete(self, topic: str) -> str:
        if topic not in self._topics:
            raise HTTPException(404, f"table {topic!r} is not served here; there is {', '.join(self._topics)}")
        state = self._reader.state(topic)
        if state is None or not state.is_complete:
            follower = self._followers.get(topic)
            why = f": {follower.last_error}" if follower is not None and follower.last_error else ""
            raise HTTPException(503, f"table {topic} is still being read for the first time{why}")
        return topic

    def _borrowed(self) -> ViewReader:
        try:
            return self._scanners.pop()
        except IndexError:
            return self._view.reader()


class HttpServer(uvicorn.Server):
    """Signals are the affair of who runs it, for there is more to be ended."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """uvicorn's own binding ends the process when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio leaves Nagle's algorithm on, and each answer waits 40 ms for the client's kernel.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)  # whoever is told the address may connect at once
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; give another {option}") from error
    return listening


def _row_text(row: Row) -> str:
    """A row's fields without the braces; a value that is JSON is given as it is."""
    key = _json(row.key.decode(errors="replace"))
    return (
        f'"key":{key},"value":{_value_text(row.value)},"partition":{row.partition},"offset":{row.offset},'
        f'"timestamp":{row.timestamp}'
    )


def _value_text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return _json({"base64": base64.b64encode(value).decode()})
    try:
        json.loads(value, parse_constant=_no_json)
        return value
    except ValueError:
        return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _reflects(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): position for partition, position in sorted(positions.items())}


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE_ROWS_DEFAULT
    if not text.isdecimal() or not 0 < int(text) <= PAGE_ROWS_MAX:
        raise HTTPException(400, f"limit={text}: give a number from 1 to {PAGE_ROWS_MAX}")
    return int(text)


async def _refusal(request: Request, error: HTTPException) -> Response:
    headers = {"Retry-After": "1"} if error.status_code == 503 else None
    return JSONResponse({"error": error.detail}, error.status_code, headers)


async def _too_long(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 503)


def serve(
    bootstrap: str, topics: Sequence[str], view: TableView, host: str, port: int, on_ready: Callable[[str, int], None]
) -> None:
    """Keep the tables current and answer, until SIGINT or SIGTERM."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    service = Service(view, topics)
    try:
        asyncio.run(service.run(bootstrap, host, port, on_ready))
    finally:
        service.close()
