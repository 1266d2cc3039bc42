"""The cluster's metadata and its controller: records -> delta -> immutable image; decisions -> records.

Knows no clock, socket or thread; files only through the Disk port (`metadata_log`). Read `image` first, then `delta`,
then the decisions: `topics`, `configs`, `brokers`, `features`, `producer_ids`. How a
partition is replicated is in `replication`.
"""

from moldau.cluster.alter_partition import decide_alter_partition
from moldau.cluster.brokers import (
    FENCE,
    UNFENCE,
    PartitionPolicy,
    change_fencing,
    decide_assign_directory,
    fence,
    is_active,
    lead_again,
    leave,
    register_broker,
    register_controller,
)
from moldau.cluster.configs import (
    decide_alter_configs,
    decide_incremental_alter_configs,
    for_other_brokers,
    validate_topic_configs,
)
from moldau.cluster.decision import BYTES_PER_DECISION_MAX, RECORDS_PER_DECISION_MAX, Decision
from moldau.cluster.delta import MetadataDelta
from moldau.cluster.elections import decide_elect_leaders, lead_uncleanly, prefer_leaders
from moldau.cluster.eligible_leaders import ELR_VERSION, MIN_IN_SYNC, keeps_elr, pin_min_in_sync
from moldau.cluster.features import (
    GROUP_VERSION,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION,
    FeatureRange,
    advertised_levels,
    decide_update_features,
    levels_kept_only,
    metadata_release,
    parse_level,
)
from moldau.cluster.features import SUPPORTED as SUPPORTED_FEATURES
from moldau.cluster.image import (
    BrokerRegistration,
    ConfigKind,
    ConfigResource,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from moldau.cluster.metadata_log import DIRECTORY as METADATA_DIRECTORY
from moldau.cluster.metadata_log import MetadataLog, MetadataLogError, Transaction
from moldau.cluster.producer_ids import decide_allocate_producer_ids
from moldau.cluster.reassignment import decide_reassign, list_reassignments
from moldau.cluster.registration import (
    check_broker_epoch,
    comes_from_the_same_place,
    decide_heartbeat,
    decide_register_broker,
    decide_register_controller,
    decide_unregister_broker,
)
from moldau.cluster.replication import (
    FollowerState,
    InSyncProposal,
    PartitionFollower,
    PartitionLeader,
    Throttle,
    divergence,
    is_listed,
    truncation_offset,
)
from moldau.cluster.sessions import BrokerSessions, Session
from moldau.cluster.snapshot import (
    BOOTSTRAP_CHECKPOINT,
    CHECKPOINT_SUFFIX,
    VoterSet,
    checkpoint_name,
    decode_control_record,
    image_records,
    parse_checkpoint_name,
    write_snapshot,
)
from moldau.cluster.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, topic_name_problem
from moldau.cluster.topics import TopicDecider, TopicDefaults, decide_delete_topics
from moldau.cluster.voters import voters_of, voters_record

__all__ = [
    "BOOTSTRAP_CHECKPOINT",
    "BYTES_PER_DECISION_MAX",
    "CHECKPOINT_SUFFIX",
    "ELR_VERSION",
    "FENCE",
    "GROUP_VERSION",
    "INTERNAL_TOPICS",
    "METADATA_DIRECTORY",
    "METADATA_VERSION",
    "METADATA_VERSION_MAX",
    "METADATA_VERSION_MIN",
    "MIN_IN_SYNC",
    "OFFSETS_TOPIC",
    "RECORDS_PER_DECISION_MAX",
    "SUPPORTED_FEATURES",
    "TRANSACTIONS_TOPIC",
    "TRANSACTION_VERSION",
    "UNFENCE",
    "BrokerRegistration",
    "BrokerSessions",
    "ConfigKind",
    "ConfigResource",
    "ControllerRegistration",
    "Decision",
    "Endpoint",
    "FeatureRange",
    "FollowerState",
    "InSyncProposal",
    "MetadataDelta",
    "MetadataImage",
    "MetadataLog",
    "MetadataLogError",
    "PartitionFollower",
    "PartitionImage",
    "PartitionLeader",
    "PartitionPolicy",
    "Session",
    "Throttle",
    "TopicDecider",
    "TopicDefaults",
    "TopicImage",
    "Transaction",
    "VoterSet",
    "advertised_levels",
    "change_fencing",
    "check_broker_epoch",
    "checkpoint_name",
    "comes_from_the_same_place",
    "decide_allocate_producer_ids",
    "decide_alter_configs",
    "decide_alter_partition",
    "decide_assign_directory",
    "decide_delete_topics",
    "decide_elect_leaders",
    "decide_heartbeat",
    "decide_incremental_alter_configs",
    "decide_reassign",
    "decide_register_broker",
    "decide_register_controller",
    "decide_unregister_broker",
    "decide_update_features",
    "decode_control_record",
    "divergence",
    "fence",
    "for_other_brokers",
    "image_records",
    "is_active",
    "is_listed",
    "keeps_elr",
    "lead_again",
    "lead_uncleanly",
    "leave",
    "levels_kept_only",
    "list_reassignments",
    "metadata_release",
    "parse_checkpoint_name",
    "parse_level",
    "pin_min_in_sync",
    "prefer_leaders",
    "register_broker",
    "register_controller",
    "topic_name_problem",
    "truncation_offset",
    "validate_topic_configs",
    "voters_of",
    "voters_record",
    "write_snapshot",
]
