"""One client's connection: frames in, answers out, in request order.

State: bytes of an unfinished frame, answers that are owed (oldest first), bytes that the socket did not take yet.
Rules:
- A handler is driven at once, up to its first wait; the request's bytes are valid only until then. A handler that never
  waits costs no task. Handlers of one connection start in arrival order and wait side by side.
- A handler runs to its end even when its client leaves, since it may be in the middle of something; whoever only waits
  for news (`call_when_closed`) ends early by itself. Its answer is dropped then.
- Answers leave in arrival order. Acks-0 produce has none.
- Whoever does not read its answers, or asks too much at once, is not read from until it catches up.
- A frame's claimed length is never allocated: its buffer grows with the bytes that really come.
Knows nothing of Kafka's requests beyond the frame; `dispatch.py` does.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from moldau.storage import LogSlice

if TYPE_CHECKING:
    from moldau.broker.listener import Listener

# One read takes this much at most; small requests are handled inside this shared buffer and never copied.
READ_BYTES = 256 << 10
READ_BYTES_OVER_MEMORY = 4 << 10
FRAME_PREFIX_BYTES = 4
PARTIAL_BYTES_MIN = 1 << 10
PARTIAL_GROWTH = 4
# Requests of one connection that may wait for their answers at the same time.
IN_FLIGHT_REQUESTS_MAX = 256
# Answers that a client has not taken yet; beyond this it is not read from.
UNSENT_BYTES_MAX = 4 << 20

_FRAME_SIZE = struct.Struct(">i")

Part = bytes | bytearray | LogSlice


class FrameError(ValueError):
    """Bytes that are not Kafka's protocol; the connection is closed."""


