"""Fetch (key 1), versions 4 to 18.

Returns whole record batches, straight from the log's files: the answer is a list of header bytes and file slices that
the connection sends with `sendfile`. Waits up to max_wait_ms until min_bytes are there; at least one batch is returned
even when it is larger than the limits (trap 16). Visible is what lies below the high watermark, or below the last
stable offset for read_committed.
- Sessions (version 7, KIP-227): see `fetch_sessions`.
- Leader epochs (9, KIP-320): older is FENCED_LEADER_EPOCH, newer UNKNOWN_LEADER_EPOCH (trap 20).
- 10 may carry zstd; 11 carries the client's rack (accepted, one node has no nearer replica); 12 may report a diverging
  epoch (KIP-595); 13 names topics by id (trap 10); 16 names new leaders (KIP-951); 17 and 18 add fields for replicas.
Fields that only replicas send are ignored: a client cannot pose as one (CVE-2018-1288).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import NamedTuple

from moldau.broker.connection import Part
from moldau.broker.dispatch import Context, RawAnswer
from moldau.broker.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchedPartition,
    FetchSession,
    PartitionKey,
    TopicKey,
)
from moldau.broker.metadata_fetch import answer_metadata_fetch, is_metadata_fetch
from moldau.broker.metrics import TopicCounters
from moldau.broker.partition import READ_COMMITTED, Partition
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.wire import write_uvarint
from moldau.storage import LogSlice

TOPIC_IDS_VERSION_MIN = 13
SESSIONS_VERSION_MIN = 7
FLEXIBLE_VERSION_MIN = 12
NEW_LEADERS_VERSION_MIN = 16
UNKNOWN = -1

_THROTTLE = struct.Struct(">i")
_THROTTLE_ERROR_SESSION = struct.Struct(">ihi")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")


class Found(NamedTuple):
    """What a fetch says about one partition."""

    key: PartitionKey
    error: int
    high_watermark: int = UNKNOWN
    last_stable_offset: int = UNKNOWN
    log_start_offset: int = UNKNOWN
    records: LogSlice | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None
    counters: TopicCounters | None = None

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size


async def handle(request: FetchRequest, context: Context) -> RawAnswer | FetchResponse:
    if is_metadata_fetch(request, context):
        return await answer_metadata_fetch(request, context)
    node, version = context.node, context.version
    node.metrics.fetch_requests += 1
    try:
        session, wanted, is_incremental = _session_and_partitions(request, context)
    except KafkaError as refusal:
        return RawAnswer([_empty_answer(version, refusal.code, session_id=0)])
    found = _read_all(wanted, request, context)
    if request.max_wait_ms > 0 and wanted and not node.is_stopping and not _is_enough(found, request.min_bytes):
        found = await _wait_for_more(wanted, request, context)
    for each in found:
        if each.counters is not None:
            each.counters.bytes_out += each.size
    if any(each.error for each in found):
        node.metrics.failed_fetch_requests += 1
    if session is not None and is_incremental:
        found = [
            each
            for each in found
            if session.has_news(each.key, each.error, each.size, each.high_watermark, each.log_start_offset)
            or each.diverging is not None
        ]
    elif session is not None:
        for each in found:
            session.has_news(each.key, each.error, each.size, each.high_watermark, each.log_start_offset)
    return RawAnswer(_encode(found, version, 0 if session is None else session.id, _endpoints(found, context)))


def _session_and_partitions(
    request: FetchRequest, context: Context
) -> tuple[FetchSession | None, list[tuple[PartitionKey, FetchedPartition]], bool]:
    """Which partitions are meant: the request's own, or a session's with the request's changes."""
    version = context.version
    uses_ids = version >= TOPIC_IDS_VERSION_MIN
    wanted: list[tuple[PartitionKey, FetchedPartition]] = []
    for topic in request.topics:
        topic_key: TopicKey = topic.topic_id if uses_ids else topic.topic
        for each in topic.partitions:
            state = FetchedPartition(
                each.fetch_offset, each.partition_max_bytes, each.current_leader_epoch, each.last_fetched_epoch
            )
            wanted.append(((topic_key, each.partition), state))
    if version < SESSIONS_VERSION_MIN:
        return None, wanted, False
    sessions = context.node.fetch_sessions
    session_id, epoch = request.session_id, request.session_epoch
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if session_id:
            sessions.close(session_id)
        if epoch == FINAL_EPOCH:
            return None, wanted, False
        opened = sessions.open(uses_ids)
        if opened is not None:
            opened.update(wanted, ())
        return opened, wanted, False
    session = sessions.resume(session_id, epoch, uses_ids)
    forgotten = [
        (forgotten.topic_id if uses_ids else forgotten.topic, index)
        for forgotten in request.forgotten_topics_data
        for index in forgotten.partitions
    ]
    session.update(wanted, forgotten)
    return session, list(session.partitions.items()), True


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_all(
    wanted: list[tuple[PartitionKey, FetchedPartition]], request: FetchRequest, context: Context
) -> list[Found]:
    bytes_left = min(request.max_bytes, context.node.settings.integer("fetch.max.bytes"))
    names_leader = context.version >= NEW_LEADERS_VERSION_MIN
    nothing_yet = True
    found = []
    for key, state in wanted:
        try:
            each = _read_one(key, state, bytes_left, nothing_yet, request.isolation_level, context)
        except OSError as error:
            # A segment that cannot be opened or read is its partition's trouble, not the whole fetch's.
            context.node.say(f"read_failed partition={key[0]!r}-{key[1]} reason={str(error)!r}")
            unreadable = _find(key, context)
            if unreadable is not None:
                unreadable.note_read_error(error)
            each = Found(key, ErrorCode.KAFKA_STORAGE_ERROR)
        except KafkaError as refusal:
            partition = _find(key, context)
            leader = None if partition is None else (partition.leader_id, partition.leader_epoch)
            # As Kafka: null is what a log says to read_uncommitted; where there is no log, the list is empty.
            aborted = () if partition is None else None
            each = Found(
                key,
                refusal.code,
                aborted=aborted,
                leader=leader if names_leader and refusal.code in _LEADER_ERRORS else None,
            )
        if each.records is not None:
            bytes_left -= each.records.size
            nothing_yet = False
        found.append(each)
    if any(each.error in _ABSENT for each in found):
        found.sort(key=lambda each: each.error in _ABSENT)  # at the end, as in Kafka
    return found


