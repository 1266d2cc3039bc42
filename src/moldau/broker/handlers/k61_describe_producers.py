"""DescribeProducers (key 61), version 0: the producers that a partition remembers (KIP-664)."""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse


async def handle(request: DescribeProducersRequest, context: Context) -> DescribeProducersResponse:
    topics = []
    for topic in request.topics:
        answers = []
        for index in topic.partition_indexes:
            answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
            try:
                if context.node.replicas.by_name(topic.name) is None:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
                    )
                partition = context.node.replicas.require(topic.name, index)
                partition.require_leader()
                answer.active_producers = [
                    DescribeProducersResponse.ProducerState(
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                        last_sequence=producer.last_sequence,
                        last_timestamp=producer.last_timestamp,
                        coordinator_epoch=producer.coordinator_epoch,
                        current_txn_start_offset=producer.transaction_first_offset,
                    )
                    for producer in partition.log.producers.active()
                ]
            except KafkaError as refusal:
                answer.error_code = refusal.code
                answer.error_message = refusal.message
            answers.append(answer)
        topics.append(DescribeProducersResponse.TopicResponse(topic.name, answers))
    return DescribeProducersResponse(topics=topics)
