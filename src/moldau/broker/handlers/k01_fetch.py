"""Fetch (key 1), versions 4 to 18.

Returns whole record batches, straight from the log's files: the answer is a list of header bytes and file slices that
the connection sends with `sendfile`. Waits up to max_wait_ms until min_bytes are there; at least one batch is returned
even when it is larger than the limits (trap 16). Visible is what lies below the high watermark, or below the last
stable offset for read_committed.
- Sessions (version 7, KIP-227): see `fetch_sessions`.
- Leader epochs (9, KIP-320): older is FENCED_LEADER_EPOCH, newer UNKNOWN_LEADER_EPOCH (trap 20).
- 10 may carry zstd; 11 carries the client's rack: with `replica.selector.class` set a leader names an in-sync replica
  in that rack, and followers serve consumers what they know to be committed (KIP-392); 12 may report a diverging epoch
  (KIP-595); 13 names topics by id (trap 10); 16 names new leaders (KIP-951); 17 and 18 add fields for replicas.
- A replica (version 15, KIP-903) says who it is and in which life. It gets everything up to the log's end, and what it
  asks for says what it has. One that is not assigned, or of an earlier life than the metadata knows, is refused with
  NOT_LEADER_OR_FOLLOWER. Before version 15 the replica's id is ignored: without an epoch anyone could pose as one
  (CVE-2018-1288).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
from moldau.cluster import divergence
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.wire import write_uvarint
from moldau.storage import LogSlice

TOPIC_IDS_VERSION_MIN = 13
SESSIONS_VERSION_MIN = 7
FLEXIBLE_VERSION_MIN = 12
REPLICA_STATE_VERSION_MIN = 15
NEW_LEADERS_VERSION_MIN = 16
# From here on a consumer knows what to do with an answer that names a nearer replica.
RACKS_VERSION_MIN = 11
RACK_AWARE_SELECTOR = "RackAwareReplicaSelector"
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
    preferred_replica: int = UNKNOWN
    is_throttled: bool = False

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size


class Fetcher(NamedTuple):
    """Who asks: a replica with its broker epoch, or a consumer, perhaps in a rack."""

    replica: int
    broker_epoch: int
    # None when it could make nothing of a nearer replica.
    rack: str | None

    @property
    def is_replica(self) -> bool:
        return self.replica >= 0


def _fetcher(request: FetchRequest, version: int) -> Fetcher:
    replica = request.replica_state
    if version >= REPLICA_STATE_VERSION_MIN and replica is not None and replica.replica_id >= 0:
        return Fetcher(replica.replica_id, replica.replica_epoch, None)
    return Fetcher(UNKNOWN, UNKNOWN, request.rack_id if version >= RACKS_VERSION_MIN else None)


async def handle(request: FetchRequest, context: Context) -> RawAnswer | FetchResponse:
    if is_metadata_fetch(request, context):
        return await answer_metadata_fetch(request, context)
    node, version = context.node, context.version
    fetcher = _fetcher(request, version)
    node.metrics.fetch_requests += 1
    try:
        session, wanted, is_incremental = _session_and_partitions(request, context)
    except KafkaError as refusal:
        return RawAnswer([_empty_answer(version, refusal.code, session_id=0)])
    if fetcher.is_replica:
        refused = _note_positions(wanted, fetcher, context)
        found = _read_all(wanted, request, fetcher, context, refused)
    else:
        found = _read_all(wanted, request, fetcher, context)
    if request.max_wait_ms > 0 and wanted and not node.is_stopping and not _is_enough(found, request.min_bytes):
        found = await _wait_for_more(wanted, request, fetcher, context)
    for each in found:
        if each.counters is None:
            continue
        if fetcher.is_replica:
            each.counters.replication_bytes_out += each.size
            if each.is_throttled:
                node.replication.sending.note(each.size)
        else:
            each.counters.bytes_out += each.size
    if any(each.error for each in found):
        node.metrics.failed_fetch_requests += 1
    if session is not None and is_incremental:
        found = [
            each
            for each in found
            if session.has_news(each.key, each.error, each.size, each.high_watermark, each.log_start_offset)
            or each.diverging is not None
            or each.preferred_replica != UNKNOWN
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
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch,
                each.last_fetched_epoch,
                each.log_start_offset,
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


def _note_positions(
    wanted: list[tuple[PartitionKey, FetchedPartition]], fetcher: Fetcher, context: Context
) -> dict[PartitionKey, KafkaError]:
    """What a replica asks for says what it has; once for each request. Partitions that refuse it, and why."""
    refused: dict[PartitionKey, KafkaError] = {}
    registration = context.node.image.brokers.get(fetcher.replica)
    for key, state in wanted:
        partition = _find(key, context)
        if partition is None:
            continue
        try:
            partition.require_leader(state.leader_epoch).require_follower(fetcher.replica, fetcher.broker_epoch)
            if registration is None or registration.epoch > fetcher.broker_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the replica is one of an earlier life")
            log = partition.log
            if divergence(log.epochs, log.end_offset, state.offset, state.last_fetched_epoch) is not None:
                continue
            if log.start_offset <= state.offset <= log.end_offset:
                partition.note_follower_fetch(
                    fetcher.replica, fetcher.broker_epoch, state.offset, state.log_start_offset
                )
        except KafkaError as refusal:
            refused[key] = refusal
    return refused


def _read_all(
    wanted: list[tuple[PartitionKey, FetchedPartition]],
    request: FetchRequest,
    fetcher: Fetcher,
    context: Context,
    refused: Mapping[PartitionKey, KafkaError] = MappingProxyType({}),
) -> list[Found]:
    bytes_left = min(request.max_bytes, context.node.settings.integer("fetch.max.bytes"))
    names_leader = context.version >= NEW_LEADERS_VERSION_MIN
    nothing_yet = True
    found = []
    for key, state in wanted:
        try:
            if key in refused:
                raise refused[key]
            each = _read_one(key, state, bytes_left, nothing_yet, request.isolation_level, fetcher, context)
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
    key: PartitionKey,
    state: FetchedPartition,
    bytes_left: int,
    at_least_one: bool,
    isolation: int,
    fetcher: Fetcher,
    context: Context,
) -> Found:
    partition = _find(key, context)
    if partition is None:
        raise KafkaError(_absence(key, context))
    if fetcher.rack is not None and partition.follower is not None:
        partition.require_epoch(state.leader_epoch)
    else:
        partition.require_leader(state.leader_epoch)
    log = partition.log
    diverging = divergence(log.epochs, log.end_offset, state.offset, state.last_fetched_epoch)
    if diverging is not None:
        return Found(
            key, 0, partition.high_watermark, partition.last_stable_offset, log.start_offset, diverging=diverging
        )
    if fetcher.rack and partition.has_followers:
        preferred = _nearer_replica(partition, state.offset, fetcher.rack, context)
        if preferred != UNKNOWN:
            return Found(
                key,
                0,
                partition.high_watermark,
                partition.last_stable_offset,
                log.start_offset,
                preferred_replica=preferred,
            )
    bytes_max = min(state.bytes_max, max(bytes_left, 0))
    throttle = context.node.replication.sending
    is_throttled = fetcher.is_replica and throttle.applies(partition, fetcher.replica)
    if is_throttled and throttle.wait_ms():
        records = None
    elif fetcher.is_replica:
        records = partition.read_for_replica(state.offset, bytes_max, at_least_one=at_least_one)
    else:
        records = partition.read(state.offset, bytes_max, isolation, at_least_one=at_least_one)
    aborted: Sequence[tuple[int, int]] | None = None
    if isolation == READ_COMMITTED and not fetcher.is_replica:
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
        partition.high_watermark,
        partition.last_stable_offset,
        log.start_offset,
        records,
        aborted,
        counters=partition.counters,
        is_throttled=is_throttled,
    )


def _nearer_replica(partition: Partition, offset: int, rack: str, context: Context) -> int:
    """KIP-392: the in-sync follower in the consumer's rack that has most; -1 when the leader is as near, or none is."""
    node, leader = context.node, partition.leader
    if leader is None or not node.settings.text("replica.selector.class").endswith(RACK_AWARE_SELECTOR):
        return UNKNOWN
    brokers = node.image.brokers
    if node.node_id in brokers and brokers[node.node_id].rack == rack:
        return UNKNOWN
    near = [
        (state.end_offset, -replica)
        for replica, state in leader.followers.items()
        if replica in leader.isr
        and state.start_offset <= offset <= state.end_offset
        and (broker := brokers.get(replica)) is not None
        and broker.rack == rack
        and not broker.fenced
    ]
    return -max(near)[1] if near else UNKNOWN


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
        if each.error or each.diverging is not None or each.preferred_replica != UNKNOWN:
            return True
        size += each.size
    return size >= bytes_min