_ABSENT = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def _find(key: PartitionKey, context: Context) -> Partition | None:
    topic, index = key
    replicas = context.node.replicas
    partitions = replicas.by_id(topic) if isinstance(topic, bytes) else replicas.by_name(topic)
    if partitions is None:
        return None
    return partitions[index] if 0 <= index < len(partitions) else None


def _read_one(
    key: PartitionKey, state: FetchedPartition, bytes_left: int, at_least_one: bool, isolation: int, context: Context
) -> Found:
    partition = _find(key, context)
    if partition is None:
        raise KafkaError(_absence(key, context))
    leader = partition.require_leader(state.leader_epoch)
    log = partition.log
    if state.last_fetched_epoch >= 0:
        epoch, end_offset = log.epochs.end_offset_for(state.last_fetched_epoch, log.end_offset)
        if end_offset < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < state.last_fetched_epoch or end_offset < state.offset:
            return Found(
                key,
                0,
                leader.high_watermark,
                partition.last_stable_offset,
                log.start_offset,
                diverging=(epoch, end_offset),
            )
    bytes_max = min(state.bytes_max, max(bytes_left, 0))
    records = partition.read(state.offset, bytes_max, isolation, at_least_one=at_least_one)
    aborted: Sequence[tuple[int, int]] | None = None
    if isolation == READ_COMMITTED:
        aborted = (
            []
            if records is None
            else [
                (each.producer_id, each.first_offset)
                for each in log.aborted_transactions(state.offset, records.next_offset)
            ]
        )
    return Found(
        key,
        0,
        leader.high_watermark,
        partition.last_stable_offset,
        log.start_offset,
        records,
        aborted,
        counters=partition.counters,
    )


def _absence(key: PartitionKey, context: Context) -> ErrorCode:
    topic, index = key
    replicas = context.node.replicas
    if isinstance(topic, bytes) and replicas.by_id(topic) is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    refusal = replicas.absence(topic, index)
    if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
        return refusal.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- waiting -----------------------------------------------------------------------------------------------------------


def _is_enough(found: list[Found], bytes_min: int) -> bool:
    """Trap 19: errors and divergence are news at once."""
    size = 0
    for each in found:
        if each.error or each.diverging is not None:
            return True
        size += each.size
    return size >= bytes_min


async def _wait_for_more(
    wanted: list[tuple[PartitionKey, FetchedPartition]], request: FetchRequest, context: Context
) -> list[Found]:
    """Look again whenever one of the partitions grows, until there is enough, the time is up or nobody listens."""
    node, clock, connection = context.node, context.node.clock, context.connection
    deadline_ms = clock.monotonic_ms() + request.max_wait_ms
    while True:
        changed: asyncio.Future[None] = node.loop.create_future()

        def on_change(changed: asyncio.Future[None] = changed) -> None:
            if not changed.done():
                changed.set_result(None)

        # Found anew each time: a topic may have been deleted and made again meanwhile.
        partitions = [partition for key, _ in wanted if (partition := _find(key, context)) is not None]
        for partition in partitions:
            partition.add_waiter(on_change)
        timer = clock.call_later(max(deadline_ms - clock.monotonic_ms(), 0), on_change)
        connection.call_when_closed(on_change)
        try:
            await changed
        finally:
            timer.cancel()
            connection.forget_closer(on_change)
            for partition in partitions:
                partition.drop_waiter(on_change)
        if connection.closed:
            return []
        found = _read_all(wanted, request, context)
        if _is_enough(found, request.min_bytes) or clock.monotonic_ms() >= deadline_ms or node.is_stopping:
            return found


