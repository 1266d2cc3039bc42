"""Every API key of Kafka 4.3.1, served or refused with a reason. ApiVersions and the dispatcher are made from this.

A served key names its handler module in `handlers/`, imported when the key is first asked for. Versions are Kafka's own
(from its message definitions), less the ones that Kafka marks as unstable.
"""

from __future__ import annotations

from dataclasses import dataclass

from moldau.protocol.messages.registry import API_MESSAGES


@dataclass(frozen=True, slots=True)
class Served:
    key: int
    handler: str
    version_min: int
    version_max: int


@dataclass(frozen=True, slots=True)
class Refused:
    key: int
    reason: str


_GONE = "removed from Kafka with ZooKeeper"
_SECURITY = "comes with authentication and authorization"
_QUOTAS = "comes with quotas"
_SHARE = "share groups are not served"
_STREAMS = "streams groups are not served; pipelines run on Spark"
_TELEMETRY = "no telemetry receiver is configured, as in stock Kafka"

_HANDLERS = {
    0: "k00_produce",
    1: "k01_fetch",
    2: "k02_list_offsets",
    3: "k03_metadata",
    8: "k08_offset_commit",
    9: "k09_offset_fetch",
    10: "k10_find_coordinator",
    11: "k11_join_group",
    12: "k12_heartbeat",
    13: "k13_leave_group",
    14: "k14_sync_group",
    15: "k15_describe_groups",
    16: "k16_list_groups",
    18: "k18_api_versions",
    19: "k19_create_topics",
    20: "k20_delete_topics",
    21: "k21_delete_records",
    22: "k22_init_producer_id",
    23: "k23_offset_for_leader_epoch",
    24: "k24_add_partitions_to_txn",
    25: "k25_add_offsets_to_txn",
    26: "k26_end_txn",
    27: "k27_write_txn_markers",
    28: "k28_txn_offset_commit",
    32: "k32_describe_configs",
    33: "k33_alter_configs",
    34: "k34_alter_replica_log_dirs",
    35: "k35_describe_log_dirs",
    37: "k37_create_partitions",
    42: "k42_delete_groups",
    43: "k43_elect_leaders",
    44: "k44_incremental_alter_configs",
    45: "k45_alter_partition_reassignments",
    46: "k46_list_partition_reassignments",
    47: "k47_offset_delete",
    52: "k52_vote",
    53: "k53_begin_quorum_epoch",
    54: "k54_end_quorum_epoch",
    55: "k55_describe_quorum",
    56: "k56_alter_partition",
    57: "k57_update_features",
    58: "k58_envelope",
    59: "k59_fetch_snapshot",
    60: "k60_describe_cluster",
    61: "k61_describe_producers",
    62: "k62_broker_registration",
    63: "k63_broker_heartbeat",
    64: "k64_unregister_broker",
    65: "k65_describe_transactions",
    66: "k66_list_transactions",
    67: "k67_allocate_producer_ids",
    68: "k68_consumer_group_heartbeat",
    69: "k69_consumer_group_describe",
    70: "k70_controller_registration",
    73: "k73_assign_replicas_to_dirs",
    74: "k74_list_config_resources",
    75: "k75_describe_topic_partitions",
    80: "k80_add_raft_voter",
    81: "k81_remove_raft_voter",
    82: "k82_update_raft_voter",
}

_REASONS = (
    (range(4, 8), _GONE),
    ((17, 36), _SECURITY),
    (range(29, 32), _SECURITY),
    (range(38, 42), _SECURITY),
    ((48, 49), _QUOTAS),
    ((50, 51), _SECURITY),
    ((71, 72), _TELEMETRY),
    ((*range(76, 80), *range(83, 88), *range(90, 93)), _SHARE),
    ((88, 89), _STREAMS),
)

# librdkafka reads what a broker can do from the advertised minimum of Produce, so Kafka names 0 although it refuses
# 0 to 2 (KAFKA-18659, trap 5).
PRODUCE_ADVERTISED_MIN = 0


def _served(key: int, handler: str) -> Served:
    messages = API_MESSAGES[key]
    newest = messages.version_max - 1 if messages.latest_version_unstable else messages.version_max
    return Served(key, handler, messages.version_min, newest)


SERVED: dict[int, Served] = {key: _served(key, handler) for key, handler in _HANDLERS.items()}
REFUSED: dict[int, Refused] = {key: Refused(key, reason) for keys, reason in _REASONS for key in keys}


def advertised_range(served: Served) -> tuple[int, int]:
    """The versions that ApiVersions names for a key."""
    return (PRODUCE_ADVERTISED_MIN if served.key == 0 else served.version_min), served.version_max
