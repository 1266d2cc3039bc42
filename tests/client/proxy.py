"""A TCP proxy that understands frames: it can cut connections, swallow answers and answer in a broker's place.

It rewrites the addresses in answers (Metadata, and the leader hints of KIP-951) to its own, so that clients stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from moldau.protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_response_header,
)
from moldau.protocol.messages.registry import ApiKey, request_class, response_class


class Cut(Exception):
    """Raised by a hook: close the connection here and now."""


class Swallow(Exception):
    """Raised by a hook: let the frame disappear."""


# (api key, message) -> None to pass it on, or for requests a response message to answer with.
RequestHook = Callable[[int, Any], Any]
ResponseHook = Callable[[int, Any], None]
# Api key, version, correlation id, and the frame to answer with where we answer in the broker's place.
Asked = tuple[int, int, int, bytes | None]


class Proxy:
    def __init__(
        self, target: str, *, on_request: RequestHook | None = None, on_response: ResponseHook | None = None
    ) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self.on_request = on_request
        self.on_response = on_response
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.bootstrap = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuse and cut everything from now on."""
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, up_writer}
        asked: deque[Asked] = deque()
        pumps = [
            asyncio.create_task(self._requests(reader, up_writer, writer, asked)),
            asyncio.create_task(self._responses(up_reader, writer, asked)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, up_writer):
                end.transport.abort()
                self._writers.discard(end)
            self._tasks.discard(task)

    async def _requests(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, down: asyncio.StreamWriter, asked: deque[Asked]
    ) -> None:
        with contextlib.suppress(Cut, asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await _read_frame(reader)
                api_key, version, correlation_id, _, position = decode_request_header(frame)
                answer = None
                if self.on_request is not None:
                    message, _ = request_class(api_key).decode_from(frame, position, version)
                    try:
                        answer = self.on_request(api_key, message)
                    except Swallow:
                        continue
                if answer is not None:
                    asked.append(
                        (api_key, version, correlation_id, _frame_of(api_key, version, correlation_id, answer))
                    )
                    _answer_whose_turn_it_is(down, asked)
                    continue
                asked.append((api_key, version, correlation_id, None))
                up.write(struct.pack(">i", len(frame)) + frame)

    async def _responses(self, up: asyncio.StreamReader, down: asyncio.StreamWriter, asked: deque[Asked]) -> None:
        with contextlib.suppress(Cut, asyncio.IncompleteReadError, ConnectionError):
            while True:
                _answer_whose_turn_it_is(down, asked)
                frame = await _read_frame(up)
                api_key, version, correlation_id, _ = asked.popleft()
                named = api_key in (ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.FETCH)
                if named or (self.on_response is not None and api_key != ApiKey.API_VERSIONS):
                    _, position = decode_response_header(frame, api_key, version)
                    message, _ = response_class(api_key).decode_from(frame, position, version)
                    for node in (*getattr(message, "brokers", ()), *getattr(message, "node_endpoints", ())):
                        node.host, node.port = "127.0.0.1", self.port
                    if self.on_response is not None:
                        try:
                            self.on_response(api_key, message)
                        except Swallow:
                            continue
                    down.write(_frame_of(api_key, version, correlation_id, message))
                else:
                    down.write(struct.pack(">i", len(frame)) + frame)


def _answer_whose_turn_it_is(down: asyncio.StreamWriter, asked: deque[Asked]) -> None:
    """Our own answers wait for the broker's to what was asked before."""
    while asked and (frame := asked[0][3]) is not None:
        asked.popleft()
        down.write(frame)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _frame_of(api_key: int, version: int, correlation_id: int, message: Any) -> bytes:
    out = bytearray(4)
    encode_response_header(out, api_key, version, correlation_id)
    message.encode_into(out, version)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return bytes(out)
