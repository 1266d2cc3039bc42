"""Produce (key 0), versions 3 to 13.

Appends one record batch per partition, as the leader. A batch is written to the log before this function waits for
anything but its own verification, so the order of a connection's requests is the order of a partition's batches.
- acks 0: no answer; on any error the connection is closed, as the client has no other way to learn of it.
- acks 1: answered when the leader has written. acks -1 ("all"): when the high watermark covers the batch; refused with
  NOT_ENOUGH_REPLICAS when fewer than `min.insync.replicas` are in sync.
  When the in-sync set shrinks below that after the append it is NOT_ENOUGH_REPLICAS_AFTER_APPEND; when the followers
  take longer than the request's timeout, REQUEST_TIMED_OUT. In both cases the batch is in the log and may be committed.
- A topic that flushes (`flush.messages`, `flush.ms`) answers after the sync, many requests sharing one.
Versions: 7 allows zstd (KIP-110); 8 reports which records were refused (KIP-467); 10 names the new leader (KIP-951); 12
is for transactions that add partitions by themselves (KIP-890); 13 names topics by id.
Only magic 2 (trap 13); exactly one batch per partition (trap 15). Topics are not created here.
- Transactional batches: the first of a transaction waits until its coordinator knows of the partition, see
  `verification`; those that come meanwhile wait behind it. The transactional id is checked against the batches, not
  the other way round (CVE-2018-17196).
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from moldau.broker.connection import FrameError
from moldau.broker.dispatch import Context, NoAnswer
from moldau.broker.partition import Partition
from moldau.broker.replicas import Replicas
from moldau.broker.reply import Reply
from moldau.broker.verification import Claim, Verified
from moldau.kernel import Buffer, ErrorCode, KafkaError, ProducerIdAndEpoch
from moldau.protocol.batches import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, MAGIC, MAGIC_POSITION, read_header
from moldau.protocol.compression import Compression
from moldau.protocol.messages.produce import ProduceRequest, ProduceResponse
from moldau.storage import AppendResult, PartitionLog, RecordRefusal

ZSTD_VERSION_MIN = 7
ABORTABLE_VERSION_MIN, ADDS_PARTITIONS_VERSION_MIN = 11, 12
LEADER_HINTS_VERSION_MIN, TOPIC_IDS_VERSION_MIN = 10, 13
_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_START_UNKNOWN = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
_TRANSACTIONAL = 0x10
# The one that may write to internal topics, as in Kafka.
ADMIN_CLIENT_ID = "__admin_client"
# A batch that claims more than any request can carry is damage, not a cut.
BATCH_BYTES_MAX = 1 << 30

PartitionResponse = ProduceResponse.PartitionProduceResponse


class _Wait(NamedTuple):
    """An accepted batch whose answer waits for the disk, or for the followers."""

    done: asyncio.Future[None] | Reply
    partitions: list[Partition | None]
    answers: list[PartitionResponse | None]
    place: int


async def handle(request: ProduceRequest, context: Context) -> Any:
    transactional = [
        (topic, data)
        for topic in request.topic_data
        for data in topic.partition_data
        if data.records is not None and _is_transactional(data.records)
    ]
    appending = _Appending(request, context)
    if not transactional:
        appending.append(None)
        return await appending.answer()
    try:
        verified = _begin_verification(request, transactional, context)
    except KafkaError as refusal:
        return _all_refused(request, refusal)
    try:
        # What need not be asked about is not held up by what must: the next request on this connection may follow it.
        appending.append(verified, only_unasked=True)
        if verified.must_ask:
            appending.keep_bytes()
            await verified.ask()
            appending.append(verified)
        return await appending.answer()
    finally:
        verified.close()


class _Appending:
    """A request's batches on their way into the logs, and what is answered about each."""

    def __init__(self, request: ProduceRequest, context: Context) -> None:
        self._request = request
        self._context = context
        self._waits: list[_Wait] = []
        # Those that followers must give, in time.
        self._replies: list[Reply] = []
        self._failed = False
        # By topic and partition as the request names them; None is not decided yet.
        self._answers: list[list[PartitionResponse | None]] = [
            [None] * len(topic.partition_data) for topic in request.topic_data
        ]

    def append(self, verified: Verified | None, *, only_unasked: bool = False) -> None:
        """Everything that is not decided yet, at once; or only what the coordinator need not be asked about."""
        context, request = self._context, self._request
        replicas, version, acks = context.node.replicas, context.version, request.acks
        now_ms = context.node.clock.now_ms()
        for topic, answers in zip(request.topic_data, self._answers, strict=True):
            partitions = (
                replicas.by_id(topic.topic_id) if version >= TOPIC_IDS_VERSION_MIN else replicas.by_name(topic.name)
            )
            for place, data in enumerate(topic.partition_data):
                if answers[place] is not None:
                    continue
                log: PartitionLog | None = None
                try:
                    partition = _partition(replicas, partitions, topic, data.index, version)
                    if only_unasked and verified is not None and verified.asks_about(partition):
                        continue
                    if partition.is_internal and context.client_id != ADMIN_CLIENT_ID:
                        raise KafkaError(
                            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {partition.topic}"
                        )
                    if acks not in (-1, 0, 1):
                        raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                    batch = _single_batch(data.records, version)
                    if verified is not None:
                        verified.require_accepted(partition)
                    log = partition.log
                    if verified is not None and batch[22] & _TRANSACTIONAL:
                        verified.check(partition, read_header(batch).base_sequence)
                    result = partition.append(batch, acks, now_ms)
                except KafkaError as refusal:
                    answers[place] = _refused(log, partitions, data.index, refusal)
                    self._failed = True
                    continue
                # A retry promises as much as the first attempt, whose sync may still be under way.
                if log.flush_is_due(now_ms) or (result.duplicate and partition.flushes):
                    assert partitions is not None
                    flushed = partition.when_flushed(result.last_offset + 1)
                    self._waits.append(_Wait(flushed, partitions, answers, place))
                if acks == -1 and partition.has_followers:
                    assert partitions is not None
                    committed = partition.when_committed(result.last_offset + 1)
                    if not committed.is_done:
                        self._replies.append(committed)
                    self._waits.append(_Wait(committed, partitions, answers, place))
                answers[place] = _accepted(data.index, result)

    def keep_bytes(self) -> None:
        """Before a wait: the request's bytes are not ours afterwards."""
        for topic, answers in zip(self._request.topic_data, self._answers, strict=True):
            for data, answer in zip(topic.partition_data, answers, strict=True):
                if answer is None and data.records is not None:
                    data.records = bytearray(data.records)

    async def answer(self) -> Any:
        """When the disk, and the other brokers, have what must be there."""
        node, version = self._context.node, self._context.version
        node.metrics.produce_requests += 1
        timer = None
        if self._replies:
            timer = node.clock.call_later(max(self._request.timeout_ms, 0), self._give_up)
        for wait in self._waits:
            try:
                await wait.done
            except KafkaError as refusal:
                accepted = wait.answers[wait.place]
                assert accepted is not None
                wait.answers[wait.place] = _refused(None, wait.partitions, accepted.index, refusal)
                self._failed = True
        if timer is not None:
            timer.cancel()
        topics = [
            ProduceResponse.TopicProduceResponse(
                topic.name, topic.topic_id, [each for each in answers if each is not None]
            )
            for topic, answers in zip(self._request.topic_data, self._answers, strict=True)
        ]
        if self._request.acks == 0:
            if self._failed:
                raise FrameError("produce with acks=0 failed: " + _first_error(topics))
            return NoAnswer
        response = ProduceResponse(topics)
        if self._failed:
            node.metrics.failed_produce_requests += 1
            if version >= LEADER_HINTS_VERSION_MIN:
                node.listeners.add_leader_endpoints(response, self._context)
            else:
                for topic in topics:
                    for each in topic.partition_responses:
                        each.current_leader = None
        return response

    def _give_up(self) -> None:
        for reply in self._replies:
            if not reply.is_done:
                reply.give(KafkaError(ErrorCode.REQUEST_TIMED_OUT))


