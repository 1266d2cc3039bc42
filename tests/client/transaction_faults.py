"""What a proxy does to a transactional producer, and what it hears of one."""

from __future__ import annotations

from typing import Any

from moldau.kernel import ErrorCode
from moldau.protocol.batches import read_header
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from moldau.protocol.messages.end_txn import EndTxnResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdResponse
from moldau.protocol.messages.registry import ApiKey
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from tests.client.proxy import Cut
from tests.client.test_producer import refuse


def answer_code(api_key: int, code: ErrorCode, message: Any) -> Any:
    """A refusal in the broker's place."""
    if api_key == ApiKey.PRODUCE:
        return refuse(message, code)
    if api_key == ApiKey.END_TXN:
        return EndTxnResponse(error_code=code)
    if api_key == ApiKey.INIT_PRODUCER_ID:
        return InitProducerIdResponse(error_code=code)
    if api_key == ApiKey.TXN_OFFSET_COMMIT:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    topic.name,
                    [
                        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(one.partition_index, int(code))
                        for one in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )
    assert api_key == ApiKey.ADD_PARTITIONS_TO_TXN
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(number, int(code))
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


class Fault:
    """Does something to the first so many requests, or answers, of one kind."""

    def __init__(self, api_key: ApiKey, times: int, *, code: ErrorCode | None = None, lose: bool = False) -> None:
        self.api_key, self.left, self.code, self.lose = api_key, times, code, lose

    def on_request(self, api_key: int, message: Any) -> Any:
        if api_key != self.api_key or not self.left or self.code is None:
            return None
        self.left -= 1
        return answer_code(api_key, self.code, message)

    def on_response(self, api_key: int, message: Any) -> None:
        if api_key == self.api_key and self.left and self.lose:
            self.left -= 1
            raise Cut


class Heard:
    """Which requests went by, and under which epoch."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.epochs: list[tuple[int, int]] = []  # and sequences, once each: a slow broker sees some of them again
        self.transactional_ids: set[str | None] = set()
        self.topics: set[str] = set()

    def __call__(self, api_key: int, message: Any) -> None:
        self.keys.append(api_key)
        if api_key == ApiKey.PRODUCE:
            self.transactional_ids.add(message.transactional_id)
            for topic in message.topic_data:
                self.topics.add(topic.name)
                for one in topic.partition_data:
                    header = read_header(one.records)
                    assert header.is_transactional
                    if (header.producer_epoch, header.base_sequence) not in self.epochs:
                        self.epochs.append((header.producer_epoch, header.base_sequence))
