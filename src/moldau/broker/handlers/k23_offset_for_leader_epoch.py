"""OffsetForLeaderEpoch (key 23), versions 2 to 4: where an epoch ended, for clients that detect truncation (KIP-320).

The largest epoch not above the one asked for, and the start of the next epoch or the log's end; -1 and -1 when there is
none (trap 21).
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

NO_EPOCH = -1


async def handle(request: OffsetForLeaderEpochRequest, context: Context) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answer = OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition)
            try:
                partition = context.node.replicas.require(topic.topic, wanted.partition)
                partition.require_leader(wanted.current_leader_epoch)
                if wanted.current_leader_epoch < NO_EPOCH:
                    raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
                log = partition.log
                answer.leader_epoch, answer.end_offset = log.epochs.end_offset_for(wanted.leader_epoch, log.end_offset)
            except KafkaError as refusal:
                answer.error_code = refusal.code
            answers.append(answer)
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic.topic, answers))
    return OffsetForLeaderEpochResponse(topics=topics)
