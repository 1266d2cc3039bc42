"""Membership in a classic group: join, be given partitions, send heartbeats, join again when the group changes.

The work is split as in Kafka's consumer. Heartbeats, and the requests of a join once it is under way, run in tasks of
their own. What the application must notice (giving partitions up, getting new ones) happens in `advance`, which the
consumer calls when the application polls: nothing is taken away from code that is in the middle of a record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from moldau.client import group_protocol
from moldau.client.assignors import NO_GENERATION, Assignor, Subscription
from moldau.client.cluster import FAULTS, ClusterClient, backoff_ms
from moldau.client.errors import NoBrokerReachable
from moldau.client.group_coordinator import GroupCoordinator, GroupMetadata
from moldau.client.metadata import TopicInfo
from moldau.client.settings import ConsumerSettings
from moldau.kernel import ErrorCode, KafkaError, TopicPartition

# A join is answered when the slowest member has come back, at the latest after the rebalance timeout.
JOIN_GRACE_MS = 5_000
_JOIN_REASON_FROM = 8
_LEAVE_MEMBERS_FROM = 3
_REASON_LENGTH_MAX = 255

# The group goes on without us: whatever we held may be someone else's by now.
EXPELLED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
# Passes by itself, or once the coordinator is found again.
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)

logger = logging.getLogger(__name__)


class Application(Protocol):
    """What a membership needs of the consumer around it."""

    async def revoke(self, partitions: set[TopicPartition]) -> None:
        """Commit if that is automatic, tell the application, stop reading."""

    async def lose(self, partitions: set[TopicPartition]) -> None:
        """Others may have them already: stop reading, tell the application."""

    async def take_over(self, partitions: set[TopicPartition]) -> None:
        """Tell the application, begin to read."""

    def keep_fresh(self, topics: Iterable[str]) -> None:
        """Have metadata of these topics looked after."""

    def is_overdue(self) -> bool:
        """The application has not polled for max.poll.interval.ms."""

    def wake(self) -> None:
        """`advance` has something to do."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """The outcome of a join: what the leader gave us, and the assignor that it used."""

    assignor: Assignor
    partitions: set[TopicPartition]
    topics: frozenset[str]


class ClassicMember:
    def __init__(
        self,
        client: ClusterClient,
        coordinator: GroupCoordinator,
        settings: ConsumerSettings,
        application: Application,
    ) -> None:
        self.owned: set[TopicPartition] = set()
        self.due = True
        self._client = client
        self._coordinator = coordinator
        self._settings = settings
        self._application = application
        self._assignors = {assignor.name: assignor for assignor in settings.partition_assignment_strategy}
        # One eager assignor among them makes the group eager: members must agree on how they rebalance.
        self._cooperative = all(assignor.cooperative for assignor in self._assignors.values())
        self._topics: frozenset[str] = frozenset()
        self._joined_topics: frozenset[str] | None = None
        self._member_id = ""
        self._generation = NO_GENERATION
        self._last_given: tuple[set[TopicPartition], int] = (set(), NO_GENERATION)
        self._rejoin_reason: str | None = "the consumer began"
        self._is_expelled = False
        self._joining: asyncio.Task[_Joined | None] | None = None
        self._heart: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        # As leader: the partition counts that the assignment was made for.
        self._counts: dict[str, int] | None = None
        self._stop_listening = client.on_metadata(self._on_metadata)

    @property
    def identity(self) -> GroupMetadata:
        return GroupMetadata(
            self._coordinator.group_id, self._generation, self._member_id, self._settings.group_instance_id
        )

    @property
    def is_in(self) -> bool:
        """The group knows us, as far as we know."""
        return self._generation != NO_GENERATION

    @property
    def offsets_identity(self) -> GroupMetadata | None:
        """Reading committed offsets needs no membership here."""
        return None

    def subscribe(self, topics: frozenset[str]) -> None:
        self._topics = topics
        if self._joined_topics is not None and topics != self._joined_topics:
            self._rejoin("the subscription changed")

    async def advance(self) -> None:
        """Do what has become due, as far as it goes without waiting for brokers."""
        self.due = False
        if self._failure is not None:
            self.due = True
            raise self._failure
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        if self._joining is not None and self._joining.done():
            joining, self._joining = self._joining, None
            joined = joining.result()
            if joined is not None:
                await self._adopt(joined)
                self._on_metadata()
        if self._joining is None and self._rejoin_reason is not None:
            await self._prepare()
            self._joining = asyncio.create_task(self._join())
            self._joining.add_done_callback(lambda _: self._wake())

    async def close(self) -> None:
        """Leave; a static member stays, and is expected back within the session timeout (KIP-345)."""
        self._stop_listening()
        tasks: list[asyncio.Task[Any]] = [task for task in (self._heart, self._joining) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._member_id and self._settings.group_instance_id is None:
            await self._leave("the consumer is being closed")

    def on_refused(self, code: ErrorCode, who: GroupMetadata) -> None:
        """A commit as `who` was refused: it tells us what the next heartbeat would."""
        if who != self.identity:
            return
        if code in EXPELLED:
            self._expel(code)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin("the group is rebalancing")

    # -- joining -------------------------------------------------------------------------------------------------------

    def _rejoin(self, reason: str) -> None:
        if self._rejoin_reason is None:
            logger.info("rejoin_needed group=%s reason=%s", self._coordinator.group_id, reason)
            self._rejoin_reason = reason
        self._wake()

    def _expel(self, code: ErrorCode) -> None:
        logger.warning("member_expelled group=%s member=%s error=%s", *self._names(), code.name)
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._generation = NO_GENERATION
        self._is_expelled = True
        self._rejoin(f"the coordinator answered {code.name}")

    def _wake(self) -> None:
        self.due = True
        self._application.wake()

    def _names(self) -> tuple[str, str]:
        return self._coordinator.group_id, self._member_id

    async def _prepare(self) -> None:
        """Before joining: give up what cannot be kept through the rebalance."""
        if self._is_expelled:
            lost, self.owned = self.owned, set()
            self._is_expelled = False
            if lost:
                await self._application.lose(lost)
        leaving = {where for where in self.owned if not self._cooperative or where.topic not in self._topics}
        await self._give_up(leaving)

    async def _give_up(self, partitions: set[TopicPartition]) -> None:
        try:
            if partitions:
                await self._application.revoke(partitions)
        finally:  # whatever a callback does, they are not ours any more
            self.owned -= partitions

    async def _join(self) -> _Joined | None:
        """Join until it succeeds; None when it must be prepared anew."""
        failures = 0
        while True:
            try:
                return await self._join_once()
            except KafkaError as error:
                if error.code is ErrorCode.MEMBER_ID_REQUIRED:
                    continue
                if error.code in EXPELLED:
                    self._expel(error.code)
                    return None
                if error.code not in PASSING:
                    raise
                failure: Exception = error
            except FAULTS as error:
                if isinstance(error, NoBrokerReachable) and not self._client.nodes:
                    raise  # a wrong address should show at once
                failure = error
            failures += 1
            logger.info("join_failed group=%s member=%s error=%s", *self._names(), failure)
            await self._back_off(failures)

    async def _back_off(self, failures: int) -> None:
        delay = backoff_ms(failures, self._client.retry_backoff_ms, self._client.retry_backoff_max_ms)
        await asyncio.sleep(delay / 1000)

    async def _join_once(self) -> _Joined:
        from moldau.protocol.messages.join_group import JoinGroupRequest

        topics = self._topics
        reason, self._rejoin_reason = self._rejoin_reason, None
        try:
            connection = await self._coordinator.connection("join")
            version = connection.version_for(JoinGroupRequest.API_KEY)
            request = JoinGroupRequest(
                self._coordinator.group_id,
                self._settings.session_timeout_ms,
                self._settings.max_poll_interval_ms,
                self._member_id,
                self._settings.group_instance_id,
                group_protocol.PROTOCOL_TYPE,
                [
                    JoinGroupRequest.JoinGroupRequestProtocol(name, self._subscription_bytes(name, topics))
                    for name in self._assignors
                ],
                (reason or "")[:_REASON_LENGTH_MAX] if version >= _JOIN_REASON_FROM else None,
            )
            timeout_ms = max(self._settings.max_poll_interval_ms + JOIN_GRACE_MS, self._settings.request_timeout_ms)
            answer = await self._coordinator.request(request, lane="join", version_max=version, timeout_ms=timeout_ms)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._member_id = answer.member_id
            self._coordinator.check(answer.error_code, "joining")
            self._member_id, self._generation = answer.member_id, answer.generation_id
            is_leader = answer.leader == answer.member_id
            self._counts = None
            assignments = await self._assign(answer) if is_leader else {}
            partitions = await self._sync(answer, assignments)
        except BaseException:
            self._rejoin_reason = self._rejoin_reason or reason or "the last join failed"
            raise
        logger.info(
            "group_joined group=%s member=%s generation=%d assignor=%s leader=%s",
            *self._names(),
            self._generation,
            answer.protocol_name,
            is_leader,
        )
        return _Joined(self._assignors[answer.protocol_name], partitions, topics)

    def _subscription_bytes(self, assignor: str, topics: frozenset[str]) -> bytes:
        user_data: bytes | None = None
        if assignor == "sticky":
            given, generation = self._last_given
            user_data = group_protocol.encode_sticky_data(given, generation) if given else None
        elif assignor == "cooperative-sticky":
            user_data = group_protocol.encode_generation(self._generation)
        subscription = Subscription(
            topics, tuple(self.owned), self._generation, rack=self._settings.client_rack or None
        )
        return group_protocol.encode_subscription(subscription, user_data)

    async def _assign(self, answer: Any) -> dict[str, list[TopicPartition]]:
        """As the group's leader: ask for the topics of all, and let the chosen assignor decide."""
        members = {
            member.member_id: group_protocol.decode_subscription(
                bytes(member.metadata), answer.protocol_name, member.group_instance_id
            )
            for member in answer.members
        }
        topics = sorted(frozenset().union(*(one.topics for one in members.values())))
        self._application.keep_fresh(topics)
        known = (await self._client.metadata(topics)).topics if topics else {}
        self._counts = {name: len(known[name].partitions) if name in known else 0 for name in topics}
        if answer.skip_assignment:
            return {}
        racks = {name: self._racks(known[name]) for name in topics if name in known}
        return self._assignors[answer.protocol_name].assign(racks, members)

    def _racks(self, topic: TopicInfo) -> list[frozenset[str]]:
        nodes = self._client.nodes
        return [
            frozenset(rack for node in one.replicas if node in nodes and (rack := nodes[node].rack))
            for one in topic.partitions
        ]

    async def _sync(self, answer: Any, assignments: dict[str, list[TopicPartition]]) -> set[TopicPartition]:
        from moldau.protocol.messages.sync_group import SyncGroupRequest

        request = SyncGroupRequest(
            self._coordinator.group_id,
            self._generation,
            self._member_id,
            self._settings.group_instance_id,
            group_protocol.PROTOCOL_TYPE,
            answer.protocol_name,
            [
                SyncGroupRequest.SyncGroupRequestAssignment(member, group_protocol.encode_assignment(partitions))
                for member, partitions in assignments.items()
            ],
        )
        timeout_ms = max(self._settings.max_poll_interval_ms + JOIN_GRACE_MS, self._settings.request_timeout_ms)
        response = await self._coordinator.request(request, lane="join", timeout_ms=timeout_ms)
        self._coordinator.check(response.error_code, "waiting for the leader's assignment")
        return group_protocol.decode_assignment(bytes(response.assignment))

    async def _adopt(self, joined: _Joined) -> None:
        if self._is_expelled:
            return
        self._joined_topics = joined.topics
        self._last_given = (joined.partitions, self._generation)
        if joined.topics != self._topics:
            self._rejoin("the subscription changed")
        revoked = self.owned - joined.partitions
        if revoked and joined.assignor.cooperative:
            self._rejoin("partitions were given up for others")
        added = joined.partitions - self.owned
        try:
            await self._give_up(revoked)
        finally:
            self.owned |= added
            await self._application.take_over(added)

    def _on_metadata(self) -> None:
        """As leader: topics that came, went or grew need a new assignment."""
        if self._counts is None or self._joining is not None:
            return
        known = self._client.topics
        counts = {name: len(known[name].partitions) if name in known else 0 for name in self._counts}
        if counts != self._counts:
            self._counts = None
            self._rejoin("the number of partitions changed")

    # -- staying -------------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        failures = 0
        while self._failure is None:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            if self._generation == NO_GENERATION or (self._joining is not None and not self._joining.done()):
                continue
            if self._application.is_overdue():
                await self._give_up_seat()
                continue
            try:
                await self._heartbeat()
                failures = 0
            except KafkaError as error:
                self._failure = error
                self._wake()
            except FAULTS as error:
                failures += 1
                logger.info("heartbeat_failed group=%s member=%s error=%s", *self._names(), error)
                await self._back_off(failures)

    async def _heartbeat(self) -> None:
        from moldau.protocol.messages.heartbeat import HeartbeatRequest

        who = self.identity
        request = HeartbeatRequest(who.group_id, who.generation, who.member_id, who.instance_id)
        timeout_ms = min(self._settings.request_timeout_ms, self._settings.session_timeout_ms)
        try:
            response = await self._coordinator.request(request, timeout_ms=timeout_ms)
            self._coordinator.check(response.error_code, "sending a heartbeat")
        except KafkaError as error:
            if who != self.identity:
                return
            if error.code not in EXPELLED and error.code not in PASSING:
                raise
            self.on_refused(error.code, who)

    async def _give_up_seat(self) -> None:
        interval_ms = self._settings.max_poll_interval_ms
        logger.warning(
            "poll_overdue group=%s member=%s max_poll_interval_ms=%d: the application took longer between polls; "
            "raise max.poll.interval.ms or lower max.poll.records",
            *self._names(),
            interval_ms,
        )
        if self._settings.group_instance_id is None:
            await self._leave("max.poll.interval.ms was exceeded")
        self._expel(ErrorCode.UNKNOWN_MEMBER_ID)

    async def _leave(self, reason: str) -> None:
        from moldau.protocol.messages.leave_group import LeaveGroupRequest

        try:
            connection = await self._coordinator.connection()
            version = connection.version_for(LeaveGroupRequest.API_KEY)
            request = LeaveGroupRequest(self._coordinator.group_id)
            if version >= _LEAVE_MEMBERS_FROM:
                request.members = [LeaveGroupRequest.MemberIdentity(self._member_id)]
                if version >= 5:
                    request.members[0].reason = reason
            else:
                request.member_id = self._member_id
            await self._coordinator.request(request, version_max=version)
            logger.info("group_left group=%s member=%s reason=%s", *self._names(), reason)
        except (*FAULTS, KafkaError) as error:
            logger.info("leave_failed group=%s member=%s error=%s", *self._names(), error)