# -- encoding ----------------------------------------------------------------------------------------------------------


def _empty_answer(version: int, error: int, session_id: int) -> bytearray:
    out = _head(version, error, session_id, 0)
    return _tail(out, version)


def _head(version: int, error: int, session_id: int, topic_count: int) -> bytearray:
    out = bytearray()
    if version >= SESSIONS_VERSION_MIN:
        out += _THROTTLE_ERROR_SESSION.pack(0, error, session_id)
    else:
        out += _THROTTLE.pack(0)
    if version >= FLEXIBLE_VERSION_MIN:
        write_uvarint(out, topic_count + 1)
    else:
        out += _INT32.pack(topic_count)
    return out


def _tail(out: bytearray, version: int, endpoints: Sequence[FetchResponse.NodeEndpoint] = ()) -> bytearray:
    if endpoints:
        # Rare, so the generated code writes it: all that follows the fixed fields and the (empty) array of topics.
        out += FetchResponse(node_endpoints=list(endpoints)).encode(version)[_THROTTLE_ERROR_SESSION.size + 1 :]
    elif version >= FLEXIBLE_VERSION_MIN:
        out.append(0)
    return out


def _endpoints(found: list[Found], context: Context) -> list[FetchResponse.NodeEndpoint]:
    """KIP-951: beside the ids of new leaders, their addresses."""
    endpoints = []
    for node_id in sorted({each.leader[0] for each in found if each.leader is not None}):
        broker = context.node.image.brokers.get(node_id)
        endpoint = None if broker is None else context.node.endpoint_for(broker, context)
        if broker is not None and endpoint is not None:
            endpoints.append(FetchResponse.NodeEndpoint(node_id, endpoint.host, endpoint.port, broker.rack))
    return endpoints


def _encode(
    found: list[Found], version: int, session_id: int, endpoints: Sequence[FetchResponse.NodeEndpoint]
) -> list[Part]:
    """The body, by hand: file slices stay slices. Partitions of a topic that are not neighbours repeat the topic."""
    runs: list[tuple[TopicKey, list[Found]]] = []
    for each in found:
        topic = each.key[0]
        if runs and runs[-1][0] == topic:
            runs[-1][1].append(each)
        else:
            runs.append((topic, [each]))
    parts: list[Part] = []
    out = _head(version, 0, session_id, len(runs))
    flexible = version >= FLEXIBLE_VERSION_MIN
    for topic, members in runs:
        _write_topic(out, topic, version)
        if flexible:
            write_uvarint(out, len(members) + 1)
        else:
            out += _INT32.pack(len(members))
        for each in members:
            _write_partition(out, each, version)
            if each.records is not None:
                parts.append(out)
                parts.append(each.records)
                out = bytearray()
            if flexible:
                _write_partition_tags(out, each)
        if flexible:
            out.append(0)
    parts.append(_tail(out, version, endpoints))
    return [part for part in parts if not isinstance(part, bytearray) or part]


def _write_topic(out: bytearray, topic: TopicKey, version: int) -> None:
    if isinstance(topic, bytes):
        out += topic
        return
    name = topic.encode()
    if version >= FLEXIBLE_VERSION_MIN:
        write_uvarint(out, len(name) + 1)
    else:
        out += _INT16.pack(len(name))
    out += name


def _write_partition(out: bytearray, each: Found, version: int) -> None:
    """Everything up to the records' length."""
    index = each.key[1]
    if version >= 5:
        out += _PARTITION_V5.pack(
            index, each.error, each.high_watermark, each.last_stable_offset, each.log_start_offset
        )
    else:
        out += _PARTITION_V4.pack(index, each.error, each.high_watermark, each.last_stable_offset)
    flexible = version >= FLEXIBLE_VERSION_MIN
    aborted = each.aborted
    if flexible:
        write_uvarint(out, 0 if aborted is None else len(aborted) + 1)
    else:
        out += _INT32.pack(-1 if aborted is None else len(aborted))
    for producer_id, first_offset in aborted or ():
        out += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += _INT32.pack(-1)
    if flexible:
        write_uvarint(out, each.size + 1)
    else:
        out += _INT32.pack(each.size)


def _write_partition_tags(out: bytearray, each: Found) -> None:
    """Tag 0 diverging epoch, tag 1 current leader."""
    count = (each.diverging is not None) + (each.leader is not None)
    out.append(count)
    if each.diverging is not None:
        out += b"\x00\x0d" + struct.pack(">iq", *each.diverging) + b"\x00"
    if each.leader is not None:
        out += b"\x01\x09" + struct.pack(">ii", *each.leader) + b"\x00"
