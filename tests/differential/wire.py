"""One raw connection to a broker, whoever wrote it: frames out, frames back, with our own generated messages."""

from __future__ import annotations

import socket
import struct

from moldau.protocol.headers import decode_response_header, encode_request_header
from moldau.protocol.message import Message
from moldau.protocol.messages.registry import response_class

ANSWER_SECONDS_MAX = 10.0
API_VERSIONS = 18

# What can come back instead of a message.
CLOSED = "the connection was closed"
SILENCE = "no answer"


class Wire:
    """Asks one request at a time; connects when first used and again after it was hung up on."""

    def __init__(self, bootstrap: str, client_id: str | None = "differential") -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Message, version: int) -> Message | str:
        """The answer, or CLOSED."""
        answer = self.exchange(self.frame(request, version))
        return answer if isinstance(answer, str) else self.decode(request.API_KEY, answer, version)

    def tell(self, request: Message, version: int) -> str:
        """Send what must not be answered; SILENCE when a later request is answered first, else CLOSED."""
        self._correlation_id += 1
        out = bytearray(4)
        encode_request_header(out, API_VERSIONS, 0, -7, self._client_id)
        struct.pack_into(">i", out, 0, len(out) - 4)
        answer = self.exchange(self.frame(request, version) + bytes(out))
        if isinstance(answer, str):
            return answer
        assert answer[:4] == struct.pack(">i", -7), "what must not be answered was answered"
        return SILENCE

    def exchange(self, data: bytes) -> bytes | str:
        """Send bytes as they are; the next frame without its size, or CLOSED."""
        try:
            self.send(data)
            return self.receive()
        except (ConnectionError, EOFError):
            self.close()
            return CLOSED

    def send(self, data: bytes) -> None:
        self._connect().sendall(data)

    def receive(self) -> bytes:
        """The next frame without its size; EOFError when the broker hung up."""
        connection = self._connect()
        (size,) = struct.unpack(">i", self._read(connection, 4))
        return self._read(connection, size)

    def frame(self, request: Message, version: int, correlation_id: int | None = None) -> bytes:
        """A request as it goes over the wire, its size included."""
        if correlation_id is None:
            self._correlation_id += 1
            correlation_id = self._correlation_id
        out = bytearray(4)
        encode_request_header(out, request.API_KEY, version, correlation_id, self._client_id)
        request.encode_into(out, version)
        struct.pack_into(">i", out, 0, len(out) - 4)
        return bytes(out)

    def decode(self, key: int, frame: bytes, version: int) -> Message:
        _, position = decode_response_header(frame, key, version)
        message, end = response_class(key).decode_from(frame, position, version)
        assert end == len(frame), f"{len(frame) - end} bytes follow the answer"
        return message

    def _connect(self) -> socket.socket:
        if self._socket is None:
            host, _, port = self._bootstrap.rpartition(":")
            self._socket = socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS_MAX)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    @staticmethod
    def _read(connection: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = connection.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)
