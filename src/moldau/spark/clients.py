"""One event loop and one client per cluster in each Python process of Spark.

Spark reuses its Python workers from task to task, and connections are worth keeping: a task that begins finds the
client of the one before it. A process that was forked has none of its parent's.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from moldau.client import ClusterClient, ConsumerSettings, LoopThread

T = TypeVar("T")

CLIENT_ID = "moldau-spark"


@dataclass(frozen=True, slots=True)
class ClientTimes:
    """A client's settings that a query may choose; Kafka's defaults."""

    client_id: str = CLIENT_ID
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    connect_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000

    @classmethod
    def of(cls, settings: ConsumerSettings) -> ClientTimes:
        return cls(
            CLIENT_ID
            if settings.client_id == ConsumerSettings.__dataclass_fields__["client_id"].default
            else settings.client_id,
            settings.request_timeout_ms,
            settings.default_api_timeout_ms,
            settings.socket_connection_setup_timeout_ms,
            settings.retry_backoff_ms,
            settings.retry_backoff_max_ms,
            settings.reconnect_backoff_ms,
            settings.reconnect_backoff_max_ms,
        )


DEFAULT_TIMES = ClientTimes()

_lock = threading.Lock()
_loop: LoopThread | None = None
_clients: dict[tuple[str, ClientTimes], ClusterClient] = {}
_owner_pid = 0


def run(
    bootstrap: str,
    work: Callable[[ClusterClient], Coroutine[Any, Any, T]],
    timeout_s: float | None = None,
    *,
    times: ClientTimes = DEFAULT_TIMES,
) -> T:
    """Do `work` with this process's client of the cluster, on this process's loop, and wait for it."""

    async def with_client() -> T:
        return await work(_client_of(bootstrap, times))

    return process_loop().call(with_client(), timeout_s)


def begin(
    bootstrap: str, work: Callable[[ClusterClient], Coroutine[Any, Any, T]], *, times: ClientTimes = DEFAULT_TIMES
) -> Future[T]:
    """As `run`, without waiting."""

    async def with_client() -> T:
        return await work(_client_of(bootstrap, times))

    return asyncio.run_coroutine_threadsafe(with_client(), process_loop().loop)


def process_loop() -> LoopThread:
    global _loop, _owner_pid
    with _lock:
        if _loop is None or _owner_pid != os.getpid():
            _clients.clear()
            _loop = LoopThread("moldau-spark")
            _owner_pid = os.getpid()
        return _loop


def _client_of(bootstrap: str, times: ClientTimes) -> ClusterClient:
    client = _clients.get((bootstrap, times))
    if client is None or client.closed:
        client = _clients[bootstrap, times] = ClusterClient(
            bootstrap,
            client_id=times.client_id,
            request_timeout_ms=times.request_timeout_ms,
            api_timeout_ms=times.api_timeout_ms,
            connect_timeout_ms=times.connect_timeout_ms,
            retry_backoff_ms=times.retry_backoff_ms,
            retry_backoff_max_ms=times.retry_backoff_max_ms,
            reconnect_backoff_ms=times.reconnect_backoff_ms,
            reconnect_backoff_max_ms=times.reconnect_backoff_max_ms,
        )
    return client
