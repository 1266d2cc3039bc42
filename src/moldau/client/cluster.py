"""A cluster as one thing to talk to: finds brokers, remembers who leads what, retries what may be retried.

One reachable bootstrap address is enough. Connections are opened when first needed and reopened with back-off; when no
known node answers, the bootstrap addresses are tried again. Nothing here knows records: see `producer` and `reader`.

Waiting has one rule: until the first broker has ever answered, an unreachable cluster is an error at once (a wrong
address should not take a minute to show); after that, faults are retried until the call's deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from moldau.client.addresses import Address, parse_bootstrap
from moldau.client.connection import CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS, Connection
from moldau.client.errors import ConnectionFailed, NoBrokerReachable, RequestTimedOut, SettingsError
from moldau.client.metadata import (
    ClusterMetadata,
    Node,
    PartitionInfo,
    TopicInfo,
    merge_topic,
    metadata_from,
    with_leader,
)
from moldau.kernel import NO_LEADER, ErrorCode, KafkaError
from moldau.protocol.message import Message, Struct

if TYPE_CHECKING:
    from moldau.client.settings import ConsumerSettings, ProducerSettings

API_TIMEOUT_MS = 60_000
METADATA_MAX_AGE_MS = 300_000
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 1_000
RECONNECT_BACKOFF_MS = 50
RECONNECT_BACKOFF_MAX_MS = 1_000
BACKOFF_JITTER = 0.2
# A topic may be created by someone else just now, and brokers hear of it a moment later; then it is unknown for good.
UNKNOWN_TOPIC_GRACE_MS = 1_000

# Answers that say "you asked the wrong broker, or too early": look again who leads, then repeat.
LEADER_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_UNKNOWN_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

# Brokers answer a connection's requests in order, so a long poll would hold up whatever follows it: it gets its own.
Channel = Literal["requests", "polls"]

T = TypeVar("T")
Fault = ConnectionFailed | RequestTimedOut
FAULTS = (ConnectionFailed, RequestTimedOut)


def backoff_ms(failures: int, base_ms: int, max_ms: int) -> float:
    """Exponential back-off with jitter: `failures` counts from 1."""
    delay: float = min(base_ms * 2.0 ** min(failures - 1, 30), max_ms)
    return delay * random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)


def response_errors(response: Struct) -> Iterator[ErrorCode]:
    """Every error code in an answer, wherever it stands."""
    for name in response.__slots__:
        value = getattr(response, name)
        if name == "error_code":
            if value:
                yield ErrorCode(value)
        elif isinstance(value, list):
            for item in value:
                if not isinstance(item, Struct):
                    break
                yield from response_errors(item)


class _Link:
    """The way to one address: its connection, or when to try next."""

    __slots__ = ("address", "connecting", "connection", "failures", "retry_at")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection: Connection | None = None
        self.connecting: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.retry_at = 0.0

    @property
    def is_open(self) -> bool:
        return self.connection is not None and not self.connection.closed


class ClusterClient:
    """Connections and metadata of one cluster. Use inside one event loop; `close` it, or use it with `async with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "moldau",
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        api_timeout_ms: int = API_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        metadata_max_age_ms: int = METADATA_MAX_AGE_MS,
        retry_backoff_ms: int = RETRY_BACKOFF_MS,
        retry_backoff_max_ms: int = RETRY_BACKOFF_MAX_MS,
        reconnect_backoff_ms: int = RECONNECT_BACKOFF_MS,
        reconnect_backoff_max_ms: int = RECONNECT_BACKOFF_MAX_MS,
    ) -> None:
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.api_timeout_ms = api_timeout_ms
        self.connect_timeout_ms = connect_timeout_ms
        self.metadata_max_age_ms = metadata_max_age_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.retry_backoff_max_ms = retry_backoff_max_ms
        self.reconnect_backoff_ms = reconnect_backoff_ms
        self.reconnect_backoff_max_ms = reconnect_backoff_max_ms
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.closed = False
        self._links: dict[tuple[Address, Channel], _Link] = {}
        self._ever_connected = False
        self._fetched_at: dict[str, float] = {}
        self._stale: set[str] = set()
        self._watched: set[str] = set()
        self._listeners: list[Callable[[], None]] = []
        self._refresher: asyncio.Task[None] | None = None
        self._age_timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.closed = True
        if self._age_timer is not None:
            self._age_timer.cancel()
        tasks: list[asyncio.Task[Any]] = [link.connecting for link in self._links.values() if link.connecting]
        if self._refresher is not None:
            tasks.append(self._refresher)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()
        self._links.clear()

    # -- connections ---------------------------------------------------------------------------------------------------

    async def connection_to(self, node_id: int, channel: Channel = "requests") -> Connection:
        """An open connection to a node of the cluster."""
        node = self.nodes.get(node_id)
        if node is None:
            await self.metadata([])
            node = self.nodes.get(node_id)
        if node is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node_id} now")
        try:
            return await self._open((node.host, node.port), channel)
        except ConnectionFailed as failure:
            check = (
                f"{failure.check}; the cluster names this address for broker {node_id}: see its advertised.listeners"
            )
            raise ConnectionFailed(failure.host, failure.port, failure.cause, check) from failure

    def open_connection(self, node_id: int) -> Connection | None:
        """The connection to a node if there is one now."""
        node = self.nodes.get(node_id)
        link = self._links.get(((node.host, node.port), "requests")) if node is not None else None
        return link.connection if link is not None and link.is_open else None

    def finalized_level(self, feature: str) -> int:
        """The level of a feature as the newest word of the brokers that we are connected to has it; 0 for none."""
        known = [link.connection for link in self._links.values() if link.connection is not None]
        newest = max(known, key=lambda connection: connection.finalized_features_epoch, default=None)
        return newest.finalized_features.get(feature, 0) if newest is not None else 0

    async def any_connection(self) -> Connection:
        """A connection to any broker: an open one, else the first of all known addresses that answers."""
        usable = [
            link.connection for (_, channel), link in self._links.items() if link.is_open and channel == "requests"
        ]
        connections = [connection for connection in usable if connection is not None]
        if connections:
            return min(connections, key=lambda connection: connection.in_flight_count)
        known = [(node.host, node.port) for node in self.nodes.values()]
        random.shuffle(known)
        failures: list[ConnectionFailed] = []
        for address in dict.fromkeys([*known, *self.bootstrap]):
            try:
                return await self._open(address)
            except ConnectionFailed as failure:
                failures.append(failure)
            except RequestTimedOut as timeout:
                failures.append(ConnectionFailed(*address, str(timeout), "check that this is a Kafka listener"))
        raise NoBrokerReachable(failures)

    async def _open(self, address: Address, channel: Channel = "requests") -> Connection:
        if self.closed:
            raise ConnectionFailed(*address, "the client is closed", "open a new one")
        link = self._links.get((address, channel))
        if link is None:
            link = self._links[address, channel] = _Link(address)
        if link.connection is not None and not link.connection.closed:
            return link.connection
        if link.connecting is None:
            link.connecting = asyncio.create_task(self._connect(link))
            # Whoever waits hears of a failure; with nobody left waiting it is no news.
            link.connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(link.connecting)

    async def _connect(self, link: _Link) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            if link.retry_at > loop.time():
                await asyncio.sleep(link.retry_at - loop.time())
            link.connection = await Connection.connect(
                *link.address,
                client_id=self.client_id,
                connect_timeout_ms=self.connect_timeout_ms,
                request_timeout_ms=self.request_timeout_ms,
            )
        except FAULTS:
            link.failures += 1
            delay = backoff_ms(link.failures, self.reconnect_backoff_ms, self.reconnect_backoff_max_ms)
            link.retry_at = loop.time() + delay / 1000
            raise
        finally:
            link.connecting = None
        link.failures = 0
        # A broker that accepts and hangs up must not be dialled in a tight loop.
        link.retry_at = loop.time() + self.reconnect_backoff_ms / 1000
        self._ever_connected = True
        return link.connection

    # -- requests ------------------------------------------------------------------------------------------------------

    async def to_any(self, request: Message, *, version_max: int | None = None) -> Any:
        """Send to any broker that can be reached."""

        async def attempt() -> Any:
            return await (await self.any_connection()).request(request, version_max=version_max)

        return await self.retry(attempt)

    async def to_node(self, node_id: int, request: Message, *, version_max: int | None = None) -> Any:
        async def attempt() -> Any:
            return await (await self.connection_to(node_id)).request(request, version_max=version_max)

        return await self.retry(attempt)

    async def to_controller(self, request: Message, *, version_max: int | None = None) -> Any:
        """Send to the node that Metadata calls the controller; with KRaft any broker, which forwards.

        Such requests change things, so one that may have reached a broker is not repeated after a fault.
        """

        async def attempt() -> Any:
            if self.controller_id < 0:
                await self.metadata([])
            try:
                connection = await self.connection_to(self.controller_id)
            except (ConnectionFailed, KafkaError):
                # The named one may have died a moment ago.
                self.controller_id = -1
                connection = await self.any_connection()
            response = await connection.request(request, version_max=version_max)
            if ErrorCode.NOT_CONTROLLER in response_errors(response):
                self.controller_id = -1
                raise KafkaError(ErrorCode.NOT_CONTROLLER, f"{connection} is not the controller, and knows no other")
            return response

        return await self.retry(attempt, repeat_sent=False)

    async def to_leader(
        self,
        topic: str,
        partition: int,
        build_request: Callable[[PartitionInfo], Message],
        *,
        version_max: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Send to a partition's leader; build the request again and find the leader anew while it moves."""

        async def attempt() -> Any:
            info = await self.partition(topic, partition)
            try:
                connection = await self.connection_to(info.leader)
                response = await connection.request(build_request(info), version_max=version_max)
            except FAULTS:
                self._stale.add(topic)
                raise
            for code in response_errors(response):
                if code in LEADER_ERRORS:
                    self._stale.add(topic)
                    raise KafkaError(code, f"{topic}-{partition}: broker {info.leader} answered {code.name}")
            return response

        return await self.retry(attempt, timeout_ms=timeout_ms)

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int | None = None, repeat_sent: bool = True
    ) -> T:
        """Run `attempt` until it succeeds, fails for good, or the time is over.

        With `repeat_sent` false a fault after the request was sent is final: it may have had its effect.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + (self.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        failures = 0
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                if error.code in _UNKNOWN_TOPIC and loop.time() - started > UNKNOWN_TOPIC_GRACE_MS / 1000:
                    raise
                failure: Exception = error
            except RequestTimedOut as error:
                if not repeat_sent:
                    raise
                failure = error
            except ConnectionFailed as error:
                if self.closed or not self._ever_connected or (error.sent and not repeat_sent):
                    raise
                failure = error
            failures += 1
            delay = backoff_ms(failures, self.retry_backoff_ms, self.retry_backoff_max_ms) / 1000
            if loop.time() + delay > deadline:
                raise failure
            await asyncio.sleep(delay)

    # -- metadata ------------------------------------------------------------------------------------------------------

    async def metadata(
        self, topics: Iterable[str] | None = None, *, allow_auto_create: bool = False, timeout_ms: int | None = None
    ) -> ClusterMetadata:
        """Ask a broker now: all topics (None), or the given ones. What it says also refreshes the cache."""
        from moldau.protocol.messages.metadata import MetadataRequest

        names = None if topics is None else list(topics)
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=allow_auto_create,
        )

        async def attempt() -> Any:
            return await (await self.any_connection()).request(request)

        response = await self.retry(attempt, timeout_ms=timeout_ms)
        news = metadata_from(response)
        self._learn(news)
        return news

    async def topic(self, name: str, *, allow_auto_create: bool = False) -> TopicInfo:
        """A topic from the cache, asked for when it is unknown, stale or too old. KafkaError when it has an error."""
        known = self.topics.get(name)
        if known is None or known.error or name in self._stale or self._is_old(name):
            await self.metadata([name], allow_auto_create=allow_auto_create)
            known = self.topics.get(name)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        if known.error:
            raise KafkaError(known.error, _topic_error_text(name, known.error))
        return known

    async def partition(self, topic: str, partition: int) -> PartitionInfo:
        """A partition that has a leader; KafkaError otherwise."""
        info = await self.topic(topic)
        if not 0 <= partition < len(info.partitions):
            self._stale.add(topic)
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {topic!r} has {len(info.partitions)} partitions, no partition {partition}",
            )
        found = info.partitions[partition]
        if found.leader == NO_LEADER:
            self._stale.add(topic)
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader now")
        return found

    def watch(self, topic: str) -> None:
        """Keep a topic fresh: it is asked for again every `metadata.max.age.ms`."""
        self._watched.add(topic)
        if self._age_timer is None:
            self._start_age_timer()

    def unwatch(self, topic: str) -> None:
        self._watched.discard(topic)

    def invalidate(self, topics: Iterable[str]) -> None:
        """Ask for these topics again, in the background and soon; listeners hear when it is done."""
        self._stale.update(topics)
        if self._refresher is None and not self.closed:
            self._refresher = asyncio.create_task(self._refresh())

    def on_metadata(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever the cache changed; returns what takes it off again."""
        self._listeners.append(listener)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return remove

    def note_leader(self, topic: str, partition: int, leader: int, leader_epoch: int, endpoints: Iterable[Any]) -> None:
        """Take a broker's hint where a leader went (KIP-951), with the addresses that came along."""
        for endpoint in endpoints:
            self.nodes[endpoint.node_id] = Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
        known = self.topics.get(topic)
        if known is not None and leader in self.nodes:
            self.topics[topic] = with_leader(known, partition, leader, leader_epoch)
            self._tell()

    async def _refresh(self) -> None:
        failures = 0
        try:
            while self._stale and not self.closed:
                asked = set(self._stale)
                try:
                    await self.metadata(asked)
                    failures = 0
                except (*FAULTS, KafkaError):
                    failures += 1
                # What just failed would fail again at once; and leaders take a moment to be elected.
                pause = backoff_ms(max(failures, 1), self.retry_backoff_ms, self.retry_backoff_max_ms)
                await asyncio.sleep(pause / 1000)
        finally:
            self._refresher = None

    def _learn(self, news: ClusterMetadata) -> None:
        now = asyncio.get_running_loop().time()
        self.cluster_id = news.cluster_id
        self.controller_id = news.controller_id
        if news.nodes:
            self.nodes = dict(news.nodes)
        for name, topic in news.topics.items():
            self.topics[name] = merge_topic(self.topics.get(name), topic)
            self._fetched_at[name] = now
            self._stale.discard(name)
        addresses = {(node.host, node.port) for node in self.nodes.values()}.union(self.bootstrap)
        for key in [key for key in self._links if key[0] not in addresses]:
            gone = self._links.pop(key)
            if gone.connection is not None:
                gone.connection.close()
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _is_old(self, topic: str) -> bool:
        age = asyncio.get_running_loop().time() - self._fetched_at.get(topic, float("-inf"))
        return age * 1000 > self.metadata_max_age_ms

    def _start_age_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._age_timer = loop.call_later(self.metadata_max_age_ms / 1000, self._on_age)

    def _on_age(self) -> None:
        self._age_timer = None
        if self.closed:
            return
        if self._watched:
            self.invalidate(self._watched)
            self._start_age_timer()


def _topic_error_text(name: str, code: ErrorCode) -> str:
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"topic {name!r} does not exist"
    if code is ErrorCode.INVALID_TOPIC_EXCEPTION:
        return f"{name!r} is not a legal topic name"
    return f"topic {name!r}: {code.name}"


def client_for(settings: ProducerSettings | ConsumerSettings, **more: Any) -> ClusterClient:
    """A client as a producer's or a consumer's settings want it."""
    if settings.bootstrap_servers is None:
        raise SettingsError("bootstrap.servers is missing: give at least one host:port")
    return ClusterClient(
        settings.bootstrap_servers,
        client_id=settings.client_id,
        request_timeout_ms=settings.request_timeout_ms,
        connect_timeout_ms=settings.socket_connection_setup_timeout_ms,
        metadata_max_age_ms=settings.metadata_max_age_ms,
        retry_backoff_ms=settings.retry_backoff_ms,
        retry_backoff_max_ms=settings.retry_backoff_max_ms,
        reconnect_backoff_ms=settings.reconnect_backoff_ms,
        reconnect_backoff_max_ms=settings.reconnect_backoff_max_ms,
        **more,
    )
