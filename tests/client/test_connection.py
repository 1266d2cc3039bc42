"""One connection: versions, order, and every way a peer can misbehave, played by a scripted server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.client import ClusterClient, Connection, ConnectionFailed, NoBrokerReachable, RequestTimedOut
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.headers import decode_request_header, encode_response_header
from moldau.protocol.messages.api_versions import ApiVersionsResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.registry import ApiKey
from tests.oracle import free_port

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
RANGES = {ApiKey.API_VERSIONS: (0, 4), ApiKey.METADATA: (0, 13), ApiKey.INIT_PRODUCER_ID: (0, 6)}


def run(test: Callable[[int], Awaitable[None]], script: Script) -> None:
    """Run `test(port)` against a server that plays `script` on each connection."""

    async def main() -> None:
        tasks = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.append(asyncio.current_task())
            try:
                await script(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            await asyncio.wait_for(test(server.sockets[0].getsockname()[1]), 10)
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


async def read_request(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    api_key, version, correlation_id, _, _ = decode_request_header(await reader.readexactly(size))
    return api_key, version, correlation_id


def frame(api_key: int, version: int, correlation_id: int, message: Any) -> bytes:
    out = bytearray(4)
    encode_response_header(out, api_key, version, correlation_id)
    message.encode_into(out, version)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return bytes(out)


def versions(ranges: dict[ApiKey, tuple[int, int]] = RANGES, error: ErrorCode = ErrorCode.NONE) -> ApiVersionsResponse:
    keys = [ApiVersionsResponse.ApiVersion(key, low, high) for key, (low, high) in ranges.items()]
    return ApiVersionsResponse(int(error), keys)


async def negotiate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    api_key, version, correlation_id = await read_request(reader)
    writer.write(frame(api_key, version, correlation_id, versions()))


def test_an_old_brokers_refusal_of_apiversions_is_followed_by_the_version_it_offers() -> None:
    asked = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            api_key, version, correlation_id = await read_request(reader)
            asked.append(version)
            if version > 2:
                refusal = versions({ApiKey.API_VERSIONS: (0, 2)}, ErrorCode.UNSUPPORTED_VERSION)
                writer.write(frame(api_key, 0, correlation_id, refusal))
            else:
                writer.write(frame(api_key, version, correlation_id, versions()))

    async def test(port: int) -> None:
        connection = await Connection.connect("127.0.0.1", port)
        assert connection.supports(ApiKey.METADATA) == range(14)
        connection.close()

    run(test, script)
    assert asked == [4, 2]


def test_versions_are_the_highest_in_common_and_never_unstable() -> None:
    async def test(port: int) -> None:
        connection = await Connection.connect("127.0.0.1", port)
        assert connection.version_for(ApiKey.METADATA) == 13
        assert connection.version_for(ApiKey.METADATA, version_max=9) == 9
        assert connection.version_for(ApiKey.INIT_PRODUCER_ID) == 5
        assert connection.supports(ApiKey.FETCH) == range(0)
        with pytest.raises(KafkaError, match=r"Fetch is not possible: the broker does not serve it") as refused:
            connection.version_for(ApiKey.FETCH)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        connection.close()

    run(test, negotiate)


def test_answers_are_matched_in_order_however_the_bytes_arrive() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        asked = [await read_request(reader) for _ in range(3)]
        # The second is larger than what is read at once, so it gets a buffer of its own.
        brokers = [[], [MetadataResponse.MetadataResponseBroker(id, "host", 1) for id in range(20_000)], []]
        answers = b"".join(
            frame(*one, MetadataResponse(brokers=some)) for one, some in zip(asked, brokers, strict=True)
        )
        for start in range(12):
            writer.write(answers[start : start + 1])
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(answers[12:])
        await reader.read()

    async def test(port: int) -> None:
        connection = await Connection.connect("127.0.0.1", port)
        responses = await asyncio.gather(*(connection.request(MetadataRequest([])) for _ in range(3)))
        assert [len(response.brokers) for response in responses] == [0, 20_000, 0]
        assert responses[1].brokers[-1].node_id == 19_999
        connection.close()

    run(test, script)


def test_a_request_without_answer_times_out_and_takes_the_connection_with_it() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await reader.read()

    async def test(port: int) -> None:
        connection = await Connection.connect("127.0.0.1", port)
        first = connection.submit(MetadataRequest([]), timeout_ms=50)
        second = connection.submit(MetadataRequest([]))
        with pytest.raises(RequestTimedOut, match=r"127.0.0.1:\d+: Metadata was not answered within 50 ms"):
            await first
        with pytest.raises(ConnectionFailed, match="an earlier request on the connection timed out"):
            await second
        assert connection.closed
        with pytest.raises(ConnectionFailed) as refused:
            await connection.request(MetadataRequest([]))
        assert not refused.value.sent

    run(test, script)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an answer claims 1213486160 bytes"),
        (b"\xff\xff\xff\xff", "an answer claims -1 bytes"),
        (struct.pack(">ii", 8, 77) + bytes(4), "answer 77 came where 0 was due"),
        (struct.pack(">iihi", 10, 0, 0, 99999), "does not parse"),
        (b"", "the broker closed the connection"),
    ],
)
def test_a_peer_that_does_not_speak_kafka_is_named_as_such(answer: bytes, cause: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        if answer:
            await reader.read()

    async def test(port: int) -> None:
        with pytest.raises(ConnectionFailed) as failed:
            await Connection.connect("127.0.0.1", port)
        assert cause in str(failed.value)
        assert f"127.0.0.1:{port}" in str(failed.value)
        assert "check that this is a plaintext Kafka listener" in str(failed.value)

    run(test, script)


def test_a_frame_over_the_cap_is_refused_before_memory_is_taken_for_it() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        await read_request(reader)
        writer.write(struct.pack(">i", 5000))
        await reader.read()

    async def test(port: int) -> None:
        connection = await Connection.connect("127.0.0.1", port, frame_bytes_max=4096)
        with pytest.raises(ConnectionFailed, match="an answer claims 5000 bytes"):
            await connection.request(MetadataRequest([]))

    run(test, script)


def test_a_caller_who_gives_up_does_not_disturb_the_answers_of_others() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await negotiate(reader, writer)
        for name in ("first", "second"):
            writer.write(frame(*await read_request(reader), MetadataResponse(cluster_id=name)))
        await reader.read()

    async def test(port: int) -> None:
        connection = await Connection.connect("127.0.0.1", port)
        connection.submit(MetadataRequest([])).cancel()
        assert (await connection.request(MetadataRequest([]))).cluster_id == "second"
        connection.close()

    run(test, script)


def test_nobody_listening_and_unknown_hosts_say_what_to_check() -> None:
    async def test() -> None:
        port = free_port()
        with pytest.raises(ConnectionFailed, match=rf"127.0.0.1:{port}: connection refused; check that a broker is"):
            await Connection.connect("127.0.0.1", port)
        with pytest.raises(ConnectionFailed, match=r"no-such-host.invalid:9092: the host name does not resolve"):
            await Connection.connect("no-such-host.invalid", 9092)

    asyncio.run(test())


def test_an_unreachable_cluster_is_an_error_at_once_and_names_every_address() -> None:
    async def test() -> None:
        ports = [free_port(), free_port()]
        async with ClusterClient(",".join(f"127.0.0.1:{port}" for port in ports)) as client:
            with pytest.raises(NoBrokerReachable) as failed:
                await asyncio.wait_for(client.metadata(), 5)
        for port in ports:
            assert f"127.0.0.1:{port}: connection refused" in str(failed.value)

    asyncio.run(test())


def test_ipv6_is_spoken() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await negotiate(reader, writer)

        try:
            server = await asyncio.start_server(serve, "::1", 0)
        except OSError:
            pytest.skip("no IPv6 on this machine")
        async with server:
            connection = await Connection.connect("::1", server.sockets[0].getsockname()[1])
            assert str(connection).startswith("[::1]:")
            connection.close()

    asyncio.run(main())
