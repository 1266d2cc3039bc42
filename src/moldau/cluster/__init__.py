"""The cluster's metadata and its controller: records -> delta -> immutable image; decisions -> records.

Knows no clock, socket or thread; files only through the Disk port (`metadata_log`). Read `image` first, then `delta`,
then the decisions: `topics`, `configs`, `brokers`, `features`, `producer_ids`. How a
partition is replicated is in `replication`.
"""

from moldau.cluster.brokers import (
    FENCE,
    UNFENCE,
    change_fencing,
    decide_assign_directory,
    decide_elect_leaders,
    lead_again,
    register_broker,
    register_controller,
)
from moldau.cluster.configs import decide_alter_configs, decide_incremental_alter_configs, validate_topic_configs
from moldau.cluster.decision import BYTES_PER_DECISION_MAX, RECORDS_PER_DECISION_MAX, Decision
from moldau.cluster.delta import MetadataDelta
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
from moldau.cluster.metadata_log import MetadataLog, MetadataLogError
from moldau.cluster.producer_ids import decide_allocate_producer_ids
from moldau.cluster.replication import (
    FollowerState,
    InSyncProposal,
    PartitionFollower,
    PartitionLeader,
    divergence,
    truncation_offset,
)
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

__all__ = [
    "BOOTSTRAP_CHECKPOINT",
    "BYTES_PER_DECISION_MAX",
    "CHECKPOINT_SUFFIX",
    "FENCE",
    "GROUP_VERSION",
    "INTERNAL_TOPICS",
    "METADATA_DIRECTORY",
    "METADATA_VERSION",
    "METADATA_VERSION_MAX",
    "METADATA_VERSION_MIN",
    "OFFSETS_TOPIC",
    "RECORDS_PER_DECISION_MAX",
    "SUPPORTED_FEATURES",
    "TRANSACTIONS_TOPIC",
    "TRANSACTION_VERSION",
    "UNFENCE",
    "BrokerRegistration",
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
    "TopicDecider",
    "TopicDefaults",
    "TopicImage",
    "VoterSet",
    "advertised_levels",
    "change_fencing",
    "checkpoint_name",
    "decide_allocate_producer_ids",
    "decide_alter_configs",
    "decide_assign_directory",
    "decide_delete_topics",
    "decide_elect_leaders",
    "decide_incremental_alter_configs",
    "decide_update_features",
    "decode_control_record",
    "divergence",
    "image_records",
    "lead_again",
    "levels_kept_only",
    "metadata_release",
    "parse_checkpoint_name",
    "parse_level",
    "register_broker",
    "register_controller",
    "topic_name_problem",
    "truncation_offset",
    "validate_topic_configs",
    "write_snapshot",
]
