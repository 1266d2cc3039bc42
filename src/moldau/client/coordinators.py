"""Asking the coordinators of groups and of transactions: found by key, one request for all keys of a broker, and again
when they move."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from enum import IntEnum
from typing import TypeVar

from moldau.client.cluster import ClusterClient
from moldau.client.connection import Connection
from moldau.kernel import ErrorCode, KafkaError

COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_FIND_BATCHED_FROM = 4

T = TypeVar("T")
# A connection to a coordinator, its broker's number and its keys -> a value or a refusal for each.
Ask = Callable[[Connection, int, list[str]], Awaitable[dict[str, T | KafkaError]]]
# Key, error code and the broker's words -> the refusal as users read it.
Refusal = Callable[[str, int, str | None], KafkaError]


class KeyType(IntEnum):
    GROUP = 0
    TRANSACTION = 1


async def to_coordinators(
    client: ClusterClient,
    key_type: KeyType,
    keys: Iterable[str],
    ask: Ask[T],
    refusal_of: Refusal,
    *,
    repeat_sent: bool = True,
) -> dict[str, T | KafkaError]:
    """Ask each coordinator once for all its keys; again for keys that moved, or are still being loaded."""
    answers: dict[str, T | KafkaError] = {}
    asked = list(dict.fromkeys(keys))

    async def ask_node(node: int, some: list[str]) -> dict[str, T | KafkaError]:
        return await ask(await client.connection_to(node), node, some)

    async def attempt() -> None:
        left = [key for key in asked if key not in answers]
        by_node: dict[int, list[str]] = defaultdict(list)
        failure: BaseException | None = None
        for key, found in (await _find(client, key_type, left, refusal_of)).items():
            if not isinstance(found, KafkaError):
                by_node[found].append(key)
            elif found.code in COORDINATOR_ERRORS:
                failure = found
            else:
                answers[key] = found
        responses = await asyncio.gather(
            *(ask_node(node, some) for node, some in by_node.items()), return_exceptions=True
        )
        for response in responses:
            if isinstance(response, BaseException):
                failure = response
                continue
            for key, answer in response.items():
                if isinstance(answer, KafkaError) and answer.code in COORDINATOR_ERRORS:
                    failure = answer
                else:
                    answers[key] = answer
        if failure is not None:
            raise failure

    if asked:
        try:
            await client.retry(attempt, repeat_sent=repeat_sent)
        except KafkaError as refusal:
            if refusal.code not in COORDINATOR_ERRORS:
                raise
            return {key: answers.get(key, refusal) for key in asked}
    return {key: answers[key] for key in asked}


async def _find(
    client: ClusterClient, key_type: KeyType, keys: list[str], refusal_of: Refusal
) -> dict[str, int | KafkaError]:
    from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest

    connection = await client.any_connection()
    if connection.version_for(FindCoordinatorRequest.API_KEY) >= _FIND_BATCHED_FROM:
        response = await connection.request(FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys))
        found = [(one.key, one) for one in response.coordinators]
    else:
        requests = [connection.request(FindCoordinatorRequest(key, key_type)) for key in keys]
        found = list(zip(keys, await asyncio.gather(*requests), strict=True))
    return {
        key: refusal_of(key, one.error_code, one.error_message) if one.error_code else one.node_id for key, one in found
    }