class Answer:
    """A place in the line of answers; `parts` is None until the handler is done."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: Sequence[Part] | None = None


def _size(parts: Sequence[Part]) -> int:
    return sum(part.size if isinstance(part, LogSlice) else len(part) for part in parts)


class Connection:
    __slots__ = (
        "_answers",
        "_capacity",
        "_closers",
        "_filled",
        "_listener",
        "_out",
        "_out_bytes",
        "_partial",
        "_paused",
        "_position",
        "_socket",
        "_waiting_bytes",
        "_writing",
        "closed",
        "fd",
        "idle_sweeps",
        "peer",
        "session",
    )

    def __init__(self, listener: Listener, sock: socket.socket, peer: str) -> None:
        self._listener = listener
        self._socket = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.closed = False
        # Sweeps of the listener since the client was last heard; a clock per read would cost more.
        self.idle_sweeps = 0
        # What the client said about itself (software name and version), filled by ApiVersions.
        self.session: Any = None
        self._partial: bytearray | None = None
        self._capacity = 0
        self._filled = 0
        self._answers: deque[Answer] | None = None
        # Bytes of answers that are ready but wait for older ones.
        self._waiting_bytes = 0
        self._closers: dict[Callable[[], None], None] | None = None
        self._out: deque[Part] | None = None
        self._out_bytes = 0
        self._position = 0
        self._writing = False
        self._paused = False

    # -- reading -------------------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        listener = self._listener
        partial = self._partial
        if listener.is_over_memory and partial is not None and not listener.may_finish(self):
            self._pause()
            return
        try:
            if partial is None:
                # Over the memory cap small requests are still served, and little of a large one is taken.
                limit = READ_BYTES_OVER_MEMORY if listener.is_over_memory else 0
                count = self._socket.recv_into(listener.read_buffer, limit)
            else:
                if self._filled == self._capacity:
                    partial = self._grow()
                count = self._socket.recv_into(memoryview(partial)[self._filled : self._capacity])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if count == 0:
            self.close()
            return
        self.idle_sweeps = 0
        if partial is None:
            used = self._handle_frames(listener.read_view, count)
            if used < count and not self.closed:
                self._keep(listener.read_view[used:count])
        else:
            self._filled += count
            self._handle_partial()
        out = self._out
        if out:
            if len(out) == 1 and out[0].__class__ is bytes and not self._writing:
                self._send_one(out[0])
            else:
                self._flush()
        if self._paused:
            self._resume_soon()

    def _handle_partial(self) -> None:
        partial = self._partial
        assert partial is not None
        filled = self._filled
        with memoryview(partial) as view:
            used = self._handle_frames(view, filled)
            if used == 0 or self.closed:
                return
            self._partial = None
            if used < filled:
                self._keep(view[used:filled])
        self._listener.release(partial)
        self._listener.finish_frame(self)

    def _handle_frames(self, view: memoryview, count: int) -> int:
        """Handle whole frames in `view[:count]`; the number of bytes that they took."""
        position = 0
        frame_bytes_max = self._listener.frame_bytes_max
        while count - position >= FRAME_PREFIX_BYTES and not self.closed:
            (size,) = _FRAME_SIZE.unpack_from(view, position)
            if not 0 <= size <= frame_bytes_max:
                self.refuse(_size_problem(view, position, size, frame_bytes_max))
                break
            end = position + FRAME_PREFIX_BYTES + size
            if end > count:
                break
            if self._is_behind():
                self._pause()
                break
            self._handle_frame(view[position + FRAME_PREFIX_BYTES : end])
            position = end
        return position

    def _handle_frame(self, frame: memoryview) -> None:
        try:
            outcome = self._listener.dispatch(self, frame)
        except FrameError as error:
            self.refuse(str(error))
            return
        except Exception as error:
            self._listener.report_bug(self, error)
            return
        if outcome.__class__ is bytes and not self._answers:
            self._queue(outcome)
        elif outcome is None:
            return
        elif isinstance(outcome, Parked):
            outcome.is_lined_up = True
            self._line_up(outcome.answer)
        else:
            self.answer((outcome,) if isinstance(outcome, bytes) else outcome)

    def _keep(self, rest: memoryview) -> None:
        """Hold the beginning of a frame until its end comes."""
        size = len(rest)
        self._capacity = max(PARTIAL_BYTES_MIN, size * PARTIAL_GROWTH)
        if size >= FRAME_PREFIX_BYTES:
            needed = _FRAME_SIZE.unpack_from(rest)[0] + FRAME_PREFIX_BYTES
            self._capacity = max(min(self._capacity, needed), size)
        self._partial = self._listener.borrow(self._capacity)
        self._partial[:size] = rest
        self._filled = size

    def _grow(self) -> bytearray:
        old = self._partial
        assert old is not None
        capacity = self._capacity * PARTIAL_GROWTH
        if self._filled >= FRAME_PREFIX_BYTES:
            capacity = min(capacity, _FRAME_SIZE.unpack_from(old)[0] + FRAME_PREFIX_BYTES)
        new = self._listener.borrow(capacity)
        with memoryview(old) as view:
            new[: self._filled] = view[: self._filled]
        self._listener.release(old)
        self._partial = new
        self._capacity = capacity
        return new

    # -- back pressure -------------------------------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        return self._out_bytes + self._waiting_bytes > UNSENT_BYTES_MAX or (
            self._answers is not None and len(self._answers) >= IN_FLIGHT_REQUESTS_MAX
        )

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._listener.loop.remove_reader(self.fd)
            self._listener.paused.add(self)

    def resume(self) -> None:
        """Read again, first what is already here."""
        if not self._paused or self.closed or self._is_behind():
            return
        self._paused = False
        self._listener.paused.discard(self)
        self._listener.loop.add_reader(self.fd, self.on_readable)
        if self._partial is not None:
            self._handle_partial()
            if self._out and not self.closed:
                self._flush()
        if self._paused:
            self._resume_soon()

    def _resume_soon(self) -> None:
        """Paused, but the socket took everything meanwhile: go on in the next turn, so that others have theirs."""
        if not self.closed and not self._is_behind():
            self._listener.loop.call_soon(self.resume)

    # -- answering -----------------------------------------------------------------------------------------------------

    def answer(self, parts: Sequence[Part]) -> None:
        """Answer the newest request; it waits in line if older ones are not answered yet."""
        if self._answers:
            answer = Answer()
            answer.parts = parts
            self._waiting_bytes += _size(parts)
            self._answers.append(answer)
        else:
            self._send(parts)

    def _line_up(self, answer: Answer) -> None:
        if self._answers is None:
            self._answers = deque()
        self._answers.append(answer)

    def _send(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._queue(part)

    def _queue(self, part: Part) -> None:
        if self._out is None:
            self._out = deque()
        self._out.append(part)
        self._out_bytes += part.size if part.__class__ is LogSlice else len(part)  # type: ignore[arg-type]

    def on_answered(self, answer: Answer, parts: Sequence[Part]) -> None:
        """A handler that had to wait is done: send what is now at the head of the line."""
        answer.parts = parts
        answers = self._answers
        if self.closed or answers is None:
            return
        if len(answers) == 1 and not self._out and not self._paused and parts.__class__ is tuple and len(parts) == 1:
            # Nothing before it, nothing after it: the usual case.
            answers.popleft()
            self._queue(parts[0])
            if parts[0].__class__ is bytes:
                self._send_one(parts[0])
            else:
                self._flush()
            return
        self._waiting_bytes += _size(parts)
        while answers and answers[0].parts is not None:
            ready = answers.popleft().parts or ()
            self._waiting_bytes -= _size(ready)
            self._send(ready)
        if self._out and not self._writing:
            self._flush()
        if self._paused and not self.closed:
            self.resume()

    def _send_one(self, answer: bytes) -> None:
        """One small answer and nothing before it: the usual case, in one call."""
        try:
            sent = self._socket.send(answer)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        self._advance(sent, len(answer))
        if self._out:
            self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out or self._writing or self.closed:
            return
        try:
            while out:
                part = out[0]
                if isinstance(part, LogSlice):
                    sent = self._send_slice(part)
                    if sent == 0:
                        self.refuse("log file ended before its slice did")
                        return
                    self._advance(sent, part.size)
                    continue
                if len(out) > 1 and self._position == 0 and not isinstance(out[1], LogSlice):
                    part = self._join_head()
                sent = self._socket.send(memoryview(part)[self._position :] if self._position else part)
                self._advance(sent, len(part))
        except (BlockingIOError, InterruptedError):
            self._writing = True
            self._listener.loop.add_writer(self.fd, self._on_writable)
        except OSError as error:
            part = out[0]
            # A socket has other errors than this one: it is the file's.
            if error.errno == errno.EIO and isinstance(part, LogSlice) and part.on_read_error is not None:
                part.on_read_error(error)
            self.close()

    def _send_slice(self, part: LogSlice) -> int:
        descriptor = part.file.fileno()
        position, count = part.position + self._position, part.size - self._position
        if descriptor < 0:  # a simulated disk's
            return self._socket.send(part.file.read(position, count))
        return os.sendfile(self.fd, descriptor, position, count)

    def _join_head(self) -> bytes:
        """Small answers that wait together leave in one system call."""
        out = self._out
        assert out is not None
        head: list[bytes | bytearray] = []
        while out and not isinstance(out[0], LogSlice):
            head.append(out.popleft())  # type: ignore[arg-type]
        joined = b"".join(head)
        out.appendleft(joined)
        return joined

    def _advance(self, sent: int, size: int) -> None:
        self._out_bytes -= sent
        self._position += sent
        if self._position == size:
            assert self._out is not None
            self._out.popleft()
            self._position = 0

    def _on_writable(self) -> None:
        self._listener.loop.remove_writer(self.fd)
        self._writing = False
        self.idle_sweeps = 0
        self._flush()
        if self._paused and not self.closed:
            self.resume()

    @property
    def local_host(self) -> str:
        """The address by which the client reached us."""
        host: str = self._socket.getsockname()[0]
        return host.removeprefix("::ffff:")

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def is_paused_for_memory(self) -> bool:
        return self._paused and not self._is_behind()

    @property
    def waits_for_us(self) -> bool:
        """A request is being handled and nothing stands in the client's own way."""
        return bool(self._answers) and not self._out

    @property
    def is_owed_answers(self) -> bool:
        return bool(self._answers) or bool(self._out)

    def refuse(self, reason: str) -> None:
        """Close on bytes that are not the protocol, with one line in the log."""
        if not self.closed:
            self._listener.say(f"connection_refused peer={self.peer} reason={reason!r}")
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        loop = self._listener.loop
        if not self._paused:
            loop.remove_reader(self.fd)
        if self._writing:
            loop.remove_writer(self.fd)
        closers, self._closers = self._closers, None
        self._answers = None
        self._out = None
        if self._partial is not None:
            self._listener.release(self._partial)
            self._partial = None
        self._listener.forget(self)
        self._socket.close()
        for closer in closers or ():
            closer()

    def call_when_closed(self, closer: Callable[[], None]) -> None:
        """For a handler that waits for news: nobody wants them any more when the client leaves."""
        if self._closers is None:
            self._closers = {}
        self._closers[closer] = None

    def forget_closer(self, closer: Callable[[], None]) -> None:
        if self._closers is not None:
            self._closers.pop(closer, None)


