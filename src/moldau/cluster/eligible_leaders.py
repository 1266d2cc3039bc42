"""Eligible leader replicas (KIP-966): what must hold of `min.insync.replicas` while the feature is on. Pure.

Whoever was in sync when a partition last had `min.insync.replicas` in sync holds all that was committed, for nothing is
committed below that number. So the controller and every broker must mean the same number: it is one for the cluster,
or the topic's own, and when it changes, those that were eligible by the old number are not any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.cluster.image import ConfigKind, MetadataImage
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.metadata_records.clear_elr_record import ClearElrRecord
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord

ELR_VERSION = "eligible.leader.replicas.version"
MIN_IN_SYNC = "min.insync.replicas"


def keeps_elr(image: MetadataImage) -> bool:
    return image.features.get(ELR_VERSION, 0) > 0


def pin_min_in_sync(image: MetadataImage, static_value: int) -> list[ConfigRecord]:
    """What makes it safe to turn the feature on; nothing when it already is."""
    records = []
    if MIN_IN_SYNC not in image.config(ConfigKind.BROKER, ""):
        records.append(_min_in_sync("", str(static_value)))
    for resource, values in image.configs.items():
        if resource.kind == ConfigKind.BROKER and resource.name and MIN_IN_SYNC in values:
            records.append(_min_in_sync(resource.name, None))
    return records


def _min_in_sync(broker: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=ConfigKind.BROKER, resource_name=broker, name=MIN_IN_SYNC, value=value)


def check_min_in_sync_change(image: MetadataImage, name: str, changes: Mapping[str, str | None]) -> None:
    """A broker's key, or with an empty name that of all brokers, is about to change."""
    if MIN_IN_SYNC not in changes or not keeps_elr(image):
        return
    if name:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_IN_SYNC} cannot be altered while ELR is enabled."
        )
    if changes[MIN_IN_SYNC] is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_IN_SYNC} cannot be removed while ELR is enabled."
        )


def forget_eligible(image: MetadataImage, changed: Iterable[ConfigRecord]) -> list[ClearElrRecord]:
    """What follows from changes of configurations that are about to be in force."""
    if not keeps_elr(image):
        return []
    return [
        ClearElrRecord(topic_name=record.resource_name if record.resource_type == ConfigKind.TOPIC else "")
        for record in changed
        if record.name == MIN_IN_SYNC
    ]