async def _wait_for_more(
    wanted: list[tuple[PartitionKey, FetchedPartition]], request: FetchRequest, fetcher: Fetcher, context: Context
) -> list[Found]:
    """Look again whenever one of the partitions grows, until there is enough, the time is up or nobody listens."""
    node, clock, connection = context.node, context.node.clock, context.connection
    deadline_ms = clock.monotonic_ms() + request.max_wait_ms
    while True:
        if fetcher.is_replica and (poll_ms_max := node.replication.poll_ms_max) is not None:
            deadline_ms = min(deadline_ms, clock.monotonic_ms() + poll_ms_max)
        changed: asyncio.Future[None] = node.loop.create_future()

        def on_change(changed: asyncio.Future[None] = changed) -> None:
            if not changed.done():
                changed.set_result(None)

        # Found anew each time: a topic may have been deleted and made again meanwhile.
        partitions = [partition for key, _ in wanted if (partition := _find(key, context)) is not None]
        for partition in partitions:
            if fetcher.is_replica:
                partition.add_end_waiter(on_change)
            else:
                partition.add_waiter(on_change)
        if fetcher.is_replica:
            node.replication.add_poll(on_change)
        timer = clock.call_later(max(deadline_ms - clock.monotonic_ms(), 0), on_change)
        connection.call_when_closed(on_change)
        try:
            await changed
        finally:
            timer.cancel()
            connection.forget_closer(on_change)
            if fetcher.is_replica:
                node.replication.drop_poll(on_change)
            for partition in partitions:
                if fetcher.is_replica:
                    partition.drop_end_waiter(on_change)
                else:
                    partition.drop_waiter(on_change)
        if connection.closed:
            return []
        found = _read_all(wanted, request, fetcher, context)
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
        endpoint = None if broker is None else context.node.listeners.endpoint_for(broker, context)
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
    if version >= RACKS_VERSION_MIN:
        out += _INT32.pack(each.preferred_replica)
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
