"""DescribeLogDirs (key 35), versions 1 to 5: what lies in which directory, and how full its disk is.

Null topics means all. Versions: 3 has a top-level error, 4 the disk's total and usable bytes (KIP-827), 5 whether the
directory is cordoned (never, here). A directory that failed is KAFKA_STORAGE_ERROR and holds nothing.
"""

from __future__ import annotations

from moldau.broker.dispatch import Context
from moldau.kernel import ErrorCode
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse


async def handle(request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
    wanted = (
        None
        if request.topics is None
        else {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    )
    results = []
    for directory in context.node.replicas.directories:
        topics: dict[str, list[DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
        for partition in context.node.replicas.in_directory(directory):
            if wanted is not None and (partition.topic, partition.index) not in wanted:
                continue
            topics.setdefault(partition.topic, []).append(
                DescribeLogDirsResponse.DescribeLogDirsPartition(partition.index, partition.log.size_bytes, 0, False)
            )
        total, usable = context.node.directories.space(directory.path)
        results.append(
            DescribeLogDirsResponse.DescribeLogDirsResult(
                log_dir=directory.path,
                topics=[
                    DescribeLogDirsResponse.DescribeLogDirsTopic(name, partitions)
                    for name, partitions in topics.items()
                ],
                total_bytes=total,
                usable_bytes=usable,
            )
        )
    results += [
        DescribeLogDirsResponse.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path, topics=[]
        )
        for directory in context.node.replicas.offline_directories
    ]
    return DescribeLogDirsResponse(results=results)