# -- transactions ------------------------------------------------------------------------------------------------------


def _is_transactional(records: Buffer) -> bool:
    return len(records) >= HEADER_BYTES and bool(records[22] & _TRANSACTIONAL)


def _begin_verification(
    request: ProduceRequest,
    transactional: list[tuple[ProduceRequest.TopicProduceData, ProduceRequest.PartitionProduceData]],
    context: Context,
) -> Verified:
    """Which of the batches the coordinator must be asked about; KafkaError refuses the whole request."""
    if request.transactional_id is None:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    replicas, version = context.node.replicas, context.version
    headers = [read_header(data.records or b"") for _, data in transactional]
    producers = {ProducerIdAndEpoch(header.producer_id, header.producer_epoch) for header in headers}
    if len(producers) > 1:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, "Transactional records contained more than one producer ID"
        )
    claim = Claim(
        request.transactional_id,
        producers.pop(),
        adds_partitions=version >= ADDS_PARTITIONS_VERSION_MIN,
        knows_abortable=version >= ABORTABLE_VERSION_MIN,
    )
    verified = Verified(context.node, claim)
    for (topic, data), header in zip(transactional, headers, strict=True):
        partitions = (
            replicas.by_id(topic.topic_id) if version >= TOPIC_IDS_VERSION_MIN else replicas.by_name(topic.name)
        )
        partition = partitions[data.index] if partitions and 0 <= data.index < len(partitions) else None
        if partition is not None and partition.leader is not None:
            verified.begin(partition, header.base_sequence)
    return verified


