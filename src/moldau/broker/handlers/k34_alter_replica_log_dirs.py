"""AlterReplicaLogDirs (key 34), versions 1 and 2: move replicas between this broker's directories.

A directory that the broker does not have is LOG_DIR_NOT_FOUND. The partition is copied and switched over between two
requests; when the answer leaves, it lives in the new directory. What fails leaves it in the old one, in service. Moves
of one partition are made one after the other.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import KafkaError
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse


async def handle(request: AlterReplicaLogDirsRequest, context: Context) -> AlterReplicaLogDirsResponse:
    results: dict[str, list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(index)
                try:
                    await context.node.move_replica(topic.name, index, directory.path)
                except KafkaError as refusal:
                    result.error_code = refusal.code
                results.setdefault(topic.name, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(name, partitions)
            for name, partitions in results.items()
        ]
    )
