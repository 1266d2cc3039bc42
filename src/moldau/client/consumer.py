"""The consumer: reads topics together with the other members of its group, and remembers how far it got.

    async with Consumer("127.0.0.1:9092", {"group.id": "billing"}) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Offsets are committed for what was handed out before the latest poll, or up to the record at hand when iterating: a
record counts as processed once the application asks for the next. Rebalances happen while the application polls, so
that nothing is taken from under it; heartbeats do not depend on that (`group_member`, and `group_member_next` for
KIP-848). `fetcher` reads ahead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Self

from moldau.client.cluster import FAULTS, backoff_ms, client_for
from moldau.client.errors import CommitFailed, ConsumerClosed, NoCommittedOffset, RecordUnreadable, SettingsError
from moldau.client.fetcher import Fetcher, FetchLimits, resolve_offsets
from moldau.client.group_coordinator import GroupCoordinator, GroupMetadata, OffsetAndMetadata
from moldau.client.group_member import ClassicMember
from moldau.client.group_member_next import NextMember
from moldau.client.records import ConsumedRecord
from moldau.client.settings import ConsumerSettings, consumer_settings
from moldau.client.starts import Start
from moldau.kernel import ErrorCode, KafkaError, TopicPartition

CLOSE_SECONDS = 30.0

PartitionsCallback = Callable[[set[TopicPartition]], Awaitable[None] | None]
_GONE_ON = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH)

logger = logging.getLogger(__name__)


class Consumer:
    """Reads records. Belongs to one event loop and to one task at a time."""

    def __init__(self, where: str | Mapping[str, object], settings: Mapping[str, object] | None = None) -> None:
        """`where` is bootstrap addresses, or the settings themselves with `bootstrap.servers`."""
        given: dict[str, object] = {"bootstrap.servers": where} if isinstance(where, str) else dict(where)
        self.settings: ConsumerSettings = consumer_settings({**given, **(settings or {})})
        self._client = client_for(self.settings, api_timeout_ms=self.settings.default_api_timeout_ms)
        self._coordinator: GroupCoordinator | None = None
        if self.settings.group_id is not None:
            self._coordinator = GroupCoordinator(self._client, self.settings.group_id)
        self._woken = asyncio.Event()
        self._fetcher = Fetcher(
            self._client,
            FetchLimits(
                self.settings.fetch_max_wait_ms,
                self.settings.fetch_min_bytes,
                self.settings.fetch_max_bytes,
                self.settings.max_partition_fetch_bytes,
            ),
            isolation_level=self.settings.isolation_level,
            out_of_range="error" if self.settings.auto_offset_reset == "none" else self.settings.auto_offset_reset,
            on_ready=self._woken.set,
        )
        self._member: ClassicMember | NextMember | None = None
        self._assigned: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._subscription: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._watched: set[str] = set()
        self._callbacks: dict[str, PartitionsCallback | None] = {}
        self._pending: deque[ConsumedRecord] = deque()  # taken from the fetcher, not yet handed out
        self._last_committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._commit_at = 0.0
        self._committing: asyncio.Task[None] | None = None
        self._placing: asyncio.Task[None] | None = None
        self._topic_search: asyncio.Task[None] | None = None
        self._introducing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle_since: float | None = None
        self._is_polling = False
        self._closing = False
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # The record at hand was not processed when an exception ends the work: it is not committed.
        await self._close(CLOSE_SECONDS, commit=kind is None)

    def __aiter__(self) -> Self:
        return self

    # -- what to read --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | Iterable[str],
        *,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        on_lost: PartitionsCallback | None = None,
    ) -> None:
        """Read these topics with the group, instead of what was read before. Callbacks may be coroutine functions; they
        are called while the application polls. Without `on_lost`, `on_revoked` hears of lost partitions too."""
        names = frozenset([topics] if isinstance(topics, str) else topics)
        if not names:
            raise ValueError("no topic to subscribe to; see unsubscribe()")
        self._begin_membership(None, on_assigned, on_revoked, on_lost)
        self._follow(names)

    def subscribe_pattern(
        self,
        pattern: str,
        *,
        on_assigned: PartitionsCallback | None = None,
        on_revoked: PartitionsCallback | None = None,
        on_lost: PartitionsCallback | None = None,
    ) -> None:
        """Read all topics whose whole name matches, those of the future too (within metadata.max.age.ms).

        With group.protocol=classic it is a Python expression, with consumer an RE2 one that the coordinator uses.
        """
        is_next = self.settings.group_protocol == "consumer"
        expression = None if is_next else re.compile(pattern)
        self._begin_membership(pattern if is_next else None, on_assigned, on_revoked, on_lost)
        if expression is not None:
            self._pattern = expression
            self._topic_search = asyncio.create_task(self._search_topics(expression))
            self._topic_search.add_done_callback(lambda _: self._woken.set())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without the group's say; with a group.id offsets can still be committed."""
        self._check_open()
        if self._member is not None:
            raise RuntimeError("this consumer is subscribed: unsubscribe() before assign()")
        wanted = set(partitions)
        for where in self._assigned - wanted:
            self._stop_reading({where})
        self._assigned = wanted
        self._keep_fresh({where.topic for where in wanted})
        self._woken.set()

    async def unsubscribe(self) -> None:
        """Leave the group, or drop what was assigned."""
        self._check_open()
        if self._member is not None:
            if self._assigned:
                await self.revoke(set(self._assigned))
            await self._end_membership()
        self._stop_reading(set(self._assigned))
        self._subscription = frozenset()

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._assigned)

    @property
    def subscription(self) -> frozenset[str]:
        return self._subscription

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

    def group_metadata(self) -> GroupMetadata:
        """Who this member is now; a transaction commits offsets in its name."""
        if self._coordinator is None:
            raise SettingsError("this consumer has no group: set group.id")
        return GroupMetadata(self._coordinator.group_id) if self._member is None else self._member.identity

    # -- reading -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float | None = None) -> list[ConsumedRecord]:  # noqa: ASYNC109
        """Up to max.poll.records records, as soon as there are any; an empty list after `timeout` seconds."""
        if not await self._wait_pending(timeout):
            return []
        return self._hand_out(self.settings.max_poll_records)

    async def __anext__(self) -> ConsumedRecord:
        record = self.take_ready()
        while record is None:
            await self._wait_pending(None)
            record = self.take_ready()
        return record

    def take_ready(self) -> ConsumedRecord | None:
        """The next record, if it is at hand and nothing has to be done for the group first.

        Rebalances and commits only happen in other calls, so between those any thread may call this.
        """
        if not self._pending or self._is_due():
            return None
        return self._hand_out(1)[0]

    def _is_due(self) -> bool:
        assert self._loop is not None
        now = self._loop.time()
        if self._closing or (self._member is not None and self._member.due):
            return True
        if self.settings.enable_auto_commit and now >= self._commit_at:
            return True
        self._idle_since = now
        return False

    async def _wait_pending(self, seconds: float | None) -> bool:
        self._check_staying()
        if self._is_polling:
            raise RuntimeError("the consumer is being polled by another task")
        if self._member is None and not self._assigned:
            raise RuntimeError("nothing to read: subscribe() or assign() first")
        loop = self._loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        self._is_polling, self._idle_since = True, None
        try:
            while True:
                self._woken.clear()
                await self._advance()
                if self._pending or self._refill():
                    return True
                if deadline is not None and loop.time() >= deadline:
                    return False
                await self._wait_woken(deadline)
                self._check_staying()
        finally:
            self._is_polling, self._idle_since = False, loop.time()

    async def _wait_woken(self, deadline: float | None) -> None:
        """Until something happened, or it is time to commit, or for the caller to hear that there is nothing."""
        times = [] if deadline is None else [deadline]
        if self.settings.enable_auto_commit and self._assigned:
            times.append(self._commit_at)
        try:
            async with asyncio.timeout_at(min(times, default=None)):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _advance(self) -> None:
        """All that is done for the group while the application waits."""
        self._auto_commit()
        for search in (self._topic_search, self._introducing):
            if search is not None and search.done():
                search.result()
        if self._member is not None:
            await self._member.advance()
        self._place()

    def _refill(self) -> bool:
        wanted = self.settings.max_poll_records
        try:
            while len(self._pending) < wanted:
                records = self._fetcher.take(wanted - len(self._pending))
                if not records:
                    break
                self._pending.extend(records)
        except Exception:
            # What came before the trouble is handed out first; the fetcher will tell it again.
            if not self._pending:
                raise
        return bool(self._pending)

    def _hand_out(self, records_max: int) -> list[ConsumedRecord]:
        key, value = self.settings.key_deserializer, self.settings.value_deserializer
        count = min(records_max, len(self._pending))
        if key is None and value is None:
            return [self._pending.popleft() for _ in range(count)]
        handed: list[ConsumedRecord] = []
        for _ in range(count):
            record = self._pending[0]
            try:
                opened = record._replace(
                    key=record.key if key is None else key(record.key),
                    value=record.value if value is None else value(record.value),
                )
            except Exception as error:
                if handed:
                    break
                raise RecordUnreadable(
                    f"{record.topic}-{record.partition}: the record at offset {record.offset} does not deserialize "
                    f"({error}); seek past it to go on"
                ) from error
            handed.append(opened)
            self._pending.popleft()
        return handed

    # -- positions -----------------------------------------------------------------------------------------------------

    async def position(self, where: TopicPartition) -> int:
        """The offset of the next record that will be handed out."""
        self._check_assigned(where)
        while where not in self._fetcher.positions:
            await self._place_now()
            self._check_assigned(where)
        for record in self._pending:
            if (record.topic, record.partition) == (where.topic, where.partition):
                return record.offset
        return self._fetcher.positions[where].next_offset

    async def seek(self, where: TopicPartition | Iterable[TopicPartition], start: Start) -> None:
        """Go to an offset, "earliest", "latest" or AtTime(timestamp_ms), in one partition or several."""
        places = [where] if isinstance(where, TopicPartition) else list(where)
        for place in places:
            self._check_assigned(place)
        if isinstance(start, int) and start < 0:
            raise ValueError(f"{start} is no offset")
        offsets = await resolve_offsets(self._client, dict.fromkeys(places, start), self.settings.isolation_level)
        for place, offset in offsets.items():
            if place in self._assigned:
                self._go_to(place, OffsetAndMetadata(offset))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand nothing out of these until they are resumed; membership is not touched."""
        for where in list(partitions):
            self._check_assigned(where)
            self._paused.add(where)
            waiting = [record for record in self._pending if (record.topic, record.partition) == _place_of(where)]
            if waiting:
                self._go_to(where, OffsetAndMetadata(waiting[0].offset))
            elif where in self._fetcher.positions:
                self._fetcher.pause(where)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for where in list(partitions):
            self._check_assigned(where)
            self._paused.discard(where)
            if where in self._fetcher.positions:
                self._fetcher.resume(where)

    def _go_to(self, where: TopicPartition, offset: OffsetAndMetadata) -> None:
        self._drop_pending({where})
        self._fetcher.add(where, offset.offset, leader_epoch=offset.leader_epoch)
        if where in self._paused:
            self._fetcher.pause(where)

    def _drop_pending(self, partitions: set[TopicPartition]) -> None:
        dropped = {_place_of(where) for where in partitions}
        self._pending = deque(record for record in self._pending if (record.topic, record.partition) not in dropped)

    def _place(self) -> None:
        """See that every assigned partition gets a place to read from; in the background, and raise what went wrong."""
        if self._placing is not None:
            if not self._placing.done():
                return
            placing, self._placing = self._placing, None
            try:
                placing.result()
            except KafkaError as error:
                # In a group a topic may be deleted before the next assignment; who assigned it should hear of that.
                if self._member is None or not error.code.retriable:
                    raise
                logger.warning("place_not_found group=%s error=%s", self.settings.group_id, error)
        if any(where not in self._fetcher.positions for where in self._assigned):
            self._placing = asyncio.create_task(self._find_places())
            self._placing.add_done_callback(lambda _: self._woken.set())

    async def _place_now(self) -> None:
        if self._placing is None:
            self._placing = asyncio.create_task(self._find_places())
            self._placing.add_done_callback(lambda _: self._woken.set())
        placing = self._placing
        await asyncio.wait([placing])
        if self._placing is placing:
            self._placing = None
        placing.result()

    async def _find_places(self) -> None:
        """Where the group left off, else where auto.offset.reset says."""
        todo = [where for where in self._assigned if where not in self._fetcher.positions]
        found = await self._read_committed(todo) if self._coordinator is not None else {}
        for where, offset in found.items():
            self._start_reading(where, offset)
            self._last_committed[where] = offset
        rest = [where for where in todo if where not in found and where in self._assigned]
        if not rest:
            return
        reset = self.settings.auto_offset_reset
        if reset == "none":
            raise NoCommittedOffset(", ".join(map(str, sorted(rest))))
        offsets = await resolve_offsets(self._client, dict.fromkeys(rest, reset), self.settings.isolation_level)
        for where, start in offsets.items():
            self._start_reading(where, OffsetAndMetadata(start))

    def _start_reading(self, where: TopicPartition, offset: OffsetAndMetadata) -> None:
        # It may have been revoked, or the application may have gone elsewhere, while the brokers were asked.
        if where in self._assigned and where not in self._fetcher.positions:
            self._go_to(where, offset)

    def _stop_reading(self, partitions: set[TopicPartition]) -> None:
        self._drop_pending(partitions)
        for where in partitions:
            self._fetcher.remove(where)
            self._last_committed.pop(where, None)
        self._assigned -= partitions
        self._paused -= partitions

    def _consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """How far the application is in each partition."""
        consumed = {
            where: OffsetAndMetadata(position.next_offset, leader_epoch=position.next_epoch)
            for where, position in self._fetcher.positions.items()
            if where in self._assigned
        }
        for record in reversed(self._pending):
            consumed[TopicPartition(record.topic, record.partition)] = OffsetAndMetadata(record.offset)
        return consumed

    # -- committing ----------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit what was handed out so far, or the given offsets: of the next record to read, not of the last read.

        CommitFailed when the group went on without this member: others read its partitions, from the last commit on.
        """
        self._check_open()
        if self._coordinator is None:
            raise SettingsError("committing needs a group: set group.id")
        if offsets is None:
            await self._commit(self._consumed())
            return
        await self._commit(
            {
                where: offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
                for where, offset in offsets.items()
            }
        )

    async def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed, by whomever; None where nothing is."""
        self._check_open()
        if self._coordinator is None:
            raise SettingsError("committed offsets belong to a group: set group.id")
        asked = [partitions] if isinstance(partitions, TopicPartition) else list(partitions)
        found = await self._read_committed(asked)
        return {where: found.get(where) for where in asked}

    async def _read_committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        coordinator = self._coordinator
        assert coordinator is not None

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
            who = None if self._member is None else self._member.offsets_identity
            try:
                return await coordinator.committed(partitions, who)
            except KafkaError as error:
                raise _as_passing(error) from None

        return await self._client.retry(attempt)

    async def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        coordinator = self._coordinator
        assert coordinator is not None
        if not offsets:
            return

        async def attempt() -> None:
            who = self.group_metadata()
            if self._member is not None and not self._member.is_in:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {who.group_id!r}: not a member now")
            try:
                await coordinator.commit(offsets, who)
            except KafkaError as error:
                if self._member is not None:
                    self._member.on_refused(error.code, who)
                raise _as_passing(error) from None

        try:
            await self._client.retry(attempt)
        except KafkaError as error:
            raise _commit_failure(error) from error
        self._last_committed.update(offsets)

    def _auto_commit(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self.settings.enable_auto_commit or now < self._commit_at:
            return
        self._commit_at = now + self.settings.auto_commit_interval_ms / 1000
        offsets = self._uncommitted()
        if offsets and (self._committing is None or self._committing.done()):
            self._committing = asyncio.create_task(self._commit_quietly(offsets))

    def _uncommitted(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            where: offset
            for where, offset in self._consumed().items()
            if where not in self._last_committed or self._last_committed[where].offset != offset.offset
        }

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Nobody waits for this one; what is not committed now is next time, or read again by someone."""
        try:
            await self._commit(offsets)
        except (*FAULTS, KafkaError) as error:
            logger.warning("auto_commit_failed group=%s error=%s", self.settings.group_id, error)

    async def _commit_before_leaving(self, partitions: set[TopicPartition]) -> None:
        if not self.settings.enable_auto_commit:
            return
        if self._committing is not None:
            await asyncio.wait([self._committing])
        offsets = {where: offset for where, offset in self._uncommitted().items() if where in partitions}
        await self._commit_quietly(offsets)

    # -- what the membership asks for ----------------------------------------------------------------------------------

    async def revoke(self, partitions: set[TopicPartition]) -> None:
        for where in partitions & set(self._fetcher.positions):
            self._fetcher.pause(where)
        try:
            await self._commit_before_leaving(partitions)
            await self._call("on_revoked", partitions)
        finally:
            self._stop_reading(partitions)

    async def lose(self, partitions: set[TopicPartition]) -> None:
        self._stop_reading(set(partitions))
        await self._call("on_lost" if self._callbacks.get("on_lost") else "on_revoked", partitions)

    async def take_over(self, partitions: set[TopicPartition]) -> None:
        self._assigned |= partitions
        self._keep_fresh({where.topic for where in self._assigned} | self._subscription)
        await self._call("on_assigned", partitions)

    def keep_fresh(self, topics: Iterable[str]) -> None:
        self._keep_fresh({*topics, *self._subscription, *(where.topic for where in self._assigned)})

    def is_overdue(self) -> bool:
        if self._idle_since is None:
            return False
        idle = asyncio.get_running_loop().time() - self._idle_since
        return idle * 1000 > self.settings.max_poll_interval_ms

    def wake(self) -> None:
        self._woken.set()

    async def _call(self, name: str, partitions: set[TopicPartition]) -> None:
        callback = self._callbacks.get(name)
        if callback is None:
            return
        outcome = callback(set(partitions))
        if inspect.isawaitable(outcome):
            await outcome

    # -- membership ----------------------------------------------------------------------------------------------------

    def _begin_membership(
        self,
        server_pattern: str | None,
        on_assigned: PartitionsCallback | None,
        on_revoked: PartitionsCallback | None,
        on_lost: PartitionsCallback | None,
    ) -> None:
        self._check_open()
        if self._coordinator is None:
            raise SettingsError(
                "subscribing needs a group: set group.id, or use assign() to read given partitions without one"
            )
        if self._member is None and self._assigned:
            raise RuntimeError("partitions are assigned to this consumer: unsubscribe() before subscribe()")
        self._callbacks = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
        self._pattern = None
        if self._topic_search is not None:
            self._topic_search.cancel()
            self._topic_search = None
        if self._member is None:
            if self.settings.group_protocol == "classic":
                self._member = ClassicMember(self._client, self._coordinator, self.settings, self)
            else:
                self._member = NextMember(self._client, self._coordinator, self.settings, self, pattern=server_pattern)
        elif isinstance(self._member, NextMember) and self._member.pattern != server_pattern:
            raise RuntimeError("this consumer is subscribed in another way: unsubscribe() first")

    def _follow(self, topics: frozenset[str]) -> None:
        self._subscription = topics
        self._keep_fresh(topics | {where.topic for where in self._assigned})
        if self._introducing is not None:
            self._introducing.cancel()
        self._introducing = asyncio.create_task(self._introduce(topics))
        self._introducing.add_done_callback(lambda _: self._woken.set())
        assert self._member is not None
        self._member.subscribe(topics)

    async def _introduce(self, topics: frozenset[str]) -> None:
        """Ask for topics until all exist; asking is what creates them, where that is allowed."""
        failures = 0
        known = self._client.topics
        while missing := {name for name in topics if name not in known or known[name].error}:
            try:
                await self._client.metadata(missing, allow_auto_create=self.settings.allow_auto_create_topics)
            except (*FAULTS, KafkaError) as error:
                logger.info("topics_unknown topics=%s error=%s", ",".join(sorted(missing)), error)
            for name in missing & known.keys():
                if known[name].error and not known[name].error.retriable:
                    raise KafkaError(known[name].error, f"topic {name!r} cannot be read: {known[name].error.name}")
            failures += 1
            delay = backoff_ms(failures, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)
            await asyncio.sleep(delay / 1000)

    async def _end_membership(self) -> None:
        for search in (self._topic_search, self._introducing):
            if search is not None:
                search.cancel()
        self._topic_search = self._introducing = None
        if self._member is not None:
            member, self._member = self._member, None
            await member.close()

    def _keep_fresh(self, topics: set[str] | frozenset[str]) -> None:
        for topic in self._watched - topics:
            self._client.unwatch(topic)
        for topic in topics - self._watched:
            self._client.watch(topic)
        self._watched = set(topics)

    async def _search_topics(self, pattern: re.Pattern[str]) -> None:
        """Look for matching topics now and again; a new set of them makes the member join again."""
        while True:
            known = (await self._client.retry(self._client.metadata)).topics
            found = frozenset(
                name
                for name, topic in known.items()
                if not topic.error
                and pattern.fullmatch(name)
                and not (topic.is_internal and self.settings.exclude_internal_topics)
            )
            if found != self._subscription:
                self._follow(found)
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1000)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:  # noqa: ASYNC109
        """Commit if that is automatic, give partitions up and leave the group, all within `timeout` seconds."""
        await self._close(timeout, commit=True)

    async def _close(self, seconds: float, *, commit: bool) -> None:
        if self._closing:
            return
        self._closing = True
        self._woken.set()
        try:
            async with asyncio.timeout(seconds):
                await self._leave(commit)
        except TimeoutError:
            logger.warning("close_timed_out group=%s seconds=%s", self.settings.group_id, seconds)
        finally:
            self._closed = True
            for task in (self._placing, self._committing, self._topic_search, self._introducing):
                if task is not None:
                    task.cancel()
            await self._fetcher.close()
            if self._coordinator is not None:
                self._coordinator.close()
            await self._client.close()

    async def _leave(self, commit: bool) -> None:
        partitions = set(self._assigned)
        if partitions and commit:
            await self._commit_before_leaving(partitions)
        if self._member is not None:
            try:
                if partitions:
                    await self._call("on_revoked", partitions)
            finally:
                await self._end_membership()

    def _check_staying(self) -> None:
        if self._closing:
            raise ConsumerClosed("the consumer is closed")

    def _check_open(self) -> None:
        """While it closes, callbacks may still commit."""
        if self._closed:
            raise ConsumerClosed("the consumer is closed")

    def _check_assigned(self, where: TopicPartition) -> None:
        self._check_open()
        if where not in self._assigned:
            raise ValueError(f"{where} is not assigned to this consumer now")


def _place_of(where: TopicPartition) -> tuple[str, int]:
    return where.topic, where.partition


def _as_passing(error: KafkaError) -> KafkaError:
    """KIP-848: a heartbeat in between raised our epoch; the next attempt carries the new one."""
    if error.code is ErrorCode.STALE_MEMBER_EPOCH:
        return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error))
    return error


def _commit_failure(error: KafkaError) -> KafkaError:
    if error.code is ErrorCode.FENCED_INSTANCE_ID:
        return CommitFailed(error.code, f"{error}: another member has the same group.instance.id; give each its own")
    if error.code in _GONE_ON:
        return CommitFailed(
            error.code,
            f"{error}: the group went on without this member, and others read its partitions from the last commit; "
            "if records take long, raise max.poll.interval.ms or lower max.poll.records",
        )
    if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
        return CommitFailed(error.code, f"{error}: poll to finish the rebalance, then commit again")
    return error
