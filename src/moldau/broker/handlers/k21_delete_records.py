"""DeleteRecords (key 21), versions 0 to 2: forget everything below an offset.

-1 means the high watermark; beyond it is OFFSET_OUT_OF_RANGE (trap 22). Below the start is no change. The new start is
checkpointed first and takes effect then, so that it survives a crash; a checkpoint that fails is KAFKA_STORAGE_ERROR.
A topic that only compacts refuses (POLICY_VIOLATION). Answered when the replicas that are alive begin there, too; when
they take longer than the request's timeout it is REQUEST_TIMED_OUT, and the new start holds all the same.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.broker.partition import Partition
from moldau.broker.reply import Reply
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse

TO_HIGH_WATERMARK = -1


async def handle(request: DeleteRecordsRequest, context: Context) -> DeleteRecordsResponse:
    replicas = context.node.replicas
    topics = []
    wishes: list[tuple[DeleteRecordsResponse.DeleteRecordsPartitionResult, Partition, int]] = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            result = DeleteRecordsResponse.DeleteRecordsPartitionResult(wanted.partition_index, -1)
            try:
                partition = replicas.require(topic.name, wanted.partition_index)
                leader = partition.require_leader()
                if not partition.log.config.delete:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION)
                offset = leader.high_watermark if wanted.offset == TO_HIGH_WATERMARK else wanted.offset
                if offset < 0 or offset > leader.high_watermark:
                    raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
                partition.start_wanted = max(partition.start_wanted, offset)
                wishes.append((result, partition, offset))
            except KafkaError as refusal:
                result.error_code = refusal.code
            results.append(result)
        topics.append(DeleteRecordsResponse.DeleteRecordsTopicResult(topic.name, results))
    try:
        await replicas.checkpoints.write()
    except OSError:
        for result, _, _ in wishes:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return DeleteRecordsResponse(topics=topics)
    waits: list[tuple[DeleteRecordsResponse.DeleteRecordsPartitionResult, Partition, Reply]] = []
    for result, partition, offset in wishes:
        try:
            partition.delete_records_before(offset)
            waits.append((result, partition, partition.when_start_is(offset)))
        except KafkaError as refusal:
            result.error_code = refusal.code

    def give_up() -> None:
        for _, _, reply in waits:
            if not reply.is_done:
                reply.give(KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    timer = context.node.clock.call_later(max(request.timeout_ms, 0), give_up)
    for result, partition, reply in waits:
        try:
            await reply
            result.low_watermark = partition.low_watermark
        except KafkaError as refusal:
            result.error_code = refusal.code
    timer.cancel()
    return DeleteRecordsResponse(topics=topics)
