"""What an answer to a Produce request does to its batches: delivered, refused for good, or sent again.

`accumulator` judges a batch by its error code; here the verdict is carried out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from moldau.client.accumulator import UNKNOWN_OFFSET, Batch, PartitionQueue, Verdict
from moldau.client.cluster import LEADER_ERRORS, ClusterClient, backoff_ms
from moldau.client.deliveries import Deliveries
from moldau.client.settings import ProducerSettings
from moldau.client.transaction_coordinator import CONCURRENT_BACKOFF_MS
from moldau.client.transactions import Transactions
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.batches import NO_PRODUCER_ID
from moldau.protocol.messages.produce import ProduceResponse

logger = logging.getLogger(__name__)

Taken = list[tuple[PartitionQueue, Batch]]


class ProduceAnswers:
    def __init__(
        self,
        client: ClusterClient,
        settings: ProducerSettings,
        deliveries: Deliveries,
        transactions: Transactions | None,
        *,
        ready: dict[PartitionQueue, None],
        wake: Callable[[], None],
        forget_producer_id: Callable[[], None],
    ) -> None:
        """A queue with something to send again goes into `ready`."""
        self._client = client
        self._settings = settings
        self._deliveries = deliveries
        self._transactions = transactions
        self._ready = ready
        self._wake = wake
        self._forget_producer_id = forget_producer_id

    def on_response(self, taken: Taken, topics_by_id: dict[bytes, str], response: ProduceResponse) -> None:
        by_partition = {
            (topics_by_id.get(topic.topic_id, "") if topics_by_id else topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        stale: set[str] = set()
        for queue, batch in taken:
            partition = by_partition.get((queue.topic, queue.partition))
            if partition is None:
                partition = ProduceResponse.PartitionProduceResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
                partition.error_message = "the answer does not mention the partition"
            code = ErrorCode(partition.error_code)
            self._settle(queue, batch, code, partition)
            if code in LEADER_ERRORS:
                hint = partition.current_leader
                if hint is not None and hint.leader_id >= 0:
                    self._client.note_leader(
                        queue.topic, queue.partition, hint.leader_id, hint.leader_epoch, response.node_endpoints
                    )
                else:
                    stale.add(queue.topic)
        if stale:
            self._client.invalidate(stale)
        self._wake()

    def on_failure(self, taken: Taken, error: Exception) -> None:
        """The request may have been written or not: every batch is sent again as it is."""
        fatal = isinstance(error, KafkaError) and not error.code.retriable
        for queue, batch in taken:
            if fatal or batch.done:
                queue.on_lost(batch)
                self._deliveries.finish(batch, error)
            else:
                self._retry(queue, batch, error)
        self._client.invalidate({queue.topic for queue, _ in taken})
        self._wake()

    def _settle(
        self, queue: PartitionQueue, batch: Batch, code: ErrorCode, partition: ProduceResponse.PartitionProduceResponse
    ) -> None:
        verdict = queue.judge(batch, code)
        if verdict is Verdict.DELIVERED:
            queue.on_delivered(batch)
            if not batch.done:
                duplicate = code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
                batch.complete(UNKNOWN_OFFSET if duplicate else partition.base_offset, partition.log_append_time_ms)
                self._deliveries.finish(batch, None)
            return
        place = f"{queue.topic}-{queue.partition}"
        reason = f": {partition.error_message}" if partition.error_message else ""
        error = KafkaError(code, f"{place}: {code.name}{reason}")
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            size = f"a batch of {batch.count} records and {len(batch.buffer)} bytes"
            limit = f"lower batch.size={self._settings.batch_bytes_max}"
            error = KafkaError(code, f"{place}: {size} exceeds the topic's max.message.bytes: {limit}")
        if batch.done or verdict is Verdict.FAILED:
            queue.on_lost(batch)
            self._deliveries.finish(batch, error, _record_errors(place, code, partition))
            return
        self._retry(queue, batch, error)
        if verdict is Verdict.NEW_EPOCH:
            queue.start_epoch()
        elif verdict is Verdict.NEW_ID:
            queue.adopt(NO_PRODUCER_ID, -1)
        if verdict is not Verdict.RETRY:
            logger.info(
                "producer_epoch_started topic=%s partition=%d epoch=%d reason=%s",
                queue.topic,
                queue.partition,
                queue.producer_epoch,
                code.name,
            )
            if queue.producer_id == NO_PRODUCER_ID:
                self._forget_producer_id()

    def _retry(self, queue: PartitionQueue, batch: Batch, error: Exception) -> None:
        queue.last_error = error
        pointless = self._transactions is not None and self._transactions.sends_nothing
        if batch.attempts > self._settings.retries or pointless:
            queue.on_lost(batch)
            self._deliveries.finish(batch, error)
            return
        queue.failures += 1
        delay = backoff_ms(queue.failures, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        if isinstance(error, KafkaError) and error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            delay = min(delay, CONCURRENT_BACKOFF_MS)
        queue.retry_at = asyncio.get_running_loop().time() + delay / 1000
        queue.put_back(batch)
        self._ready[queue] = None


def _record_errors(
    place: str, code: ErrorCode, partition: ProduceResponse.PartitionProduceResponse
) -> dict[int, Exception]:
    """KIP-467: the records that made the broker refuse the batch hear why."""
    return {
        record.batch_index: KafkaError(
            code, f"{place}: {record.batch_index_error_message or partition.error_message or code.name}"
        )
        for record in partition.record_errors
    }
