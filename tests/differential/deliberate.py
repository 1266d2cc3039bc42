"""Where Moldau answers otherwise than Kafka on purpose. A step that meets one names it; nothing else may differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Deliberate:
    """Paths of an answer that may differ, and why."""

    paths: tuple[str, ...]
    reason: str


USABLE_AT_ONCE = Deliberate(
    ("topics.*.error_code", "topics.*.partitions", "topics.*.topic_id"),
    "an auto-created topic is there when the answer leaves; Kafka says LEADER_NOT_AVAILABLE and lets the client ask"
    " again",
)
FEATURES = Deliberate(
    ("supported_features", "finalized_features", "finalized_features_epoch"),
    "only levels whose promises are kept are advertised: share and streams groups are not served",
)
MARKER_WITHOUT_EPOCH = Deliberate(
    ("markers.*.topics.*.partitions.*.error_code",),
    "a marker of a negative epoch is INVALID_PRODUCER_EPOCH, older than what the partition has seen; Kafka trips over"
    " it with UNKNOWN_SERVER_ERROR",
)
TRANSACTION_NAMED_TWICE = Deliberate(
    ("results_by_transaction",),
    "a transactional id that one AddPartitionsToTxn names twice is judged twice, each time for its own partitions;"
    " Kafka answers both with the partitions of the last",
)
SERVED_KEYS = Deliberate(("api_keys",), "keys that are refused (see broker/api_table.py) are not advertised")
REFUSES_NOTHING = Deliberate(
    ("error_code", "topics.*.error_code", "topics.*.topic_authorized_operations"),
    "a topic that is asked for without a name is INVALID_REQUEST (Metadata) or INVALID_TOPIC_EXCEPTION"
    " (DescribeTopicPartitions); Kafka trips over it with UNKNOWN_SERVER_ERROR",
)
COLLIDES_WITHIN = Deliberate(
    tuple(
        f"topics.*.{field}"
        for field in ("error_code", "error_message", "num_partitions", "replication_factor", "configs", "topic_id")
    ),
    "two topics of one CreateTopics request whose names collide ('.' and '_') are refused like one that collides with"
    " an existing topic; Kafka looks at existing topics only",
)
UNKNOWN_KIND = Deliberate(
    ("results.*.error_message",),
    "DescribeConfigs of an unknown kind of resource says which; Kafka says that the client library is malformed",
)

COORDINATORS = Deliberate(
    ("error_message", "coordinators.*.error_message"),
    "FindCoordinator says that transactions and share groups are not served yet; Kafka knows them and says, of kinds"
    " that it does not know, that the client library is malformed",
)
PRODUCE_MESSAGES = Deliberate(
    ("responses.*.error_message", "responses.*.batch_index_error_message"),
    "every refused batch says why, in our own words; Kafka leaves most messages null, and its list of record errors"
    " repeats the record errors that stand beside it",
)

_REFUSED = tuple(f"responses.*.{field}" for field in ("error_code", "base_offset", "log_start_offset"))
TAKES_WHOLE_BATCHES_ONLY = Deliberate(
    _REFUSED,
    "bytes after the one batch that is allowed, and a batch that claims the broker's time, are refused; Kafka drops the"
    " bytes and clears the claim",
)
SAYS_WHAT_IS_WRONG = Deliberate(
    _REFUSED, "CORRUPT_MESSAGE and UNSUPPORTED_COMPRESSION_TYPE where Kafka fails with UNKNOWN_SERVER_ERROR"
)
RECORDS_STAY_CLOSED = Deliberate(
    _REFUSED,
    "the broker works per batch (DESIGN.md, principle 4): records are opened only where a topic's configuration demands"
    " it, so a batch with a valid checksum whose records contradict its header is stored; Kafka opens every batch",
)

WHOLE_BATCHES = Deliberate(
    ("responses.*.bytes_after_the_last_whole_batch",),
    "a fetch ends with a whole batch; Kafka cuts at the limit, and clients drop the rest",
)

HEARTBEATS = Deliberate(
    ("heartbeat_interval_ms",),
    "members of consumer groups (KIP-848) are told to ask every second, and every 200 ms while partitions change hands,"
    " so that no step of a rebalance waits for a heartbeat's turn; Kafka says five seconds always",
)

NOBODY_IN_AN_EPOCH = Deliberate(
    ("groups.*.error_code",),
    "OffsetFetch of a consumer group with a member epoch but no member is UNKNOWN_MEMBER_ID; Kafka trips over it with"
    " UNKNOWN_SERVER_ERROR",
)

NO_SUBSCRIPTION = Deliberate(
    ("error_code",),
    "JoinGroup into a consumer group with a subscription that cannot be read is INCONSISTENT_GROUP_PROTOCOL; Kafka"
    " trips over it with UNKNOWN_SERVER_ERROR",
)

LOST_AGAIN = Deliberate(
    ("error_code", "error_message", "member_id", "member_epoch"),
    "a member of a consumer group whose answer with a new epoch was lost may ask again until it hears one; while it"
    " waits for partitions of others, Kafka fences it the second time",
)
WANTS_NOTHING = Deliberate(
    ("member_epoch", "assignment"),
    "a member that joins a consumer group without a topic, after another one left, changes nothing for the rest; Kafka"
    " still takes all subscriptions for equal, and its range assignor takes everything from the others",
)

# Never asked here, because the one Kafka is shared: what makes its controller fail over or leaves it without an answer.
# tests/cluster holds what Moldau does.
NOT_ASKED = (
    "CreatePartitions beyond 10,000 partitions is POLICY_VIOLATION, as CreateTopics is; Kafka's controller fails over",
    "an operation that IncrementalAlterConfigs does not have is INVALID_REQUEST; Kafka's controller fails over",
    "AlterConfigs that names a resource twice is INVALID_REQUEST; Kafka never answers",
    "Fetch with a negative max_bytes or partition_max_bytes reads as with 0; Kafka fails with UNKNOWN_SERVER_ERROR",
    "Produce with null records is INVALID_RECORD; Kafka never answers",
    "AddPartitionsToTxn from version 4 on without a transaction is answered with nothing; Kafka never answers",
)

# Topic configs whose default differs because the two brokers are set up differently: the test kit deletes segments at
# once (log.segment.delete.delay.ms).
SET_ELSEWHERE = ("file.delete.delay.ms",)
# Our own default: members of consumer groups (KIP-848) are told to ask every second, not every five, because every
# rebalance takes as long as the slowest of them is silent.
OTHER_DEFAULTS = (
    "consumer.heartbeat.interval.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.min.heartbeat.interval.ms",
)


def without_configs_set_elsewhere(field: str) -> Callable[[Any], Any]:
    """An edit that leaves those configs out of a list of topics or resources, unless the topic sets them itself."""

    def edit(tree: Any) -> Any:
        for entry in tree[field]:
            if entry["configs"]:
                entry["configs"] = [
                    each
                    for each in entry["configs"]
                    if each["name"] not in (*SET_ELSEWHERE, *OTHER_DEFAULTS) or each["config_source"] == 1
                ]
        return tree

    return edit