def _all_refused(request: ProduceRequest, refusal: KafkaError) -> Any:
    if request.acks == 0:
        raise FrameError(f"produce with acks=0 failed: {refusal.code.name}")
    return ProduceResponse(
        [
            ProduceResponse.TopicProduceResponse(
                topic.name, topic.topic_id, [_refused(None, None, data.index, refusal) for data in topic.partition_data]
            )
            for topic in request.topic_data
        ]
    )


def _partition(
    replicas: Replicas,
    partitions: list[Partition | None] | None,
    topic: ProduceRequest.TopicProduceData,
    index: int,
    version: int,
) -> Partition:
    if partitions is None:
        # Trap 10: an id that we do not know is another error than a name.
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_VERSION_MIN else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    if not 0 <= index < len(partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = partitions[index]
    if partition is None:
        raise replicas.absence(topic.topic_id if version >= TOPIC_IDS_VERSION_MIN else topic.name, index)
    return partition


def _single_batch(records: Any, version: int) -> memoryview:
    """The request's rule for a partition: exactly one batch, magic 2, a codec that this version allows."""
    size = 0 if records is None else len(records)
    if size == 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} must have at least one record batch per partition",
        )
    if size > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
        raise KafkaError(
            ErrorCode.INVALID_RECORD if records[MAGIC_POSITION] < MAGIC else ErrorCode.CORRUPT_MESSAGE,
            f"Produce requests with version {version} are only allowed to contain record batches with magic version 2",
        )
    if size < HEADER_BYTES:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"A record batch has {HEADER_BYTES} bytes at least, this one {size}")
    first_size = int.from_bytes(records[8:12], "big", signed=True) + LENGTH_OVERHEAD_BYTES
    if HEADER_BYTES <= first_size < size:
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"Produce requests with version {version} are only allowed to contain exactly one record batch per"
            " partition",
        )
    if size < first_size <= BATCH_BYTES_MAX:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"A record batch of {first_size} bytes has only {size}")
    attributes = records[22]
    if attributes & 0x07 == Compression.ZSTD and version < ZSTD_VERSION_MIN:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"Produce requests with version {version} are not allowed to use ZStandard compression",
        )
    return records  # type: ignore[no-any-return]


def _accepted(index: int, result: AppendResult) -> PartitionResponse:
    return PartitionResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=result.log_start_offset,
    )


def _refused(
    log: PartitionLog | None, partitions: list[Partition | None] | None, index: int, refusal: KafkaError
) -> PartitionResponse:
    # As Kafka: a batch that the log itself looked into and refused is answered with the log's start.
    start = -1 if log is None or refusal.code in _START_UNKNOWN else log.start_offset
    answer = PartitionResponse(
        index=index, error_code=refusal.code, base_offset=-1, log_start_offset=start, error_message=refusal.message
    )
    if isinstance(refusal, RecordRefusal):
        answer.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(batch_index, message)
            for batch_index, message in refusal.record_errors
        ]
    if refusal.code in _LEADER_ERRORS and partitions is not None:
        partition = partitions[index]
        if partition is not None:
            answer.current_leader = ProduceResponse.LeaderIdAndEpoch(partition.leader_id, partition.leader_epoch)
    return answer


def _first_error(topics: list[ProduceResponse.TopicProduceResponse]) -> str:
    for topic in topics:
        for answer in topic.partition_responses:
            if answer.error_code:
                return f"{topic.name}-{answer.index} {ErrorCode(answer.error_code).name}"
    return "unknown"
