"""Incremental fetch sessions (KIP-227): the client names its partitions once, then only what changes.

Trap 18. (id 0, epoch -1): no session; (0, 0): a new one; (id, 0): close that one and open a new one; (id, n): the next
incremental fetch; (id, -1): close. Epochs count 1, 2, ... and wrap to 1. An incremental answer leaves out partitions of
which there is no news.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from moldau.kernel import Clock, Dice, ErrorCode, KafkaError

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1
# As Kafka's min.incremental.fetch.session.eviction.ms.
EVICTION_MS_MIN = 120_000

TopicKey = str | bytes
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class FetchedPartition:
    """What a client asks of a partition, and what it was last told."""

    offset: int
    bytes_max: int
    leader_epoch: int
    last_fetched_epoch: int
    # Where a replica's own log starts; consumers have none.
    log_start_offset: int = -1
    high_watermark: int = -2
    told_start_offset: int = -2


class FetchSession:
    __slots__ = ("epoch", "id", "last_used_ms", "partitions", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool) -> None:
        self.id = session_id
        self.epoch = INITIAL_EPOCH + 1
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = 0
        self.partitions: dict[PartitionKey, FetchedPartition] = {}

    def update(
        self, wanted: Iterable[tuple[PartitionKey, FetchedPartition]], forgotten: Iterable[PartitionKey]
    ) -> None:
        for key, new in wanted:
            old = self.partitions.get(key)  # and keeps its place
            if old is not None:
                new.high_watermark, new.told_start_offset = old.high_watermark, old.told_start_offset
            self.partitions[key] = new
        for key in forgotten:
            self.partitions.pop(key, None)

    def has_news(self, key: PartitionKey, error: int, size: int, high_watermark: int, log_start_offset: int) -> bool:
        """Whether an incremental answer must name the partition; remembers what it says."""
        state = self.partitions.get(key)
        if state is None:
            return True
        news = (
            error != 0
            or size > 0
            or state.high_watermark != high_watermark
            or state.told_start_offset != log_start_offset
        )
        state.high_watermark, state.told_start_offset = high_watermark, log_start_offset
        if size > 0:
            # Partitions with data go to the end of the line, so that none starves behind a full answer.
            self.partitions[key] = self.partitions.pop(key)
        if error != 0:
            state.high_watermark = -2
        return news


class FetchSessions:
    """All sessions of a broker.

    When the slots are full, the one that was silent longest makes room if it was silent for a while; else the newcomer
    goes without, so that more clients than slots do not push each other out in turns.
    """

    def __init__(self, dice: Dice, clock: Clock, slots: int) -> None:
        self._dice = dice
        self._clock = clock
        self.slots = slots  # max.incremental.fetch.session.cache.slots
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, uses_topic_ids: bool) -> FetchSession | None:
        now_ms = self._clock.monotonic_ms()
        while self._sessions and len(self._sessions) >= self.slots:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms < EVICTION_MS_MIN:
                return None
            self._sessions.popitem(last=False)
        if self.slots <= 0:
            return None
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._dice.below(2**31)
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids)
        session.last_used_ms = now_ms
        return session

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession:
        """The session for an incremental fetch; advances its epoch."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.last_used_ms = self._clock.monotonic_ms()
        self._sessions.move_to_end(session_id)
        return session
