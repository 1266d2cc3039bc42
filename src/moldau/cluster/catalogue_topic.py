"""The configuration keys of topics, groups and client metrics: Apache Kafka 4.3.1's facts, in Moldau's words.

Data only, like `catalogue_broker`. A row: name, kind, default, importance, allowed values, why Moldau does not act on
it, documentation. All of these keys can be changed at run time.
"""

from __future__ import annotations

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

# Two lines per key keep the table readable; the formatter would make ten of them.
# fmt: off
TOPIC_ROWS = (
    ("cleanup.policy", "LIST", "delete", "MEDIUM", "any:compact|delete", "",
     'What happens to old segments: "delete" drops them by age or size, "compact" keeps the last record of each'
     " key, both together do both, empty keeps everything."),
    ("compression.gzip.level", "INT", "-1", "MEDIUM", "1..9|-1", "",
     "Level used where the broker itself compresses with gzip: 1 is quickest, 9 smallest, -1 the library's "
     "choice."),
    ("compression.lz4.level", "INT", "9", "MEDIUM", "1..17", "",
     "Level used where the broker itself compresses with lz4: a higher one is smaller and slower."),
    ("compression.type", "STRING", "producer", "MEDIUM", "=uncompressed|zstd|lz4|snappy|gzip|producer", "",
     'Codec that batches are stored with. "producer" keeps what the producer sent; any other name recompresses '
     "what differs."),
    ("compression.zstd.level", "INT", "3", "MEDIUM", "-131072..22", "",
     "Level used where the broker itself compresses with zstd: a higher one is smaller and slower, negative "
     "ones are quickest."),
    ("delete.retention.ms", "LONG", "86400000", "MEDIUM", "0..", "",
     "Milliseconds that tombstones stay readable after compaction, so that a reader from the start sees every "
     "deletion."),
    ("file.delete.delay.ms", "LONG", "60000", "MEDIUM", "0..", "",
     "Milliseconds between marking a file as deleted and removing it from disk."),
    ("flush.messages", "LONG", "9223372036854775807", "MEDIUM", "1..", "",
     "The log is forced to disk after this many records. The usual choice is to leave that to replication and "
     "the system."),
    ("flush.ms", "LONG", "9223372036854775807", "MEDIUM", "0..", "",
     "A record is forced to disk at the latest after this many milliseconds."),
    ("follower.replication.throttled.replicas", "LIST", "", "MEDIUM", "throttled-replicas", "",
     "Replicas whose replication is throttled on the follower's side, as partition:broker pairs, or \"*\" for "
     "all."),
    ("index.interval.bytes", "INT", "4096", "MEDIUM", "0..", "",
     "A segment's indexes get an entry for about every so many bytes of log. Fewer bytes make lookups quicker "
     "and indexes larger."),
    ("internal.segment.bytes", "INT", None, "MEDIUM", "", "",
     "Size in bytes at which a segment is closed, without the lower bound of segment.bytes; for tests."),
    ("leader.replication.throttled.replicas", "LIST", "", "MEDIUM", "throttled-replicas", "",
     "Replicas whose replication is throttled on the leader's side, as partition:broker pairs, or \"*\" for all."),
    ("local.retention.bytes", "LONG", "-2", "MEDIUM", "-2..", "tiered",
     "Bytes per partition that stay on local disk besides remote storage; -2 means as much as retention.bytes."),
    ("local.retention.ms", "LONG", "-2", "MEDIUM", "-2..", "tiered",
     "Milliseconds that segments stay on local disk besides remote storage; -2 means as long as retention.ms."),
    ("max.compaction.lag.ms", "LONG", "9223372036854775807", "MEDIUM", "1..", "",
     "Longest time in milliseconds that a record stays out of compaction's reach."),
    ("max.message.bytes", "INT", "1048588", "MEDIUM", "0..", "",
     "Size in bytes of the largest record batch that is taken, after compression."),
    ("message.timestamp.after.max.ms", "LONG", "3600000", "MEDIUM", "0..", "",
     "How far, in milliseconds, a record's time may lie ahead of the broker's clock before the record is "
     "refused. Only for CreateTime."),
    ("message.timestamp.before.max.ms", "LONG", "9223372036854775807", "MEDIUM", "0..", "",
     "How far, in milliseconds, a record's time may lie behind the broker's clock before the record is refused."
     " Only for CreateTime."),
    ("message.timestamp.type", "STRING", "CreateTime", "MEDIUM", "=CreateTime|LogAppendTime", "",
     "Whether records keep the producer's time (CreateTime) or get the broker's when they are appended "
     "(LogAppendTime)."),
    ("min.cleanable.dirty.ratio", "DOUBLE", "0.5", "MEDIUM", "0..1", "",
     "Share of not yet compacted bytes from which the log is compacted. A higher one compacts less often and "
     "wastes more space."),
    ("min.compaction.lag.ms", "LONG", "0", "MEDIUM", "0..", "",
     "Shortest time in milliseconds that a record stays uncompacted."),
    ("min.insync.replicas", "INT", "1", "MEDIUM", "1..", "",
     "With acks=all, a write is refused while fewer replicas than this are in sync."),
    ("preallocate", "BOOLEAN", "false", "MEDIUM", "", "",
     "Whether a new segment takes its full size on disk at once."),
    ("remote.log.copy.disable", "BOOLEAN", "false", "MEDIUM", "", "tiered",
     "Whether segments are no longer copied to remote storage."),
    ("remote.log.delete.on.disable", "BOOLEAN", "false", "MEDIUM", "", "tiered",
     "Whether remote segments are deleted when remote storage is switched off for the topic."),
    ("remote.storage.enable", "BOOLEAN", "false", "MEDIUM", "", "tiered",
     "Whether segments are also kept in remote storage."),
    ("retention.bytes", "LONG", "-1", "MEDIUM", "", "",
     "Size in bytes from which a partition's oldest segments are deleted; -1 means no limit."),
    ("retention.ms", "LONG", "604800000", "MEDIUM", "-1..", "",
     "Milliseconds that records are kept before their segment is deleted; -1 means for ever."),
    ("segment.bytes", "INT", "1073741824", "MEDIUM", "1048576..", "",
     "Size in bytes at which a segment is closed and the next one begins. Only closed segments are deleted or "
     "compacted."),
    ("segment.index.bytes", "INT", "10485760", "MEDIUM", "4..", "",
     "Largest size in bytes of a segment's offset index. A full index closes the segment."),
    ("segment.jitter.ms", "LONG", "0", "MEDIUM", "0..", "",
     "Most milliseconds taken at random from segment.ms, so that segments of many partitions do not close at "
     "once."),
    ("segment.ms", "LONG", "604800000", "MEDIUM", "1..", "",
     "Milliseconds after which a segment is closed even if it is small, so that retention and compaction can "
     "reach it."),
    ("unclean.leader.election.enable", "BOOLEAN", "false", "MEDIUM", "", "",
     "Whether a replica that is not in sync may lead when no other is left, at the price of lost records."),
)

