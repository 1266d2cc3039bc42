"""A client of the simulation: real frames over a simulated link, answered in their order.

It retries nothing by itself. An answer that does not come is `NoAnswer`, which says whether the request had left.
"""

from __future__ import annotations

import asyncio
import heapq
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moldau.kernel import ErrorCode
from moldau.protocol.batches import iterate_batches, iterate_records
from moldau.protocol.headers import decode_response_header, encode_request_header
from moldau.protocol.markers import read_marker
from moldau.protocol.message import Message
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.registry import response_class
from moldau.testing.history import Partition
from moldau.testing.simulation.network import Link, SimulatedNetwork

REQUEST_MS = 3_000
FETCH_VERSION = 12
READ_COMMITTED = 1
FETCH_BYTES_MAX = 1 << 20
_SIZE = struct.Struct(">i")


class NoAnswer(Exception):
    """The outcome of a request is unknown, unless it never left."""

    def __init__(self, was_sent: bool) -> None:
        super().__init__(f"no answer, was_sent={was_sent}")
        self.was_sent = was_sent


class SimulatedClient:
    def __init__(self, network: SimulatedNetwork, port: int, name: str) -> None:
        self._network = network
        self._port = port
        self._name = name
        self._lingers = True
        self._link: Link | None = None
        self._received = bytearray()
        self._answers: deque[asyncio.Future[bytes | None]] = deque()
        self._correlation_id = 0

    async def ask(self, request: Message, version: int, *, timeout_ms: int = REQUEST_MS, lingers: bool = True) -> Any:
        """With `lingers` a request that nobody waits for any more may still arrive."""
        self._lingers = lingers
        if self._link is None:
            try:
                self._link = self._network.connect(self._port, self._on_bytes, self._on_lost)
            except ConnectionRefusedError:
                raise NoAnswer(was_sent=False) from None
            self._received.clear()
        self._correlation_id += 1
        expected = self._correlation_id
        frame = bytearray(4)
        encode_request_header(frame, request.API_KEY, version, expected, self._name)
        request.encode_into(frame, version)
        _SIZE.pack_into(frame, 0, len(frame) - 4)
        loop = self._network.loop
        answer: asyncio.Future[bytes | None] = loop.create_future()
        self._answers.append(answer)
        self._link.send(bytes(frame))
        timer = loop.call_later(timeout_ms / 1000, self._give_up, answer)
        try:
            found = await answer
        finally:
            timer.cancel()
        if found is None:
            raise NoAnswer(was_sent=True)
        correlation_id, position = decode_response_header(found, request.API_KEY, version)
        assert correlation_id == expected, "an answer to another request"
        response, _ = response_class(request.API_KEY).decode_from(found, position, version)
        return response

    def _give_up(self, answer: asyncio.Future[bytes | None]) -> None:
        if answer.done():
            return
        link = self._link
        assert link is not None
        self._on_lost()
        if self._lingers:
            link.abandon()
        else:
            link.cut()

    def _on_bytes(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            end = 4 + _SIZE.unpack_from(received)[0]
            if len(received) < end:
                return
            self._answers.popleft().set_result(bytes(received[4:end]))
            del received[:end]

    def _on_lost(self) -> None:
        self._link = None
        answers, self._answers = self._answers, deque()
        for answer in answers:
            answer.set_result(None)


class Fetched(NamedTuple):
    """What a reader of committed records gets of a partition; `next_offset` is where it goes on."""

    records: list[tuple[int, str]]
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    error: int


async def fetch_committed(
    client: SimulatedClient, positions: Mapping[Partition, int], wait_ms: int
) -> dict[Partition, Fetched]:
    topics: dict[str, list[FetchRequest.FetchPartition]] = {}
    for (topic, index), offset in positions.items():
        topics.setdefault(topic, []).append(
            FetchRequest.FetchPartition(
                partition=index,
                current_leader_epoch=-1,
                fetch_offset=offset,
                log_start_offset=-1,
                partition_max_bytes=FETCH_BYTES_MAX,
            )
        )
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=READ_COMMITTED,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=found) for topic, found in topics.items()],
    )
    response: FetchResponse = await client.ask(request, FETCH_VERSION, timeout_ms=wait_ms + REQUEST_MS)
    return {
        (topic.topic, each.partition_index): _committed(each, positions[topic.topic, each.partition_index])
        for topic in response.responses
        for each in topic.partitions
    }


def _committed(data: FetchResponse.PartitionData, position: int) -> Fetched:
    """Leave out what is aborted, as every client does: from a transaction's first offset to its marker."""
    if data.error_code:
        return Fetched([], position, data.high_watermark, data.last_stable_offset, data.error_code)
    aborted = [(each.first_offset, each.producer_id) for each in data.aborted_transactions or ()]
    heapq.heapify(aborted)
    aborting: set[int] = set()
    records: list[tuple[int, str]] = []
    next_offset = position
    for header, batch in iterate_batches(data.records or b""):
        while aborted and aborted[0][0] <= header.last_offset:
            aborting.add(heapq.heappop(aborted)[1])
        next_offset = header.last_offset + 1
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and not marker.committed:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            records += [
                (record.offset, (record.value or b"").decode())
                for record in iterate_records(batch)
                if record.offset >= position
            ]
    return Fetched(records, next_offset, data.high_watermark, data.last_stable_offset, ErrorCode.NONE)


def by_topic(partitions: Sequence[Partition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found
