"""A transaction's requests: coordinators found, attempts until one is answered, errors as `transactions` sees them.

Whoever calls bounds the time: an attempt that may be made again is made again for ever. Answers may be lost after the
coordinator acted, and every request here may be sent twice: coordinators know their own retries by id and epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moldau.client.cluster import FAULTS, ClusterClient, backoff_ms
from moldau.client.coordinators import KeyType
from moldau.client.errors import TransactionAbortable, TransactionFatal
from moldau.client.group_coordinator import MOVED, NO_EPOCH, GroupMetadata, OffsetAndMetadata
from moldau.client.group_protocol import by_topic
from moldau.client.transactions import NO_IDENTITY, Identity, Severity, severity_of, transaction_error
from moldau.kernel import ErrorCode, KafkaError, TopicPartition
from moldau.protocol.batches import NO_PRODUCER_ID
from moldau.protocol.message import Message
from moldau.protocol.messages.registry import ApiKey

# The transaction before is still being completed: its markers take milliseconds.
CONCURRENT_BACKOFF_MS = 20
_FIND_BATCHED_FROM = 4
_BUMP_FROM = 3
# The last versions of the generation that adds partitions before it writes to them.
_ADD_PARTITIONS_MAX = 3
_TXN_OFFSET_COMMIT_EXPLICIT_MAX = 4
_END_TXN_EXPLICIT_MAX = 4
_OFFSET_EPOCH_FROM = 2
_MEMBER_FROM = 3

logger = logging.getLogger(__name__)


class TransactionCoordinator:
    """The brokers that keep one transactional id, and the groups whose offsets it commits."""

    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
    ) -> None:
        self.transactional_id = transactional_id
        self.last_error: Exception | None = None  # what an attempt met that is made again
        self._client = client
        self._transaction_timeout_ms = transaction_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._nodes: dict[tuple[KeyType, str], int] = {}

    # -- requests ------------------------------------------------------------------------------------------------------

    async def init(self, current: Identity = NO_IDENTITY) -> Identity:
        """A producer id: fences whoever had it before. With the current one, the next epoch of it (KIP-360)."""
        from moldau.protocol.messages.init_producer_id import InitProducerIdRequest

        request = InitProducerIdRequest(self.transactional_id, self._transaction_timeout_ms, *current)
        response = await self._ask(
            request,
            lambda answer: [answer.error_code],
            "asking for a producer id",
            version_min=0 if current == NO_IDENTITY else _BUMP_FROM,
        )
        return Identity(response.producer_id, response.producer_epoch)

    async def add_partitions(self, who: Identity, partitions: Iterable[TopicPartition]) -> None:
        from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

        asked = sorted(partitions)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=who.producer_id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, numbers)
                for topic, numbers in by_topic(asked).items()
            ],
        )
        await self._ask(
            request,
            lambda answer: [
                one.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for one in topic.results_by_partition
            ],
            f"adding {', '.join(map(str, asked))}",
            version_max=_ADD_PARTITIONS_MAX,
        )

    async def add_offsets(self, who: Identity, group_id: str) -> None:
        from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest

        request = AddOffsetsToTxnRequest(self.transactional_id, who.producer_id, who.epoch, group_id)
        await self._ask(request, lambda answer: [answer.error_code], f"adding the offsets of group {group_id!r}")

    async def commit_offsets(
        self,
        who: Identity,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        is_explicit: bool,
    ) -> None:
        """Give the offsets to the group's coordinator, which keeps them pending until the transaction ends."""
        from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

        def build(version: int) -> TxnOffsetCommitRequest:
            request = TxnOffsetCommitRequest(
                self.transactional_id,
                group.group_id,
                who.producer_id,
                who.epoch,
                topics=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                        topic,
                        [
                            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                                number,
                                offsets[TopicPartition(topic, number)].offset,
                                offsets[TopicPartition(topic, number)].leader_epoch
                                if version >= _OFFSET_EPOCH_FROM
                                else NO_EPOCH,
                                offsets[TopicPartition(topic, number)].metadata,
                            )
                            for number in numbers
                        ],
                    )
                    for topic, numbers in by_topic(offsets).items()
                ],
            )
            if version >= _MEMBER_FROM:
                request.generation_id = group.generation
                request.member_id = group.member_id
                request.group_instance_id = group.instance_id
            return request

        await self._ask(
            TxnOffsetCommitRequest,
            lambda answer: [one.error_code for topic in answer.topics for one in topic.partitions],
            f"committing offsets of group {group.group_id!r}",
            build=build,
            key=(KeyType.GROUP, group.group_id),
            version_max=_TXN_OFFSET_COMMIT_EXPLICIT_MAX if is_explicit else None,
        )

    async def end(self, who: Identity, *, committed: bool, is_explicit: bool) -> Identity:
        """End the transaction; the answer is under which identity to go on."""
        from moldau.protocol.messages.end_txn import EndTxnRequest

        request = EndTxnRequest(self.transactional_id, who.producer_id, who.epoch, committed)
        response = await self._ask(
            request,
            lambda answer: [answer.error_code],
            "committing" if committed else "aborting",
            version_max=_END_TXN_EXPLICIT_MAX if is_explicit else None,
        )
        if response.producer_id == NO_PRODUCER_ID:
            return who
        return Identity(response.producer_id, response.producer_epoch)

    # -- attempts ------------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        request: Message | type[Message],
        codes_of: Callable[[Any], Iterable[int]],
        what: str,
        *,
        build: Callable[[int], Message] | None = None,
        key: tuple[KeyType, str] | None = None,
        version_min: int = 0,
        version_max: int | None = None,
    ) -> Any:
        """Attempts until an answer is final; raises what `transactions` makes of a refusal."""
        api_key = ApiKey(request.API_KEY)
        where = key or (KeyType.TRANSACTION, self.transactional_id)
        failures = 0
        while True:
            refusal: ErrorCode | None = None
            try:
                connection = await self._client.connection_to(await self._node(where))
                version = connection.version_for(api_key, version_max=version_max)
                if version < version_min:
                    raise TransactionFatal(
                        ErrorCode.UNSUPPORTED_VERSION,
                        f"transactional.id {self.transactional_id!r}: the broker is too old to go on after a lost "
                        "batch; close this producer and start a new one",
                    )
                message = build(version) if build is not None else request
                assert isinstance(message, Message)
                response = await connection.request(message, version=version)
            except FAULTS as error:
                self._nodes.pop(where, None)
                self.last_error = error
            except KafkaError as error:
                # Of finding the way; the answer itself is looked at below.
                if isinstance(error, TransactionAbortable | TransactionFatal):
                    raise
                if not error.code.retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                    raise transaction_error(api_key, error.code, self.transactional_id, f"{what}: {error}") from error
                self._nodes.pop(where, None)
                self.last_error = error
            else:
                codes = [ErrorCode(code) for code in codes_of(response) if code]
                if not codes:
                    self.last_error = None
                    return response
                # One refusal for good outweighs others that may pass.
                final = [code for code in codes if severity_of(api_key, code) is not Severity.RETRY]
                if final:
                    worst = [code for code in final if severity_of(api_key, code) is Severity.FATAL]
                    named = [code for code in final if code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
                    raise transaction_error(api_key, (worst or named or final)[0], self.transactional_id, what)
                refusal = codes[0]
                if refusal in MOVED or (refusal is ErrorCode.REQUEST_TIMED_OUT and where[0] == KeyType.GROUP):
                    self._nodes.pop(where, None)
                self.last_error = KafkaError(refusal, f"{what}: {refusal.name}")
            failures += 1
            delay = backoff_ms(failures, self._retry_backoff_ms, self._retry_backoff_max_ms)
            if refusal is ErrorCode.CONCURRENT_TRANSACTIONS:
                delay = min(delay, CONCURRENT_BACKOFF_MS)
            await asyncio.sleep(delay / 1000)

    async def _node(self, where: tuple[KeyType, str]) -> int:
        known = self._nodes.get(where)
        if known is not None:
            return known
        from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest

        key_type, key = where
        connection = await self._client.any_connection()
        if connection.version_for(FindCoordinatorRequest.API_KEY) >= _FIND_BATCHED_FROM:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            found = (await connection.request(request)).coordinators[0]
        else:
            found = await connection.request(FindCoordinatorRequest(key=key, key_type=key_type))
        if found.error_code:
            code = ErrorCode(found.error_code)
            if severity_of(ApiKey.FIND_COORDINATOR, code) is Severity.RETRY:
                raise KafkaError(code, f"{key!r} has no coordinator now: {found.error_message or code.name}")
            raise transaction_error(
                ApiKey.FIND_COORDINATOR, code, self.transactional_id, f"looking for the coordinator of {key!r}"
            )
        logger.info("coordinator_found key=%s broker=%d", key, found.node_id)
        self._nodes[where] = int(found.node_id)
        return self._nodes[where]
