"""A fetcher: one loop that copies partitions from one leader over one connection.

Fetches are incremental (KIP-227): only partitions whose position changed are named. A partition that the leader refuses
is left out for a while and costs the others nothing. Everything is fetched from the end of our log with the epoch of
its last batch; where the logs part, the leader says so and the log is cut (KIP-595).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.broker.partition import Partition
from moldau.broker.peers import Peer
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import CorruptBatchError
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from moldau.broker.replication.replication import Replication

RETRY_MS_MIN = 50
LATEST, EARLIEST = -1, -2
EPOCH_MAX = 2**31 - 1
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
# Said by a leader that has not heard the newest, or hears of us before we hear of it: over in a moment.
_PASSING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)

Key = tuple[bytes, int]


class _Position(NamedTuple):
    """What the leader was told of a partition."""

    leader_epoch: int
    offset: int
    last_epoch: int
    start_offset: int


class _Fetched:
    __slots__ = ("failures", "is_held", "partition", "sent")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        # None while the leader's session does not have it.
        self.sent: _Position | None = None
        # It waits for its disk, because the leader refused it so many times, or because it is throttled.
        self.is_held = False
        self.failures = 0


class ReplicaFetcher:
    def __init__(self, replication: Replication, leader_id: int) -> None:
        self._replication = replication
        self._node = replication.node
        self._leader_id = leader_id
        self._fetched: dict[Key, _Fetched] = {}
        # Those of which the leader must be told something new, in the order in which it came up.
        self._changed: dict[Key, None] = {}
        self._in_session: set[Key] = set()
        self._news: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        # Partitions whose logs are being cut.
        self._cuts: dict[asyncio.Task[None], None] = {}
        self._session_id = 0
        self._session_epoch = 0

    def __str__(self) -> str:
        return f"leader={self._leader_id}"

    @property
    def failed_count(self) -> int:
        return sum(each.failures > 0 for each in self._fetched.values())

    # -- who is fetched ------------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        key = partition.topic_id, partition.index
        fetched = self._fetched.get(key)
        if fetched is None or fetched.partition is not partition:
            self._fetched[key] = _Fetched(partition)
        self._tell(key)
        if self._task is None:
            self._task = self._node.loop.create_task(self._run())

    def remove(self, partition: Partition) -> None:
        key = partition.topic_id, partition.index
        fetched = self._fetched.get(key)
        if fetched is not None and fetched.partition is partition:
            del self._fetched[key]
            self._tell(key)

    def _tell(self, key: Key) -> None:
        self._changed[key] = None
        self.look_again()

    def look_again(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _wait_for_news(self, timeout_ms: int | None = None) -> None:
        news = self._news = self._node.loop.create_future()
        timer = None if timeout_ms is None else self._node.clock.call_later(timeout_ms, self.look_again)
        try:
            await news
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()

    async def stop(self) -> None:
        task, self._task = self._task, None
        stopped = [*self._cuts] if task is None else [task, *self._cuts]
        for each in stopped:
            each.cancel()
        if stopped:
            await asyncio.wait(stopped)

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Until nothing is to be fetched here any more. What breaks is said once, and again when it works."""
        settings, clock = self._node.settings, self._node.clock
        retry_ms, is_broken = RETRY_MS_MIN, False
        while self._fetched:
            peer: Peer | None = None
            began_ms = clock.monotonic_ms()
            try:
                peer = await self._connect()
                if is_broken:
                    is_broken = False
                    self._node.say(f"replica_fetcher_connected {self}")
                await self._fetch_from(peer)
                continue
            except (OSError, KafkaError, ProtocolError) as error:
                if not is_broken:
                    is_broken = True
                    self._node.say(f"replica_fetcher_disconnected {self} reason={str(error)!r}")
            finally:
                if peer is not None:
                    peer.close()
            backoff_ms_max = max(settings.integer("replica.fetch.backoff.ms"), RETRY_MS_MIN)
            if clock.monotonic_ms() - began_ms > backoff_ms_max:
                retry_ms = RETRY_MS_MIN
            await self._wait_for_news(retry_ms)
            retry_ms = min(2 * retry_ms, backoff_ms_max)
        self._task = None

    async def _connect(self) -> Peer:
        endpoint = self._node.peers.endpoint_of(self._leader_id)
        if endpoint is None:
            raise ConnectionError(f"broker {self._leader_id} has no listener for other brokers")
        return await self._node.peers.connect(endpoint, self._timeout_ms)

    @property
    def _timeout_ms(self) -> int:
        return self._node.settings.integer("replica.socket.timeout.ms")

    def _begin_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._in_session.clear()
        self._changed = dict.fromkeys(self._fetched)
        for fetched in self._fetched.values():
            fetched.sent = None

    async def _fetch_from(self, peer: Peer) -> None:
        self._begin_session()
        while self._fetched:
            await self._settle_heads(peer)
            request = self._next_request()
            if request is None:
                await self._wait_for_news()
                continue
            response: FetchResponse = await peer.request(request, timeout_ms=self._timeout_ms)
            if response.error_code:
                if response.error_code not in _SESSION_LOST:
                    raise KafkaError(ErrorCode(response.error_code), "the leader refused the whole fetch")
                self._begin_session()
                continue
            if response.session_id:
                self._session_id = response.session_id
                self._session_epoch = 1 if self._session_epoch == EPOCH_MAX else self._session_epoch + 1
            await self._take(peer, response)
            if not response.session_id:
                self._begin_session()  # the leader has no slot left: everything is named each time

    # -- asking --------------------------------------------------------------------------------------------------------

    def _next_request(self) -> FetchRequest | None:
        """None when there is nothing to be fetched."""
        node, settings = self._node, self._node.settings
        changed, self._changed = self._changed, {}
        throttle, node_id = self._replication.fetching, node.node_id
        wait_ms = throttle.wait_ms()
        bytes_max = settings.integer("replica.fetch.max.bytes")
        topics: dict[bytes, FetchRequest.FetchTopic] = {}
        forgotten: dict[bytes, FetchRequest.ForgottenTopic] = {}
        for key in changed:
            topic_id, index = key
            fetched = self._fetched.get(key)
            if fetched is not None and not fetched.is_held and wait_ms and throttle.applies(fetched.partition, node_id):
                self._hold_for(fetched, wait_ms)
            position = None if fetched is None or fetched.is_held else _position(fetched.partition)
            if fetched is None or position is None:
                if key in self._in_session:
                    self._in_session.remove(key)
                    forgotten.setdefault(topic_id, FetchRequest.ForgottenTopic(topic_id=topic_id)).partitions.append(
                        index
                    )
                if fetched is not None:
                    fetched.sent = None
                continue
            if fetched.sent == position and key in self._in_session:
                continue
            fetched.sent = position
            self._in_session.add(key)
            topics.setdefault(topic_id, FetchRequest.FetchTopic(topic_id=topic_id)).partitions.append(
                FetchRequest.FetchPartition(
                    index,
                    position.leader_epoch,
                    position.offset,
                    position.last_epoch,
                    position.start_offset,
                    bytes_max,
                )
            )
        if not self._in_session and not forgotten:
            return None
        return FetchRequest(
            cluster_id=node.cluster_id,
            replica_state=FetchRequest.ReplicaState(node.node_id, self._replication.broker_epoch),
            max_wait_ms=settings.integer("replica.fetch.wait.max.ms"),
            min_bytes=settings.integer("replica.fetch.min.bytes"),
            max_bytes=settings.integer("replica.fetch.response.max.bytes"),
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )

    # -- what came -----------------------------------------------------------------------------------------------------

    async def _take(self, peer: Peer, response: FetchResponse) -> None:
        has_new_starts = False
        for topic in response.responses:
            for answer in topic.partitions:
                key = topic.topic_id, answer.partition_index
                fetched = self._fetched.get(key)
                if fetched is None or fetched.sent is None:
                    continue  # forgotten while the answer was under way
                try:
                    if fetched.sent == _position(fetched.partition):
                        await self._take_one(peer, fetched, answer)
                    else:
                        self._take_late(fetched, fetched.sent, answer)
                except (KafkaError, CorruptBatchError, OSError) as error:
                    self._hold(fetched, error)
                partition = fetched.partition
                has_new_starts |= partition.start_wanted > partition.log.start_offset
        if has_new_starts:
            await self._move_starts()

    def _take_late(self, fetched: _Fetched, sent: _Position, answer: FetchResponse.PartitionData) -> None:
        """Told another part, or a later start of the log, while the answer was under way: its records come again.

        What it says of the leader does not, as nothing is said twice in a session. It stands as long as the log ends
        where it did.
        """
        partition = fetched.partition
        position = _position(partition)
        if position is None:
            return
        is_same_log = (position.offset, position.last_epoch) == (sent.offset, sent.last_epoch)
        diverging = answer.diverging_epoch
        if is_same_log and not answer.error_code and (diverging is None or diverging.end_offset < 0):
            partition.append_fetched(b"", answer.high_watermark, answer.log_start_offset)
        self._tell((partition.topic_id, partition.index))

    async def _take_one(self, peer: Peer, fetched: _Fetched, answer: FetchResponse.PartitionData) -> None:
        partition = fetched.partition
        key = partition.topic_id, partition.index
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._find_range(peer, fetched)
            return
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code), "the leader refused")
        if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
            diverging = answer.diverging_epoch
            self._cut_aside(fetched, partial(partition.truncate, diverging.epoch, diverging.end_offset))
            return
        records = answer.records or b""
        begin = partition.begins_before_us(records)
        if begin is not None:
            # The leader gives it only with what it was asked for: it is not there for the next fetch.
            answer.records = bytes(records)
            self._cut_aside(fetched, partial(self._begin_at, partition, begin, answer))
            return
        partition.append_fetched(records, answer.high_watermark, answer.log_start_offset)
        if len(records):
            throttle = self._replication.fetching
            if throttle.applies(partition, self._node.node_id):
                throttle.note(len(records))
            self._sync_if_due(fetched)
        fetched.failures = 0
        if fetched.sent != _position(partition):
            self._tell(key)

    def _sync_if_due(self, fetched: _Fetched) -> None:
        """With `flush.messages` 1 the next fetch says that what came is on disk."""
        partition = fetched.partition
        if not partition.log.flush_is_due(self._node.clock.now_ms()):
            return
        if not partition.syncs_each_batch:
            partition.flush_soon()
            return
        fetched.is_held = True

        def on_synced(synced: asyncio.Future[None]) -> None:
            error = synced.exception()
            fetched.is_held = False
            if isinstance(error, KafkaError | OSError):
                self._hold(fetched, error)
            else:
                self._tell((partition.topic_id, partition.index))

        partition.when_flushed(partition.log.end_offset).add_done_callback(on_synced)

    def _cut_aside(self, fetched: _Fetched, cut: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The disk has its time; the leader's other partitions are fetched meanwhile."""
        fetched.is_held = True
        self._tell((fetched.partition.topic_id, fetched.partition.index))
        task = self._node.loop.create_task(self._cut(fetched, cut))
        self._cuts[task] = None
        task.add_done_callback(self._cuts.pop)

    async def _cut(self, fetched: _Fetched, cut: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await cut()
        except (KafkaError, CorruptBatchError, OSError) as error:
            self._hold(fetched, error)
            return
        fetched.is_held = False
        fetched.failures = 0
        self._sync_if_due(fetched)
        self._tell((fetched.partition.topic_id, fetched.partition.index))

    async def _begin_at(self, partition: Partition, offset: int, answer: FetchResponse.PartitionData) -> None:
        follower = partition.follower
        await partition.restart_at(offset)
        if follower is None or partition.follower is not follower or partition.is_removed:
            return  # told another part meanwhile
        partition.append_fetched(answer.records or b"", answer.high_watermark, answer.log_start_offset)
        if partition.start_wanted > partition.log.start_offset:
            await self._move_starts()

    def _hold(self, fetched: _Fetched, error: Exception) -> None:
        """Leave a partition out for a while."""
        partition = fetched.partition
        key = partition.topic_id, partition.index
        if partition.is_removed or self._fetched.get(key) is not fetched:
            return
        code = error.code if isinstance(error, KafkaError) else None
        if fetched.failures == 2 or (fetched.failures == 0 and code not in _PASSING):
            self._node.say(f"replica_fetch_failed partition={partition} {self} reason={str(error)!r}")
        delay_ms = min(
            RETRY_MS_MIN << min(fetched.failures, 10),
            max(self._node.settings.integer("replica.fetch.backoff.ms"), RETRY_MS_MIN),
        )
        fetched.failures += 1
        self._hold_for(fetched, delay_ms)
        self._tell(key)

    def _hold_for(self, fetched: _Fetched, delay_ms: int) -> None:
        key = fetched.partition.topic_id, fetched.partition.index
        fetched.is_held = True

        def go_on() -> None:
            fetched.is_held = False
            if self._fetched.get(key) is fetched:
                self._tell(key)

        self._node.clock.call_later(delay_ms, go_on)

    async def _find_range(self, peer: Peer, fetched: _Fetched) -> None:
        """Our end is outside of what the leader has: too old after a long absence, or beyond an unclean leader's."""
        partition = fetched.partition
        latest = await self._ask_offset(peer, partition, LATEST)
        if latest < partition.log.end_offset:
            self._cut_aside(fetched, partial(partition.truncate_to, latest))
            return
        earliest = await self._ask_offset(peer, partition, EARLIEST)
        if earliest > partition.log.end_offset:
            self._cut_aside(fetched, partial(partition.restart_at, earliest))
            return
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"the leader has [{earliest}, {latest}]")

    async def _settle_heads(self, peer: Peer) -> None:
        """A log that may lack its first records after a crash: its end must not be taken for all that lies before."""
        for key in list(self._changed):
            fetched = self._fetched.get(key)
            if fetched is None or fetched.is_held or fetched.partition.log.head_missing_from is None:
                continue
            partition = fetched.partition
            follower = partition.follower
            try:
                earliest = await self._ask_offset(peer, partition, EARLIEST)
            except KafkaError as error:
                self._hold(fetched, error)
                continue
            if partition.follower is not follower:
                continue
            if earliest < partition.log.start_offset:
                self._node.say(f"replica_lacks_its_head partition={partition} {self} earliest={earliest}")
                self._cut_aside(fetched, partial(partition.restart_at, earliest))
            else:
                partition.log.head_missing_from = None

    async def _ask_offset(self, peer: Peer, partition: Partition, timestamp: int) -> int:
        follower = partition.follower
        if follower is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        wanted = ListOffsetsRequest.ListOffsetsPartition(partition.index, follower.leader_epoch, timestamp)
        request = ListOffsetsRequest(
            replica_id=self._node.node_id, topics=[ListOffsetsRequest.ListOffsetsTopic(partition.topic, [wanted])]
        )
        response = await peer.request(request, timeout_ms=self._timeout_ms)
        answer = response.topics[0].partitions[0]
        if answer.error_code:
            raise KafkaError(ErrorCode(answer.error_code))
        return int(answer.offset)

    async def _move_starts(self) -> None:
        """What the leaders gave up goes here, too: the checkpoint says so first."""
        wanting = [
            each.partition
            for each in self._fetched.values()
            if each.partition.start_wanted > each.partition.log.start_offset
        ]
        await self._node.replicas.checkpoints.write()
        for partition in wanting:
            if not partition.is_removed and partition.follower is not None:
                partition.delete_records_before(min(partition.start_wanted, partition.log.end_offset))
                # The leader waits to hear of it.
                self._tell((partition.topic_id, partition.index))


def _position(partition: Partition) -> _Position | None:
    """Where the next fetch begins; None when we follow nobody."""
    follower, log = partition.follower, partition.log
    if follower is None or partition.is_removed:
        return None
    return _Position(follower.leader_epoch, log.end_offset, log.epochs.latest, log.start_offset)
