"""Records on their way out: batches being filled, waiting, in flight, and the sequence numbers that keep their order.

Everything here is decided without clock, socket or task: `producer` asks, sends and tells. A record is encoded once,
into its batch's buffer, and is not an object any more. Per partition:

    open batch -> pending (closed, in order) -> in flight (sent, in order) -> done
                     ^--------- retry ----------------|

The rules of order, which make an idempotent producer's log free of gaps and duplicates:

* A batch gets its sequence when it is first sent, and keeps it over retries.
* While a batch waits for its retry, nothing else of the partition is sent; a retry travels alone, in its order. Brokers
  remember five batches of a producer: were new ones to follow a retry that is refused again although it is in the log
  (NOT_ENOUGH_REPLICAS_AFTER_APPEND), they could push it out of that memory.
* Until a partition has acknowledged something under the current producer epoch, one batch is in flight: a broker that
  does not know a producer accepts any first sequence, so a second batch could overtake a refused first one.
* Sequences start anew, under the next epoch (KIP-360), only when the broker's refusal proves that none of the batches
  which would be renumbered can be in the log.
* In a transaction they never start anew: the batch fails, and the next epoch comes with the abort.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from moldau.client.partitioner import Partitioner, partition_of_key
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError
from moldau.protocol.batches import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    add_to_sequence,
)
from moldau.protocol.checksum import crc32c
from moldau.protocol.compression import Compression, compress

PRODUCER_EPOCH_MAX = 32767
# Lengths, deltas and counts of one record take at most this; what a record adds to a batch besides its own bytes.
RECORD_OVERHEAD_MAX = 36
UNKNOWN_OFFSET = -1
TRANSACTIONAL = 0x10

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
_CRC = struct.Struct(">I")
_NO_HEADER = bytes(HEADER_BYTES)

Headers = Sequence[tuple[str, bytes | None]]


class _Varints(dict[int, bytes]):
    """Zigzag varints by number, computed when first met; small ones are kept."""

    _KEPT_BELOW = 1 << 14

    def __missing__(self, number: int) -> bytes:
        rest = (number << 1) ^ (number >> 63)
        out = bytearray()
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
        coded = bytes(out)
        if -1 <= number < self._KEPT_BELOW:
            self[number] = coded
        return coded


_VARINT = _Varints()


class RecordMetadata(NamedTuple):
    """Where a record is. The offset is -1 when the broker did not say (acks=0, or a duplicate from long ago)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


DeliveryCallback = Callable[[RecordMetadata | None, Exception | None], None]


