"""One connection to one broker: requests go out as they come, answers come back in the same order.

Frames are read straight into a buffer of their own when they are large, so that `records` views of an answer stay valid
for as long as someone keeps them. Knows versions and correlation ids; knows neither topics nor leaders (`cluster`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from moldau.client.errors import ConnectionFailed, RequestTimedOut, address_text, explain_connect_error
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.headers import decode_response_header, encode_request_header
from moldau.protocol.message import Message
from moldau.protocol.messages.registry import API_MESSAGES, ApiKey, response_class
from moldau.protocol.wire import ProtocolError

SOFTWARE_NAME = "moldau"
SOFTWARE_VERSION = "0.1.0"
FRAME_BYTES_MAX = 128 << 20
CONNECT_TIMEOUT_MS = 10_000
REQUEST_TIMEOUT_MS = 30_000
# Frames that fit here are copied out of it; larger ones get a buffer of their own as soon as their size is known.
_SCRATCH_BYTES = 64 << 10
_CORRELATION_ID_MAX = 2**31 - 1
# Timers may ring that much early, as clocks are only so fine.
_EARLY_SECONDS = 0.001
_NO_VERSIONS = range(0)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PREFIX = bytes(4)

_NOT_KAFKA = "check that this is a plaintext Kafka listener and not TLS, HTTP or something else"


class _Pending(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    future: asyncio.Future[Any]
    deadline: float
    timeout_ms: int


class Connection(asyncio.BufferedProtocol):
    """A negotiated connection; make one with `await Connection.connect(host, port)`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = SOFTWARE_NAME,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.frame_bytes_max = frame_bytes_max
        self.closed = False
        self.can_write = True
        # Called when a full send buffer has drained; for callers that send without waiting for answers.
        self.on_can_write: Callable[[], None] | None = None
        self.finalized_features: dict[str, int] = {}
        self.supported_features: dict[str, tuple[int, int]] = {}
        self.finalized_features_epoch = -1
        self._ranges: dict[int, range] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._scratch_filled = 0
        self._frame: bytearray | None = None
        self._frame_view = memoryview(b"")
        self._frame_filled = 0
        self._drained: asyncio.Future[None] | None = None
        self._failure: ConnectionFailed | None = None

    # -- opening and closing -------------------------------------------------------------------------------------------

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = SOFTWARE_NAME,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> Connection:
        """Connect and ask which versions the broker speaks."""
        connection = cls(
            host, port, client_id=client_id, request_timeout_ms=request_timeout_ms, frame_bytes_max=frame_bytes_max
        )
        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await connection._loop.create_connection(lambda: connection, host, port, happy_eyeballs_delay=0.25)
        except OSError as error:  # TimeoutError, gaierror and SSLError are OSErrors
            raise explain_connect_error(host, port, error) from error
        try:
            await connection._negotiate()
        except BaseException:
            connection.close()
            raise
        return connection

    async def _negotiate(self) -> None:
        request_type = _api_versions_request()
        version = request_type.VERSION_MAX
        while True:
            request = request_type()
            if version >= 3:
                request.client_software_name, request.client_software_version = SOFTWARE_NAME, SOFTWARE_VERSION
            response = await self.request(request, version=version)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            # KIP-511: the broker is older than us; its answer, in version 0, may say how far it goes.
            offered = [api.max_version for api in response.api_keys if api.api_key == ApiKey.API_VERSIONS]
            highest = max(offered, default=0)
            if version == 0 or highest >= version:
                break
            version = max(highest, 0)
        if response.error_code:
            code = ErrorCode(response.error_code)
            raise KafkaError(code, f"{self}: the broker refused ApiVersions: {code.name}")
        self._ranges = {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}
        self.finalized_features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.supported_features = {
            feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features
        }
        self.finalized_features_epoch = response.finalized_features_epoch

    def close(self) -> None:
        self._fail(self._failed("the connection was closed by us", "open a new one"))

    def __str__(self) -> str:
        return address_text(self.host, self.port)

    @property
    def in_flight_count(self) -> int:
        return len(self._pending)

    # -- requests ------------------------------------------------------------------------------------------------------

    def supports(self, api_key: int) -> range:
        """The versions that the broker and we have in common, unstable ones left out; empty when there are none."""
        theirs = self._ranges.get(api_key, _NO_VERSIONS)
        api = API_MESSAGES.get(api_key)
        if api is None or not theirs:
            return _NO_VERSIONS
        stable_max = api.version_max - api.latest_version_unstable
        return range(max(theirs.start, api.version_min), min(theirs.stop, stable_max + 1))

    def version_for(self, api_key: int, *, version_max: int | None = None) -> int:
        """The highest version in common, up to `version_max`."""
        versions = self.supports(api_key)
        if version_max is not None:
            versions = range(versions.start, min(versions.stop, version_max + 1))
        if not versions:
            api = API_MESSAGES[api_key]
            theirs = self._ranges.get(api_key, _NO_VERSIONS)
            offer = f"serves versions {theirs.start} to {theirs.stop - 1}" if theirs else "does not serve it"
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self}: {api.name} is not possible: the broker {offer}, this client speaks "
                f"{api.version_min} to {api.version_max if version_max is None else version_max}",
            )
        return versions[-1]

    async def request(
        self,
        message: Message,
        *,
        version: int | None = None,
        version_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send a request and wait for its answer. Several may be under way; they are sent in the order of calls."""
        return await self.submit(message, version=version, version_max=version_max, timeout_ms=timeout_ms)

    def submit(
        self,
        message: Message,
        *,
        version: int | None = None,
        version_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[Any]:
        """Send a request now and return its answer's future."""
        api_key = message.API_KEY
        if version is None:
            version = self.version_for(api_key, version_max=version_max)
        correlation_id = self._write(message, version)
        if timeout_ms is None:
            timeout_ms = self.request_timeout_ms
        deadline = self._loop.time() + timeout_ms / 1000
        future: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append(_Pending(correlation_id, api_key, version, future, deadline, timeout_ms))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadlines)
        elif deadline < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._check_deadlines)
        return future

    def send_unanswered(self, message: Message, *, version: int | None = None, version_max: int | None = None) -> None:
        """Send a request that the protocol never answers: Produce with acks=0."""
        if version is None:
            version = self.version_for(message.API_KEY, version_max=version_max)
        self._write(message, version)

    async def drain(self) -> None:
        """Wait while the send buffer is over its limit."""
        if self.can_write or self.closed:
            return
        if self._drained is None:
            self._drained = self._loop.create_future()
        await asyncio.shield(self._drained)

    def _write(self, message: Message, version: int) -> int:
        if self._transport is None or self.closed:
            failure = self._failure
            if failure is None:
                raise self._failed("the connection is closed", "open a new one")
            raise ConnectionFailed(self.host, self.port, failure.cause, failure.check)
        correlation_id = self._next_correlation_id
        self._next_correlation_id = 0 if correlation_id == _CORRELATION_ID_MAX else correlation_id + 1
        out = bytearray(_PREFIX)
        encode_request_header(out, message.API_KEY, version, correlation_id, self.client_id)
        message.encode_into(out, version)
        _INT32.pack_into(out, 0, len(out) - 4)
        self._transport.write(out)
        return correlation_id

    def _check_deadlines(self) -> None:
        self._timer = None
        now = self._loop.time() + _EARLY_SECONDS
        late = [pending for pending in self._pending if pending.deadline <= now and not pending.future.done()]
        if late:
            # Answers come in order: behind one that does not come, none does.
            for pending in late:
                name = API_MESSAGES[pending.api_key].name
                pending.future.set_exception(RequestTimedOut(self.host, self.port, name, pending.timeout_ms))
            self._fail(self._failed("an earlier request on the connection timed out", "check the broker's load"))
            return
        # A request that its caller gave up on holds no one up.
        awaited = [pending.deadline for pending in self._pending if not pending.future.done()]
        if awaited:
            self._timer = self._loop.call_at(min(awaited), self._check_deadlines)

    # -- the protocol's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            cause = "the broker closed the connection"
        else:
            cause = f"the connection broke ({exc})"
        check = "check the broker's log" if self._ranges else _NOT_KAFKA
        self._fail(self._failed(cause, check))

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        self.can_write = True
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self.on_can_write is not None:
            self.on_can_write()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame_view[self._frame_filled :]
        return self._scratch[self._scratch_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame, self._frame_view = self._frame, None, memoryview(b"")
                self._on_frame(frame)
            return
        end = self._scratch_filled + nbytes
        scratch = self._scratch
        position = 0
        while end - position >= 4:
            (size,) = _INT32.unpack_from(scratch, position)
            if not 4 <= size <= self.frame_bytes_max:
                self._fail(self._failed(f"an answer claims {size} bytes", _NOT_KAFKA))
                return
            start = position + 4
            if start + size <= end:
                position = start + size
                self._on_frame(bytes(scratch[start:position]))
                if self.closed:
                    return
            else:
                frame = bytearray(size)
                frame[: end - start] = scratch[start:end]
                self._frame, self._frame_view, self._frame_filled = frame, memoryview(frame), end - start
                position = end
        rest = end - position
        if rest and position:
            scratch[:rest] = bytes(scratch[position:end])
        self._scratch_filled = rest

    def eof_received(self) -> bool:
        return False

    def _on_frame(self, frame: bytes | bytearray) -> None:
        if not self._pending:
            self._fail(self._failed("an answer came that nobody asked for", _NOT_KAFKA))
            return
        pending = self._pending.popleft()
        api_key, version = pending.api_key, pending.version
        try:
            correlation_id, position = decode_response_header(frame, api_key, version)
            if correlation_id != pending.correlation_id:
                raise ProtocolError(f"answer {correlation_id} came where {pending.correlation_id} was due")
            if api_key == ApiKey.API_VERSIONS and _INT16.unpack_from(frame, position)[0] == 35:
                version = 0  # KIP-511: whatever was asked, this refusal has the body of version 0
            response, _ = response_class(api_key).decode_from(frame, position, version)
        except (ProtocolError, struct.error) as error:
            self._pending.appendleft(pending)
            name = API_MESSAGES[api_key].name
            self._fail(self._failed(f"the answer to {name} v{version} does not parse ({error})", _NOT_KAFKA))
            return
        if not pending.future.done():
            pending.future.set_result(response)

    def _failed(self, cause: str, check: str) -> ConnectionFailed:
        return ConnectionFailed(self.host, self.port, cause, check, sent=True)

    def _fail(self, failure: ConnectionFailed) -> None:
        if self.closed:
            return
        self.closed = True
        self._failure = failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, deque()
        for one in pending:
            if not one.future.done():
                one.future.set_exception(failure)
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self.on_can_write is not None:
            self.on_can_write()


def _api_versions_request() -> type[Any]:
    from moldau.protocol.messages.api_versions import ApiVersionsRequest

    return ApiVersionsRequest
