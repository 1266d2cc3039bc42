"""ListOffsets (key 2), versions 1 to 11.

Finds an offset by timestamp, or one of the named ones: -1 latest (the high watermark, or the last stable offset for
read_committed), -2 earliest, -3 the record with the largest timestamp (version 7), -4 earliest local (8), -5 latest
tiered (9), -6 earliest pending upload (11). Without tiered storage everything is local: -4 is the earliest, -5 and -6
answer -1. A timestamp later than every record answers offset -1.
- A new leader that cannot tell yet what the last one committed answers the latest offset, and timestamps beyond what it
  knows, with OFFSET_NOT_AVAILABLE (KIP-207), before version 5 with LEADER_NOT_AVAILABLE: the latest offset never falls.
- A replica asks without isolation: its latest is the log's end.
Versions: 2 isolation levels; 4 leader epochs (trap 20); 10 a timeout for remote storage, which never applies.
"""

from __future__ import annotations

from collections import Counter

from moldau.broker.dispatch import Context
from moldau.broker.partition import Partition
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
LEADER_EPOCH_VERSION_MIN = 4
_VERSION_MIN = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
OFFSET_NOT_AVAILABLE_VERSION_MIN = 5
NO_EPOCH = -1

PartitionResponse = ListOffsetsResponse.ListOffsetsPartitionResponse


async def handle(request: ListOffsetsRequest, context: Context) -> ListOffsetsResponse:
    topics = []
    for topic in request.topics:
        # A partition that is named twice is refused once.
        times_named = Counter(each.partition_index for each in topic.partitions)
        answers = []
        for each in {each.partition_index: each for each in topic.partitions}.values():
            answer = PartitionResponse(partition_index=each.partition_index)
            try:
                if times_named[each.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                partition = context.node.replicas.require(topic.name, each.partition_index)
                leader = partition.require_leader(each.current_leader_epoch)
                if each.current_leader_epoch < NO_EPOCH:
                    raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
                end = (
                    partition.log.end_offset
                    if request.replica_id >= 0
                    else partition.visible_end(request.isolation_level)
                )
                answer.timestamp, answer.offset, leader_epoch = _find(partition, each.timestamp, end, context.version)
                if (
                    not leader.knows_latest_offset
                    and request.replica_id < 0
                    and (
                        each.timestamp == LATEST
                        or (answer.offset < 0 and (each.timestamp >= 0 or each.timestamp == MAX_TIMESTAMP))
                    )
                ):
                    raise KafkaError(
                        ErrorCode.OFFSET_NOT_AVAILABLE
                        if context.version >= OFFSET_NOT_AVAILABLE_VERSION_MIN
                        else ErrorCode.LEADER_NOT_AVAILABLE
                    )
                if context.version >= LEADER_EPOCH_VERSION_MIN:
                    answer.leader_epoch = leader_epoch
            except KafkaError as refusal:
                answer = PartitionResponse(partition_index=each.partition_index, error_code=refusal.code)
            answers.append(answer)
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(topic.name, answers))
    return ListOffsetsResponse(topics=topics)


def _find(partition: Partition, timestamp: int, visible_end: int, version: int) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch)."""
    log = partition.log
    if version < _VERSION_MIN.get(timestamp, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if timestamp == LATEST:
        return -1, visible_end, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        epoch = log.epochs.epoch_for_offset(log.start_offset)
        return -1, log.start_offset, epoch
    if timestamp == MAX_TIMESTAMP:
        newest = log.max_timestamp()
        if newest is None or newest[0] >= visible_end:
            return -1, -1, NO_EPOCH
        offset, found = newest
        return found, offset, log.epochs.epoch_for_offset(offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp < 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    result = log.offset_for_timestamp(timestamp)
    if result is None or result[0] >= visible_end:
        return -1, -1, -1
    offset, found, epoch = result
    return found, offset, epoch