class Delivery:
    """A record's fate: await it for its `RecordMetadata`, or for the exception that kept it away."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: Batch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        return self._batch.done

    def exception(self) -> Exception | None:
        """What went wrong, None for a delivered record. InvalidStateError while it is under way."""
        batch = self._batch
        if not batch.done:
            raise asyncio.InvalidStateError("the record is not delivered yet")
        return batch.error_of(self._index)

    def result(self) -> RecordMetadata:
        error = self.exception()
        if error is not None:
            raise error
        batch = self._batch
        offset = batch.base_offset if batch.base_offset < 0 else batch.base_offset + self._index
        timestamp = self._timestamp if batch.log_append_time < 0 else batch.log_append_time
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.done:
            yield from self._batch.wait().__await__()
        return self.result()


class Batch:
    """Records of one partition, encoded as they come; the header is written when the batch is sealed."""

    __slots__ = (
        "_record_errors",
        "_waiters",
        "attempts",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "callbacks",
        "count",
        "created_at",
        "done",
        "error",
        "log_append_time",
        "max_timestamp",
        "order",
        "partition",
        "producer_epoch",
        "producer_id",
        "reserved_bytes",
        "sealed",
        "topic",
    )

    def __init__(self, topic: str, partition: int, order: int, created_at: float, reserved_bytes: int) -> None:
        self.topic = topic
        self.partition = partition
        self.order = order
        self.created_at = created_at
        self.reserved_bytes = reserved_bytes
        self.buffer = bytearray(_NO_HEADER)
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.attempts = 0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.sealed = False
        self.done = False
        self.error: Exception | None = None
        self.base_offset = UNKNOWN_OFFSET
        self.log_append_time = -1
        self.callbacks: list[tuple[DeliveryCallback, Delivery]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._record_errors: dict[int, Exception] = {}

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers | None) -> int:
        """Encode one record and return its index. TypeError, and no change, for what is not bytes."""
        index = self.count
        if not index:
            self.base_timestamp = self.max_timestamp = timestamp
            time_delta = b"\x00"
        else:
            time_delta = _VARINT[timestamp - self.base_timestamp]
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
        offset_delta = _VARINT[index]
        if value is None:
            value_length, value = b"\x01", b""
        else:
            value_length = _VARINT[len(value)]
        if key is None:
            key_length, key = b"\x01", b""
        else:
            key_length = _VARINT[len(key)]
        coded_headers = _encode_headers(headers) if headers else b"\x00"
        size = (
            len(time_delta)
            + len(offset_delta)
            + len(key_length)
            + len(key)
            + len(value_length)
            + len(value)
            + len(coded_headers)
            + 1
        )
        self.buffer += b"".join(
            (_VARINT[size], b"\x00", time_delta, offset_delta, key_length, key, value_length, value, coded_headers)
        )
        self.count = index + 1
        return index

    def hold(self, buffer: bytearray) -> None:
        """Be a batch that was encoded elsewhere, header and all."""
        assert not self.count
        header = _HEADER.unpack_from(buffer)
        self.base_timestamp, self.max_timestamp, self.count = header[7], header[8], header[12]
        self.buffer = buffer
        self.sealed = True

    # -- sealing -------------------------------------------------------------------------------------------------------

    def seal(self, codec: Compression, level: int | None, attributes: int = 0) -> None:
        """Compress the records and write the header, without checksum (see `stamp`); after this none can be added."""
        if self.sealed:
            return
        self.sealed = True
        buffer = self.buffer
        if codec:
            with memoryview(buffer) as view, view[HEADER_BYTES:] as records:
                packed = compress(codec, records, level)
            buffer = bytearray(_NO_HEADER)
            buffer += packed
            self.buffer = buffer
        _HEADER.pack_into(
            buffer,
            0,
            0,
            len(buffer) - LENGTH_OVERHEAD_BYTES,
            -1,
            MAGIC,
            0,
            int(codec) | attributes,
            self.count - 1,
            self.base_timestamp,
            self.max_timestamp,
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            self.count,
        )

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Give a sealed batch its producer's number, or another one than before, and its checksum."""
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, producer_epoch, base_sequence
        _PRODUCER.pack_into(self.buffer, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
        with memoryview(self.buffer) as view, view[ATTRIBUTES_POSITION:] as covered:
            checksum = crc32c(covered)
        _CRC.pack_into(self.buffer, CRC_POSITION, checksum)

    @property
    def is_stamped(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    # -- the end -------------------------------------------------------------------------------------------------------

    def complete(self, base_offset: int, log_append_time: int) -> None:
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self._finish()

    def fail(self, error: Exception, record_errors: dict[int, Exception] | None = None) -> None:
        self.error = error
        if record_errors:
            self._record_errors = record_errors
        self._finish()

    def error_of(self, index: int) -> Exception | None:
        return self._record_errors.get(index, self.error) if self._record_errors else self.error

    async def wait(self) -> None:
        """Until the batch is delivered or failed."""
        if self.done:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _finish(self) -> None:
        self.done = True
        self.buffer = bytearray()  # deliveries may be kept by anyone for long; bytes are not
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []


def _encode_headers(headers: Headers) -> bytes:
    parts = [_VARINT[len(headers)]]
    for name, value in headers:
        text = name.encode()
        parts.append(_VARINT[len(text)])
        parts.append(text)
        if value is None:
            parts.append(b"\x01")
        else:
            parts.append(_VARINT[len(value)])
            parts.append(value)
    return b"".join(parts)


def headers_bytes(headers: Headers) -> int:
    """At most how many bytes the headers take in a record."""
    return sum(len(name) * 4 + (len(value) if value is not None else 0) + 10 for name, value in headers)


class Verdict(Enum):
    """What an answer means for a batch."""

    DELIVERED = "delivered"
    RETRY = "retry"  # as it is
    NEW_EPOCH = "new epoch"  # renumber what waits under the next epoch, then retry
    NEW_ID = "new id"  # the same, under another producer id
    FAILED = "failed"


class PartitionQueue:
    """One partition's batches and its producer state. The producer's epoch is bumped per partition, since brokers
    check it per partition; only when it is used up does the whole producer need another id. A transactional producer's
    epoch belongs to its coordinator: `bumps_epochs` is false."""

    __slots__ = (
        "_next_order",
        "acknowledged",
        "bumps_epochs",
        "failures",
        "idempotent",
        "in_flight",
        "last_error",
        "leader",
        "next_sequence",
        "open",
        "open_is_due",
        "partition",
        "pending",
        "producer_epoch",
        "producer_id",
        "retry_at",
        "sent_to",
        "topic",
    )

    def __init__(self, topic: str, partition: int, *, idempotent: bool, bumps_epochs: bool = True) -> None:
        self.topic = topic
        self.partition = partition
        self.idempotent = idempotent
        self.bumps_epochs = bumps_epochs
        self.leader = NO_LEADER
        self.open: Batch | None = None
        self.open_is_due = False
        self.pending: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self.sent_to = NO_LEADER
        self.retry_at = 0.0
        self.failures = 0
        self.last_error: Exception | None = None
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.acknowledged = False
        self._next_order = 0

    # -- filling -------------------------------------------------------------------------------------------------------

    def open_batch(self, now: float, reserved_bytes: int) -> Batch:
        assert self.open is None
        self.open = Batch(self.topic, self.partition, self._next_order, now, reserved_bytes)
        self._next_order += 1
        return self.open

    def close_batch(self) -> Batch | None:
        """Move the open batch to those that wait to be sent."""
        batch, self.open = self.open, None
        self.open_is_due = False
        if batch is not None and not batch.done:
            self.pending.append(batch)
        return batch

    # -- sending -------------------------------------------------------------------------------------------------------

    def may_send(self) -> bool:
        """Whether the next batch may go to the leader now (see the rules of order above)."""
        if not self.pending and not self.open_is_due:
            return False
        if not self.in_flight:
            return True
        if self.sent_to != self.leader or self.in_flight[0].attempts > 1:
            return False
        if self.pending and self.pending[0].attempts:
            return False
        return self.acknowledged or not self.idempotent

    def take(self) -> Batch:
        """The next batch to send, numbered and counted as in flight."""
        batch = self.pending.popleft()
        if not self.idempotent:
            if not batch.attempts:
                batch.stamp(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        elif not batch.is_stamped:
            assert self.producer_id != NO_PRODUCER_ID
            batch.stamp(self.producer_id, self.producer_epoch, self.next_sequence)
            self.next_sequence = add_to_sequence(self.next_sequence, batch.count)
        batch.attempts += 1
        self.in_flight.append(batch)
        self.sent_to = self.leader
        return batch

    def put_back(self, batch: Batch) -> None:
        """Return a batch to its place among those that wait."""
        self.forget(batch)
        if not self._is_current(batch):
            # The refusal that started the new epoch came before this batch's, on one connection: it was refused too.
            batch.base_sequence = NO_SEQUENCE
        position = 0
        for waiting in self.pending:
            if waiting.order > batch.order:
                break
            position += 1
        self.pending.insert(position, batch)

    def forget(self, batch: Batch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)

    # -- answers -------------------------------------------------------------------------------------------------------

    def judge(self, batch: Batch, code: ErrorCode) -> Verdict:
        if code is ErrorCode.NONE or (code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self.idempotent):
            return Verdict.DELIVERED
        if self.idempotent:
            stale = not self._is_current(batch)
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._awaits_earlier(batch):
                return Verdict.RETRY  # the gap closes by itself
            if not self.bumps_epochs:
                return Verdict.RETRY if code.retriable else Verdict.FAILED
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return Verdict.RETRY if stale else Verdict.NEW_EPOCH
            if code is ErrorCode.UNKNOWN_PRODUCER_ID:
                return Verdict.RETRY if stale else Verdict.NEW_EPOCH
            if code is ErrorCode.INVALID_PRODUCER_EPOCH:
                return Verdict.RETRY if stale else Verdict.NEW_ID
        return Verdict.RETRY if code.retriable else Verdict.FAILED

    def _is_current(self, batch: Batch) -> bool:
        return batch.producer_epoch == self.producer_epoch and batch.producer_id == self.producer_id

    def _awaits_earlier(self, batch: Batch) -> bool:
        return any(other.order < batch.order for other in self.in_flight) or any(
            other.order < batch.order and other.is_stamped for other in self.pending
        )

    def on_delivered(self, batch: Batch) -> None:
        self.forget(batch)
        self.failures = 0
        self.last_error = None
        if self._is_current(batch):
            self.acknowledged = True

    def on_lost(self, batch: Batch) -> None:
        """A batch is given up. Its number leaves a gap: if no later batch bears one yet, start anew."""
        self.forget(batch)
        if batch in self.pending:
            self.pending.remove(batch)
        if not self.bumps_epochs or not batch.is_stamped or not self._is_current(batch):
            return
        # Later ones that bear a number may be in the log: they are asked about first, by sending them again.
        if not self.in_flight and not any(other.is_stamped for other in self.pending):
            self.start_epoch()

    def start_epoch(self) -> None:
        """Number everything that waits from 0 under the next epoch. After the last epoch `producer_id` is unset."""
        if self.producer_epoch >= PRODUCER_EPOCH_MAX:
            self.adopt(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        else:
            self.adopt(self.producer_id, self.producer_epoch + 1)

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.acknowledged = False
        for batch in self.pending:
            batch.base_sequence = NO_SEQUENCE


class TopicLanes:
    """A topic's queues and the choice between them."""

    __slots__ = (
        "_bumps_epochs",
        "_idempotent",
        "_partitioner",
        "_sticky_bytes",
        "_sticky_bytes_max",
        "name",
        "queues",
        "sticky",
    )

    def __init__(
        self,
        name: str,
        partition_count: int,
        *,
        partitioner: Partitioner | None,
        sticky_bytes: int,
        idempotent: bool,
        bumps_epochs: bool = True,
    ) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky = -1
        self._idempotent = idempotent
        self._bumps_epochs = bumps_epochs
        self._partitioner = partitioner
        self._sticky_bytes = 0
        self._sticky_bytes_max = sticky_bytes
        self.grow(partition_count)

    def grow(self, partition_count: int) -> None:
        """Partitions may be added to a topic, never taken away."""
        for partition in range(len(self.queues), partition_count):
            self.queues.append(
                PartitionQueue(self.name, partition, idempotent=self._idempotent, bumps_epochs=self._bumps_epochs)
            )

    def choose(self, key: bytes | None, value: bytes | None) -> PartitionQueue:
        if self._partitioner is not None:
            partition = self._partitioner(self.name, key, value, len(self.queues))
            if not isinstance(partition, int) or not 0 <= partition < len(self.queues):
                raise ValueError(
                    f"the partitioner chose {partition!r} for topic {self.name!r}, "
                    f"which has partitions 0 to {len(self.queues) - 1}"
                )
            return self.queues[partition]
        if key is not None:
            return self.queues[partition_of_key(key, len(self.queues))]
        if self.sticky < 0:
            self._move()
        return self.queues[self.sticky]

    def given(self, partition: int) -> PartitionQueue:
        if not 0 <= partition < len(self.queues):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {self.name!r} has {len(self.queues)} partitions, no partition {partition}",
            )
        return self.queues[partition]

    def on_batch_closed(self, batch: Batch) -> None:
        """Stay with a partition for one batch.size of bytes, however many batches they make (KIP-794)."""
        if batch.partition == self.sticky:
            self._sticky_bytes += len(batch.buffer)
            if self._sticky_bytes >= self._sticky_bytes_max:
                self._move()

    def _move(self) -> None:
        self._sticky_bytes = 0
        reachable = [queue.partition for queue in self.queues if queue.leader != NO_LEADER]
        choices = reachable or range(len(self.queues))
        others = [partition for partition in choices if partition != self.sticky]
        self.sticky = random.choice(others) if others else choices[0]
