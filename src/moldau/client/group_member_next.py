"""Membership in a group of the next generation (KIP-848): the coordinator assigns, one kind of request does it all.

A heartbeat says what we want and what we hold; its answer says what we should hold. Moving from one to the other is
done in `advance`, when the application polls (see `group_member`), and told with the next heartbeat, which is sent at
once. Fields that did not change since the last answered heartbeat are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from typing import Any
from uuid import uuid4

from moldau.client.cluster import FAULTS, ClusterClient, backoff_ms
from moldau.client.errors import NoBrokerReachable
from moldau.client.group_coordinator import GroupCoordinator, GroupMetadata
from moldau.client.group_member import PASSING, Application
from moldau.client.settings import ConsumerSettings
from moldau.kernel import ErrorCode, KafkaError, TopicPartition, uuid_text
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
# A static member that will be back: its partitions wait for it.
PAUSING_EPOCH = -2
FIRST_INTERVAL_MS = 1_000
_REGEX_FROM = 1

EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})

logger = logging.getLogger(__name__)


class NextMember:
    def __init__(
        self,
        client: ClusterClient,
        coordinator: GroupCoordinator,
        settings: ConsumerSettings,
        application: Application,
        *,
        pattern: str | None = None,
    ) -> None:
        """With `pattern`, an RE2 expression, the coordinator finds the topics."""
        self.owned: set[TopicPartition] = set()
        self.due = True
        self._client = client
        self._coordinator = coordinator
        self._settings = settings
        self._application = application
        self.pattern = pattern
        self._topics: frozenset[str] = frozenset()
        self._member_id = uuid_text(uuid4().bytes)
        self._epoch = JOINING_EPOCH
        self._interval_ms = FIRST_INTERVAL_MS
        self._given_ids: dict[bytes, list[int]] | None = None  # an assignment whose topics we do not all know yet
        self._target: set[TopicPartition] | None = None
        self._topic_ids: dict[str, bytes] = {}
        self._told: tuple[frozenset[str], frozenset[TopicPartition]] | None = None
        self._hurry = asyncio.Event()
        self._is_expelled = False
        self._heart: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    @property
    def identity(self) -> GroupMetadata:
        instance_id = self._settings.group_instance_id
        if not self.is_in:
            return GroupMetadata(self._coordinator.group_id, -1, "", instance_id)
        return GroupMetadata(self._coordinator.group_id, self._epoch, self._member_id, instance_id)

    @property
    def is_in(self) -> bool:
        return self._epoch > JOINING_EPOCH

    @property
    def offsets_identity(self) -> GroupMetadata | None:
        return self.identity if self.is_in else None

    def subscribe(self, topics: frozenset[str]) -> None:
        self._topics = topics
        self._hurry.set()

    async def advance(self) -> None:
        self.due = False
        if self._failure is not None:
            self.due = True
            failure = self._failure
            if not isinstance(failure, KafkaError):  # a fault: the next poll tries again
                self._failure, self._heart = None, None
            raise failure
        if self._is_expelled:
            lost, self.owned = self.owned, set()
            self._is_expelled = False
            self._hurry.set()
            if lost:
                await self._application.lose(lost)
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        if self._target is not None and not self._is_expelled:
            await self._reconcile(self._target)

    async def _reconcile(self, target: set[TopicPartition]) -> None:
        revoked, added = self.owned - target, target - self.owned
        self._target = None
        try:
            if revoked:
                await self._application.revoke(revoked)
        finally:  # whatever a callback does, they are not ours any more
            self.owned = self.owned - revoked | added
            self._hurry.set()
            await self._application.take_over(added)

    async def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        if self.is_in:
            await self._leave()

    def on_refused(self, code: ErrorCode, who: GroupMetadata) -> None:
        if code in EXPELLED and who == self.identity:
            self._expel(code)

    def _expel(self, code: ErrorCode) -> None:
        logger.warning("member_expelled group=%s member=%s error=%s", *self._names(), code.name)
        self._epoch = JOINING_EPOCH
        self._target, self._given_ids, self._told = None, None, None
        self._is_expelled = True
        self._wake()

    def _wake(self) -> None:
        self.due = True
        self._application.wake()

    def _names(self) -> tuple[str, str]:
        return self._coordinator.group_id, self._member_id

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        failures = 0
        while self._failure is None:
            self._hurry.clear()
            if self.is_in and self._application.is_overdue():
                await self._give_up_seat()
            # Who was expelled joins again when the application has been told, which is when it polls.
            if self._is_expelled:
                await self._hurry.wait()
                continue
            try:
                await self._heartbeat()
                await self._resolve_target()
                failures = 0
            except KafkaError as error:
                self._told = None
                if error.code in EXPELLED:
                    self._expel(error.code)
                    continue
                if error.code not in PASSING:
                    self._failure = error
                    self._wake()
                    return
                failures += 1
            except FAULTS as error:
                if isinstance(error, NoBrokerReachable) and not self._client.nodes:
                    self._failure = error  # a wrong address should show at once
                    self._wake()
                    return
                logger.info("heartbeat_failed group=%s member=%s error=%s", *self._names(), error)
                self._told = None
                failures += 1
            if failures:
                delay = backoff_ms(failures, self._client.retry_backoff_ms, self._client.retry_backoff_max_ms)
                await asyncio.sleep(delay / 1000)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_ms / 1000):
                        await self._hurry.wait()

    async def _heartbeat(self) -> None:
        connection = await self._coordinator.connection()
        try:
            version = connection.version_for(ConsumerGroupHeartbeatRequest.API_KEY)
        except KafkaError as error:
            raise KafkaError(error.code, f"{error}; set group.protocol=classic for this cluster") from None
        if self.pattern is not None and version < _REGEX_FROM:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"{connection}: the broker cannot look for topics by a pattern yet"
            )
        telling = (self._topics, frozenset(self.owned))
        response = await self._coordinator.request(self._request(telling, version), version_max=version)
        if response.error_code:
            self._refuse(ErrorCode(response.error_code), response.error_message)
        if response.member_id:
            self._member_id = response.member_id
        if response.member_epoch != self._epoch:
            logger.info("member_epoch group=%s member=%s epoch=%d", *self._names(), response.member_epoch)
        self._epoch = response.member_epoch
        self._interval_ms = response.heartbeat_interval_ms
        self._told = telling
        if response.assignment is not None:
            self._given_ids = {one.topic_id: list(one.partitions) for one in response.assignment.topic_partitions}

    def _request(
        self, telling: tuple[frozenset[str], frozenset[TopicPartition]], version: int
    ) -> ConsumerGroupHeartbeatRequest:
        settings = self._settings
        is_joining = self._epoch == JOINING_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            self._coordinator.group_id, self._member_id, self._epoch, settings.group_instance_id
        )
        if is_joining and version < _REGEX_FROM:
            request.member_id = ""  # chosen by the coordinator before KIP-1082
        if is_joining or self._told is None:
            request.rack_id = settings.client_rack or None
            request.rebalance_timeout_ms = settings.max_poll_interval_ms
            request.server_assignor = settings.group_remote_assignor
            request.subscribed_topic_regex = self.pattern
        told_topics, told_owned = self._told or (None, None)
        if self.pattern is None and telling[0] != told_topics:
            request.subscribed_topic_names = sorted(telling[0])
        if is_joining:
            request.topic_partitions = []
        elif telling[1] != told_owned:
            request.topic_partitions = self._by_id(telling[1])
        return request

    def _by_id(self, partitions: frozenset[TopicPartition]) -> list[Any]:
        by_id: dict[bytes, list[int]] = defaultdict(list)
        for where in sorted(partitions):
            by_id[self._topic_ids[where.topic]].append(where.partition)
        return [ConsumerGroupHeartbeatRequest.TopicPartitions(*pair) for pair in by_id.items()]

    def _refuse(self, code: ErrorCode, message: str | None) -> None:
        try:
            self._coordinator.check(code, "sending a heartbeat")
        except KafkaError as error:
            raise KafkaError(code, f"{error}: {message}" if message else str(error)) from None

    async def _resolve_target(self) -> None:
        """Topics come by their ids; those whose names we do not know yet are asked for, and waited for."""
        given = self._given_ids
        if given is None:
            return
        names = self._names_by_id()
        if not names.keys() >= given.keys():
            await self._client.metadata()
            names = self._names_by_id()
        known = {topic_id: names[topic_id] for topic_id in given if topic_id in names}
        if len(known) == len(given):
            self._given_ids = None
        self._topic_ids |= {name: topic_id for topic_id, name in known.items()}
        self._application.keep_fresh(known.values())
        self._target = {TopicPartition(name, number) for topic_id, name in known.items() for number in given[topic_id]}
        self._wake()

    def _names_by_id(self) -> dict[bytes, str]:
        return {topic.topic_id: name for name, topic in self._client.topics.items()}

    # -- leaving -------------------------------------------------------------------------------------------------------

    async def _give_up_seat(self) -> None:
        logger.warning(
            "poll_overdue group=%s member=%s max_poll_interval_ms=%d: the application took longer between polls; "
            "raise max.poll.interval.ms or lower max.poll.records",
            *self._names(),
            self._settings.max_poll_interval_ms,
        )
        await self._leave()
        self._expel(ErrorCode.UNKNOWN_MEMBER_ID)

    async def _leave(self) -> None:
        instance_id = self._settings.group_instance_id
        epoch = LEAVING_EPOCH if instance_id is None else PAUSING_EPOCH
        request = ConsumerGroupHeartbeatRequest(self._coordinator.group_id, self._member_id, epoch, instance_id)
        try:
            await self._coordinator.request(request)
            logger.info("group_left group=%s member=%s", *self._names())
        except (*FAULTS, KafkaError) as error:
            logger.info("leave_failed group=%s member=%s error=%s", *self._names(), error)