class Parked:
    """A request that is answered later, and its place in the line of answers."""

    __slots__ = ("answer", "is_lined_up")

    def __init__(self) -> None:
        self.answer = Answer()
        self.is_lined_up = False


class _ParkedHandler(Parked):
    """A handler that waits: resumed whenever the future that it awaits is done."""

    __slots__ = ("_connection", "_coroutine", "_finish")

    def __init__(self, connection: Connection, coroutine: Coroutine[Any, None, Any], finish: Any) -> None:
        super().__init__()
        self._connection = connection
        self._coroutine = coroutine
        self._finish = finish

    def _wait_on(self, future: Any) -> None:
        # What asyncio's own Task does with a future that a coroutine yielded.
        future._asyncio_future_blocking = False
        future.add_done_callback(self._resume)

    def _resume(self, _future: Any) -> None:
        connection = self._connection
        try:
            try:
                future = self._coroutine.send(None)
            except StopIteration as stop:
                parts = self._finish(stop.value) or ()
                connection.on_answered(self.answer, parts)
                return
            self._wait_on(future)
        except FrameError as error:
            connection.refuse(str(error))
        except Exception as error:
            connection._listener.report_bug(connection, error)


def drive(connection: Connection, coroutine: Coroutine[Any, None, Any], finish: Any) -> Sequence[Part] | Parked | None:
    """Run a handler up to its first wait: the parts of its answer, or the parked rest."""
    try:
        future = coroutine.send(None)
    except StopIteration as stop:
        return finish(stop.value)  # type: ignore[no-any-return]
    parked = _ParkedHandler(connection, coroutine, finish)
    parked._wait_on(future)
    return parked


def _size_problem(view: memoryview, position: int, size: int, frame_bytes_max: int) -> str:
    first = bytes(view[position : position + 4])
    if first in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI"):
        return "this is an HTTP request; Kafka's protocol is spoken here"
    if first[:2] == b"\x16\x03":
        return "this is a TLS handshake; the listener is plaintext"
    if size < 0:
        return f"frame claims {size} bytes"
    return f"frame claims {size} bytes, socket.request.max.bytes is {frame_bytes_max}"