# Kafka takes it on topics, but DescribeConfigs does not name it.
TOPIC_UNLISTED = frozenset(("internal.segment.bytes",))

# Where a topic's default comes from: the first of these broker keys that is set, times the factor.
TOPIC_SYNONYMS = {
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    "max.message.bytes": (("message.max.bytes", 1),),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "preallocate": (("log.preallocate", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
}

GROUP_ROWS = (
    ("consumer.assignment.interval.ms", "INT", "1000", "MEDIUM", "0..", "later",
     "Shortest time in milliseconds between two target assignments of the consumer group."),
    ("consumer.heartbeat.interval.ms", "INT", "5000", "MEDIUM", "1..", "later",
     "Milliseconds between heartbeats that members of the consumer group are told to keep."),
    ("consumer.session.timeout.ms", "INT", "45000", "MEDIUM", "1..", "later",
     "A member of the consumer group that was silent for this many milliseconds is removed."),
    ("share.assignment.interval.ms", "INT", "1000", "MEDIUM", "0..", "later",
     "Shortest time in milliseconds between two target assignments of the share group."),
    ("share.auto.offset.reset", "STRING", "latest", "MEDIUM", "offset-reset", "later",
     "Where a share group without a position starts: earliest, latest, or by_duration: and how far back."),
    ("share.delivery.count.limit", "INT", "5", "MEDIUM", "2..", "later",
     "How often a record is delivered to the share group before it is given up."),
    ("share.heartbeat.interval.ms", "INT", "5000", "MEDIUM", "1..", "later",
     "Milliseconds between heartbeats that members of the share group are told to keep."),
    ("share.isolation.level", "STRING", "read_uncommitted", "MEDIUM", "=read_committed|read_uncommitted", "later",
     "Whether the share group reads only committed transactional records or all."),
    ("share.partition.max.record.locks", "INT", "2000", "MEDIUM", "100..", "later",
     "Most records of one partition that the share group may hold locked at a time."),
    ("share.record.lock.duration.ms", "INT", "30000", "MEDIUM", "1000..", "later",
     "Milliseconds that a record delivered to the share group stays locked for its consumer."),
    ("share.renew.acknowledge.enable", "BOOLEAN", "true", "MEDIUM", "", "later",
     "Whether a consumer of the share group may renew the lock on a record that it works on."),
    ("share.session.timeout.ms", "INT", "45000", "MEDIUM", "1..", "later",
     "A member of the share group that was silent for this many milliseconds is removed."),
    ("streams.assignment.interval.ms", "INT", "1000", "MEDIUM", "0..", "later",
     "Shortest time in milliseconds between two target assignments of the streams group."),
    ("streams.heartbeat.interval.ms", "INT", "5000", "MEDIUM", "1..", "later",
     "Milliseconds between heartbeats that members of the streams group are told to keep."),
    ("streams.initial.rebalance.delay.ms", "INT", "3000", "MEDIUM", "0..", "later",
     "How many milliseconds the empty streams group waits for more members before its first assignment."),
    ("streams.num.standby.replicas", "INT", "0", "MEDIUM", "0..", "later",
     "Number of standby copies of every stateful task of the streams group."),
    ("streams.session.timeout.ms", "INT", "45000", "MEDIUM", "1..", "later",
     "A member of the streams group that was silent for this many milliseconds is removed."),
)

# A group's default is this broker key's value; the keys that are missing here have a default of their own.
GROUP_SYNONYMS = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
}

CLIENT_METRICS_ROWS = (
    ("interval.ms", "INT", "300000", "MEDIUM", "100..3600000", "telemetry",
     "Milliseconds between two pushes of metrics by a subscribed client."),
    ("match", "LIST", "", "MEDIUM", "any", "telemetry",
     "Which clients the subscription is for, as property=pattern pairs; empty means all."),
    ("metrics", "LIST", "", "MEDIUM", "any", "telemetry",
     "Prefixes of the metrics that subscribed clients push; empty means none."),
)
# fmt: on
