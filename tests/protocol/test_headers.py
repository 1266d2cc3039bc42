"""Headers: which version stands before which body, and the two exceptions that trip implementers."""

import pytest

from moldau.protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    request_header_version,
    response_header_version,
)
from moldau.protocol.messages.registry import API_MESSAGES, ApiKey
from moldau.protocol.messages.request_header import RequestHeader
from moldau.protocol.messages.response_header import ResponseHeader
from moldau.protocol.wire import EncodingError, ProtocolError, UnsupportedVersionError

SERVED = [
    (key, version) for key, api in API_MESSAGES.items() for version in range(api.version_min, api.version_max + 1)
]


def _request_header(*fields):
    out = bytearray()
    encode_request_header(out, *fields)
    return bytes(out)


def _response_header(*fields):
    out = bytearray()
    encode_response_header(out, *fields)
    return bytes(out)


def test_header_versions_follow_the_body():
    assert request_header_version(ApiKey.PRODUCE, 8) == 1
    assert request_header_version(ApiKey.PRODUCE, 9) == 2
    assert response_header_version(ApiKey.PRODUCE, 8) == 0
    assert response_header_version(ApiKey.PRODUCE, 9) == 1
    assert request_header_version(ApiKey.SASL_HANDSHAKE, 1) == 1
    assert request_header_version(ApiKey.API_VERSIONS, 99) == 2


def test_trap_2_the_header_of_an_api_versions_response_is_always_version_0():
    for version in range(10):
        assert response_header_version(ApiKey.API_VERSIONS, version) == 0
        assert _response_header(ApiKey.API_VERSIONS, version, 7) == b"\x00\x00\x00\x07"
    assert decode_response_header(b"\x00\x00\x00\x07\x00\x00", ApiKey.API_VERSIONS, 3) == (7, 4)
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2


def test_trap_3_the_client_id_keeps_its_int16_length_in_header_version_2():
    header = _request_header(ApiKey.API_VERSIONS, 3, 7, "me")
    assert header == b"\x00\x12\x00\x03\x00\x00\x00\x07" + b"\x00\x02me" + b"\x00"
    assert decode_request_header(header + b"body") == (18, 3, 7, "me", len(header))
    assert RequestHeader.decode(header, 2).client_id == "me"


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "x" * 300, "é東🚋"])
def test_every_request_header_is_read_as_the_generated_codec_reads_it(client_id):
    for api_key, version in SERVED:
        header = _request_header(api_key, version, -5, client_id)
        generated = RequestHeader(api_key, version, -5, client_id)
        assert generated.encode(request_header_version(api_key, version)) == header
        assert decode_request_header(b"skip" + header + b"body", 4) == (
            *(api_key, version, -5, client_id),
            4 + len(header),
        )


def test_every_response_header_is_read_as_the_generated_codec_reads_it():
    for api_key, version in SERVED:
        header = _response_header(api_key, version, -5)
        assert ResponseHeader(-5).encode(response_header_version(api_key, version)) == header
        assert decode_response_header(header + b"body", api_key, version) == (-5, len(header))


def test_tagged_fields_of_a_header_are_skipped():
    tags = ((0, b"a"), (9, b"bb"))
    header = RequestHeader(0, 9, 1, "c", unknown_tags=tags).encode(2)
    assert decode_request_header(header + b"body") == (0, 9, 1, "c", len(header))
    answer = ResponseHeader(1, unknown_tags=tags).encode(1)
    assert decode_response_header(answer + b"body", 0, 9) == (1, len(answer))


@pytest.mark.parametrize("api_key", [-1, 4, 5, 6, 7, 93, 9999])
def test_an_api_key_that_kafka_does_not_have_is_refused(api_key):
    with pytest.raises(UnsupportedVersionError, match=f"api key {api_key} "):
        decode_request_header(api_key.to_bytes(2, "big", signed=True) + b"\x00\x00" + b"\x00" * 20)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        _request_header(0, 9, 1, "client")[:-1],
        _request_header(0, 9, 1, "client")[:12],
        b"\x00\x00\x00\x09\x00\x00\x00\x01" + b"\x7f\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\x01" + b"\x00\x06clien",
        b"\x00\x00\x00\x08\x00\x00\x00\x01" + b"\xff\xfe" + b"\x00" * 9,
        b"\x00\x00\x00\x09\x00\x00\x00\x01" + b"\xff\xfe" + b"\x00" * 9,
        b"\x00\x00\x00\x09\x00\x00\x00\x01" + b"\x00\x01\xff" + b"\x00" * 9,
        b"\x00\x00\x00\x09\x00\x00\x00\x01" + b"\xff\xff" + b"\xff\xff\xff\xff\x07",
    ],
)
def test_a_bad_header_is_a_protocol_error(header):
    with pytest.raises(ProtocolError):
        decode_request_header(header)


def test_a_client_id_too_long_for_its_length_is_an_encoding_error():
    with pytest.raises(EncodingError):
        _request_header(0, 9, 1, "x" * 40_000)
