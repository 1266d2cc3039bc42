"""A view's HTTP side: questions in, JSON out, with the offsets that each answer reflects.

    GET /tables                                     what is served, and how far
    GET /tables/orders_by_user/rows/42              one row
    GET /tables/orders_by_user/rows?where=&prefix=&after=&limit=    after_base64= for a key that is no text
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
from urllib.parse import unquote_to_bytes

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
SCANS_WAITING_MAX = 32
_BACKLOG = 128
_QUESTIONS = ("where", "prefix", "after", "after_base64", "limit")


class Service:
    """The tables of one view."""

    def __init__(self, view: TableView, topics: Sequence[str]) -> None:
        self._view = view
        self._topics = tuple(topics)
        self._reader = view.reader()
        self._scanning = ThreadPoolExecutor(SCANS_AT_ONCE_MAX, "table-scan")
        self._scanners: list[ViewReader] = []
        self._scans = 0  # that run or wait
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
                # One that ends by an error of ours takes all with it: a view that stands still must not answer.
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(follower.run()) for follower in self._followers.values()]
                    try:
                        yield
                    finally:
                        for task in tasks:
                            task.cancel()

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
        key = _key_in(request)
        answer = self._reader.get(topic, key)
        if answer.row is None:
            told = {
                "error": f"table {topic} has no row {request.path_params['key']!r}",
                "reflects": _reflects(answer.reflects),
            }
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
        after, prefix, limit = _after(asked), asked.get("prefix", "").encode(), _limit(asked.get("limit"))

        def scan() -> str:
            reader = self._borrowed()
            try:
                page = reader.scan(topic, condition, after=after, prefix=prefix, limit=limit)
            finally:
                self._scanners.append(reader)
            rows = ",".join(f"{{{_row_text(row)}}}" for row in page.rows)
            behind = '"after":null' if page.after is None else _key_text("after", page.after)
            return f'{{"table":{_json(topic)},"rows":[{rows}],{behind},"reflects":{_json(_reflects(page.reflects))}}}'

        if self._scans == SCANS_AT_ONCE_MAX + SCANS_WAITING_MAX:
            raise HTTPException(503, f"{self._scans} scans are asked for at once: ask again later")
        self._scans += 1
        try:
            text = await asyncio.get_running_loop().run_in_executor(self._scanning, scan)
        finally:
            self._scans -= 1
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
    return (
        f'{_key_text("key", row.key)},"value":{_value_text(row.value)},"partition":{row.partition},'
        f'"offset":{row.offset},"timestamp":{row.timestamp}'
    )


def _key_text(name: str, key: bytes) -> str:
    """A key under that name; one that is no text under another, in base64, as `moldau consume` has it."""
    try:
        return f'"{name}":{_json(key.decode())}'
    except UnicodeDecodeError:
        return f'"{name}_base64":{_json(base64.b64encode(key).decode())}'


def _key_in(request: Request) -> bytes:
    """The key in the path, byte by byte: the server's text of it has lost what is not UTF-8."""
    rest: bytes = request.scope["raw_path"].partition(b"?")[0].split(b"/rows/", 1)[1]
    return unquote_to_bytes(rest)


def _after(asked: Mapping[str, str]) -> bytes:
    encoded = asked.get("after_base64")
    if encoded is None:
        return asked.get("after", "").encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise HTTPException(400, f"after_base64={encoded}: this is not base64") from error


def _value_text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return _json({"base64": base64.b64encode(value).decode()})
    try:
        json.loads(value, parse_constant=_no_json)
        return value
    except (ValueError, RecursionError):  # no JSON, or deeper than anybody reads it
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
    if (
        not (text.isascii() and text.isdecimal() and len(text) <= len(str(PAGE_ROWS_MAX)))
        or not 0 < int(text) <= PAGE_ROWS_MAX
    ):
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
