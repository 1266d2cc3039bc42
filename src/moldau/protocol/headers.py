"""Request and response headers: what stands before every message body.

A request header says which API and version the body has, and so which header version it is itself: 2 when the body's
version is flexible, else 1 (version 0 went with Kafka 4.0). Reading one costs on every request, hence by hand.
"""

from __future__ import annotations

import struct

from moldau.protocol.messages.registry import API_MESSAGES, ApiKey
from moldau.protocol.wire import (
    Buffer,
    EncodingError,
    ProtocolError,
    UnsupportedVersionError,
    length_error,
    read_unknown_tags,
    uvarint_rest,
)

_FLEXIBLE_FROM = {key: api.flexible_from for key, api in API_MESSAGES.items() if api.version_max >= 0}
_API_VERSIONS = int(ApiKey.API_VERSIONS)

_unpack_header = struct.Struct(">hhih").unpack_from
_HEADER_BYTES = 10
_pack_header = struct.Struct(">hhih").pack
_pack_correlation_id = struct.Struct(">i").pack
_unpack_correlation_id = struct.Struct(">i").unpack_from


def request_header_version(api_key: int, api_version: int) -> int:
    return 2 if api_version >= _flexible_from(api_key) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    # A client asks for ApiVersions before it knows what we speak, so the header of that answer never became flexible
    # (KIP-511); test_trap_2_... holds it.
    if api_key == _API_VERSIONS:
        return 0
    return 1 if api_version >= _flexible_from(api_key) else 0


def _flexible_from(api_key: int) -> int:
    try:
        return _FLEXIBLE_FROM[api_key]
    except KeyError:
        raise UnsupportedVersionError(f"api key {api_key} does not exist") from None


def decode_request_header(buf: Buffer, pos: int = 0) -> tuple[int, int, int, str | None, int]:
    """Read a header: api key, api version, correlation id, client id and the position of the body.

    The version need not be one that exists: whether to answer or hang up is the caller's choice (KIP-511).
    """
    try:
        api_key, api_version, correlation_id, length = _unpack_header(buf, pos)
        pos += _HEADER_BYTES
        # The length stays an int16 in header version 2: a broker must be able to read the header of any ApiVersions
        # request; test_trap_3_... holds it.
        if length == -1:
            client_id = None
        else:
            stop = pos + length
            if length < 0 or stop > len(buf):
                raise length_error("RequestHeader.client_id", length, len(buf) - pos)
            client_id = str(buf[pos:stop], "utf-8")
            pos = stop
        if api_version >= _flexible_from(api_key):
            count = buf[pos]
            pos += 1
            if count:
                if count > 0x7F:
                    count, pos = uvarint_rest(buf, pos, count)
                _, pos = read_unknown_tags(buf, pos, len(buf), count)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"RequestHeader: {error}") from error
    return api_key, api_version, correlation_id, client_id, pos


def encode_request_header(
    out: bytearray, api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> None:
    try:
        if client_id is None:
            out += _pack_header(api_key, api_version, correlation_id, -1)
        else:
            text = client_id.encode()
            out += _pack_header(api_key, api_version, correlation_id, len(text))
            out += text
    except struct.error as error:
        raise EncodingError(f"RequestHeader: {error}") from error
    if request_header_version(api_key, api_version) == 2:
        out.append(0)


def encode_response_header(out: bytearray, api_key: int, api_version: int, correlation_id: int) -> None:
    out += _pack_correlation_id(correlation_id)
    if response_header_version(api_key, api_version) == 1:
        out.append(0)


def decode_response_header(buf: Buffer, api_key: int, api_version: int, pos: int = 0) -> tuple[int, int]:
    """Read a header: correlation id and the position of the body."""
    try:
        correlation_id: int = _unpack_correlation_id(buf, pos)[0]
        pos += 4
        if response_header_version(api_key, api_version) == 1:
            count = buf[pos]
            pos += 1
            if count:
                if count > 0x7F:
                    count, pos = uvarint_rest(buf, pos, count)
                _, pos = read_unknown_tags(buf, pos, len(buf), count)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"ResponseHeader: {error}") from error
    return correlation_id, pos
