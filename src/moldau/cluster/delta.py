"""From one metadata image to the next: the only place where records change what the cluster is.

`replay` takes records in log order and notes what changed; `image` gives the next image, sharing all that did not.
Replay of a whole log at start, of a snapshot, and of a single decision go through the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

from moldau.cluster.image import (
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from moldau.cluster.partition_change import RECOVERING
from moldau.kernel import uuid_text
from moldau.protocol.metadata_records import UnknownMetadataRecord

# PartitionChangeRecord: the leader field's value for "unchanged".
_LEADER_UNCHANGED = -2


class MetadataDelta:
    """Changes on top of an image. Maps are copied when first written."""

    def __init__(self, base: MetadataImage) -> None:
        self.base = base
        self.features: dict[str, int] | None = None
        self.brokers: dict[int, BrokerRegistration] | None = None
        self.controllers: dict[int, ControllerRegistration] | None = None
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.next_producer_id = base.next_producer_id
        self.kept: dict[tuple[Any, ...], Any] | None = None
        # Of records of a newer Kafka in `kept`; they are numbered, and never removed.
        self._unknown_count: int | None = None
        # Topics touched by this delta; a removed topic keeps its last image here so that its files can be found.
        self.topics_changed: dict[bytes, _TopicChange] = {}
        self.topics_removed: dict[bytes, TopicImage] = {}
        self._created_names: dict[str, bytes] = {}
        self.unclean_elections = 0

    @classmethod
    def between(cls, old: MetadataImage, new: MetadataImage) -> MetadataDelta:
        """What has changed, where no records say it: a snapshot was loaded."""
        delta = cls(old)
        delta.features, delta.kept = dict(new.features), dict(new.kept)
        delta.brokers, delta.controllers = dict(new.brokers), dict(new.controllers)
        delta.next_producer_id = new.next_producer_id
        for resource in {**old.configs, **new.configs}:
            if old.configs.get(resource) != new.configs.get(resource):
                delta.configs[resource] = dict(new.configs.get(resource, {}))
        delta.topics_removed = {topic.id: topic for topic in old.topics.values() if topic.id not in new.topic_names}
        for topic in new.topics.values():
            if old.topics.get(topic.name) != topic:
                delta.topics_changed[topic.id] = _TopicChange(topic.name, topic.id, list(topic.partitions))
                if topic.id not in old.topic_names:
                    delta._created_names[topic.name] = topic.id
        return delta

    @property
    def configs_changed(self) -> set[ConfigResource]:
        return set(self.configs)

    def replay_all(self, records: Iterable[Any]) -> None:
        for record in records:
            self.replay(record)

    def replay(self, record: Any) -> None:
        """Apply one record; kinds of a newer Kafka are kept as they are, in their order."""
        if isinstance(record, UnknownMetadataRecord):
            if self._unknown_count is None:
                self._unknown_count = sum(1 for identity in self.base.kept if identity[0] == "unknown")
            self._keep(("unknown", self._unknown_count), record)
            self._unknown_count += 1
            return
        apply = _REPLAY.get(record.API_KEY)
        if apply is not None:
            apply(self, record)

    def image(self, offset: int, epoch: int) -> MetadataImage:
        base = self.base
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            features=base.features if self.features is None else MappingProxyType(self.features),
            brokers=base.brokers if self.brokers is None else MappingProxyType(self.brokers),
            controllers=base.controllers if self.controllers is None else MappingProxyType(self.controllers),
            topics=self._topics(),
            topic_names=self._topic_names(),
            configs=self._configs(),
            next_producer_id=self.next_producer_id,
            kept=base.kept if self.kept is None else MappingProxyType(self.kept),
        )

    def _topics(self) -> Any:
        if not self.topics_changed and not self.topics_removed:
            return self.base.topics
        topics = dict(self.base.topics)
        for topic in self.topics_removed.values():
            topics.pop(topic.name, None)
        for change in self.topics_changed.values():
            topics[change.name] = change.topic()
        return MappingProxyType(topics)

    def _topic_names(self) -> Any:
        if not self._created_names and not self.topics_removed:
            return self.base.topic_names
        names = dict(self.base.topic_names)
        for topic_id in self.topics_removed:
            names.pop(topic_id, None)
        names.update((topic_id, name) for name, topic_id in self._created_names.items())
        return MappingProxyType(names)

    def _configs(self) -> Any:
        if not self.configs:
            return self.base.configs
        configs = dict(self.base.configs)
        for resource, values in self.configs.items():
            if values:
                configs[resource] = MappingProxyType(values)
            else:
                configs.pop(resource, None)
        return MappingProxyType(configs)

    # -- topics --------------------------------------------------------------------------------------------------------

    def _topic(self, topic_id: bytes) -> _TopicChange:
        change = self.topics_changed.get(topic_id)
        if change is None:
            topic = self.base.topic_by_id(topic_id)
            if topic is None:
                raise ValueError(f"metadata record for topic id {uuid_text(topic_id)}, which no TopicRecord made")
            change = self.topics_changed[topic_id] = _TopicChange(topic.name, topic_id, list(topic.partitions))
        return change

    def _create_topic(self, record: Any) -> None:
        self.topics_changed[record.topic_id] = _TopicChange(record.name, record.topic_id, [])
        self._created_names[record.name] = record.topic_id

    def _add_partition(self, record: Any) -> None:
        partitions = self._topic(record.topic_id).partitions
        if record.partition_id > len(partitions):
            raise ValueError(f"metadata record for partition {record.partition_id} comes before {len(partitions)}")
        image = PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories) or (bytes(16),) * len(record.replicas),
            removing=tuple(record.removing_replicas),
            adding=tuple(record.adding_replicas),
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            leader_recovery_state=record.leader_recovery_state,
        )
        partitions[record.partition_id : record.partition_id + 1] = [image]

    def _change_partition(self, record: Any) -> None:
        partitions = self._topic(record.topic_id).partitions
        old = partitions[record.partition_id]
        changes: dict[str, Any] = {
            name: tuple(value)
            for name, value in (
                ("isr", record.isr),
                ("replicas", record.replicas),
                ("removing", record.removing_replicas),
                ("adding", record.adding_replicas),
                ("directories", record.directories),
                ("elr", record.eligible_leader_replicas),
                ("last_known_elr", record.last_known_elr),
            )
            if value is not None
        }
        if record.leader != _LEADER_UNCHANGED:
            changes["leader"] = record.leader
            changes["leader_epoch"] = old.leader_epoch + 1
        if record.leader_recovery_state >= 0:
            changes["leader_recovery_state"] = record.leader_recovery_state
            self.unclean_elections += record.leader_recovery_state == RECOVERING
        partitions[record.partition_id] = old._replace(partition_epoch=old.partition_epoch + 1, **changes)

    def _remove_topic(self, record: Any) -> None:
        change = self._topic(record.topic_id)
        del self.topics_changed[record.topic_id]
        self._created_names.pop(change.name, None)
        self.topics_removed[record.topic_id] = change.topic()
        resource = ConfigResource(2, change.name)
        if resource in self.configs or resource in self.base.configs:
            self.configs[resource] = {}

    def _clear_elr(self, record: Any) -> None:
        """Of one topic, or of all when none is named; topics that this delta made are among them."""
        for topic in self.base.topics.values():
            if topic.id not in self.topics_removed and record.topic_name in ("", topic.name):
                self._topic(topic.id)
        for change in self.topics_changed.values():
            if record.topic_name in ("", change.name):
                change.partitions = [partition._replace(elr=(), last_known_elr=()) for partition in change.partitions]

    # -- configs, features, producer ids -------------------------------------------------------------------------------

    def _set_config(self, record: Any) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        values = self.configs.get(resource)
        if values is None:
            values = self.configs[resource] = dict(self.base.configs.get(resource, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value

    def _set_feature(self, record: Any) -> None:
        if self.features is None:
            self.features = dict(self.base.features)
        if record.feature_level == 0:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level

    def _set_producer_ids(self, record: Any) -> None:
        self.next_producer_id = record.next_producer_id

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _register_broker(self, record: Any) -> None:
        self._brokers()[record.broker_id] = BrokerRegistration(
            node_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record),
            features=_features(record),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_directories=tuple(record.log_dirs),
            cordoned_log_directories=tuple(record.cordoned_log_dirs or ()),
        )

    def _unregister_broker(self, record: Any) -> None:
        self._brokers().pop(record.broker_id, None)

    def _change_registration(self, record: Any) -> None:
        # Fenced: 0 unchanged, 1 fence, -1 unfence; the same for controlled shutdown.
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["log_directories"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_directories"] = tuple(record.cordoned_log_dirs)
        self._update_broker(record.broker_id, changes)

    def _fence_broker(self, record: Any) -> None:
        self._update_broker(record.id, {"fenced": True})

    def _unfence_broker(self, record: Any) -> None:
        self._update_broker(record.id, {"fenced": False})

    def _update_broker(self, node_id: int, changes: dict[str, Any]) -> None:
        from dataclasses import replace

        brokers = self._brokers()
        if node_id not in brokers:
            raise ValueError(f"metadata record for broker {node_id}, which is not registered")
        brokers[node_id] = replace(brokers[node_id], **changes)

    def _brokers(self) -> dict[int, BrokerRegistration]:
        if self.brokers is None:
            self.brokers = dict(self.base.brokers)
        return self.brokers

    def _register_controller(self, record: Any) -> None:
        if self.controllers is None:
            self.controllers = dict(self.base.controllers)
        self.controllers[record.controller_id] = ControllerRegistration(
            record.controller_id, record.incarnation_id, _endpoints(record), _features(record)
        )

    # -- kinds that are kept for later ---------------------------------------------------------------------------------

    def _keep(self, identity: tuple[Any, ...], record: Any | None) -> None:
        if self.kept is None:
            self.kept = dict(self.base.kept)
        if record is None:
            self.kept.pop(identity, None)
        else:
            self.kept[identity] = record

    def _keep_acl(self, record: Any) -> None:
        self._keep(("acl", record.id), record)

    def _drop_acl(self, record: Any) -> None:
        self._keep(("acl", record.id), None)

    def _keep_scram(self, record: Any) -> None:
        self._keep(("scram", record.name, record.mechanism), record)

    def _drop_scram(self, record: Any) -> None:
        self._keep(("scram", record.name, record.mechanism), None)

    def _keep_token(self, record: Any) -> None:
        self._keep(("token", record.token_id), record)

    def _drop_token(self, record: Any) -> None:
        self._keep(("token", record.token_id), None)

    def _keep_quota(self, record: Any) -> None:
        entity = tuple(sorted((part.entity_type, part.entity_name or "") for part in record.entity))
        self._keep(("quota", entity, record.key), None if record.remove else record)


class _TopicChange:
    __slots__ = ("id", "name", "partitions")

    def __init__(self, name: str, topic_id: bytes, partitions: list[PartitionImage]) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = partitions

    def topic(self) -> TopicImage:
        return TopicImage(self.name, self.id, tuple(self.partitions))


def _endpoints(record: Any) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(point.name, point.host, point.port, point.security_protocol) for point in record.end_points)


def _features(record: Any) -> dict[str, tuple[int, int]]:
    return {feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in record.features}


_REPLAY: dict[int, Callable[[MetadataDelta, Any], None]] = {
    0: MetadataDelta._register_broker,
    1: MetadataDelta._unregister_broker,
    2: MetadataDelta._create_topic,
    3: MetadataDelta._add_partition,
    4: MetadataDelta._set_config,
    5: MetadataDelta._change_partition,
    7: MetadataDelta._fence_broker,
    8: MetadataDelta._unfence_broker,
    9: MetadataDelta._remove_topic,
    10: MetadataDelta._keep_token,
    11: MetadataDelta._keep_scram,
    12: MetadataDelta._set_feature,
    14: MetadataDelta._keep_quota,
    15: MetadataDelta._set_producer_ids,
    17: MetadataDelta._change_registration,
    18: MetadataDelta._keep_acl,
    19: MetadataDelta._drop_acl,
    22: MetadataDelta._drop_scram,
    26: MetadataDelta._drop_token,
    27: MetadataDelta._register_controller,
    28: MetadataDelta._clear_elr,
}
