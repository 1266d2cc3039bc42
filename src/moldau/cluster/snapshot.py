"""An image as records again, and `.checkpoint` files: snapshots that bound the replay of the metadata log.

A snapshot is a run of batches: a header (control record), for kraft.version 1 the version and the voters (control
records), the image's records, a footer. Offsets inside count from 0; the file's name says which offset and epoch of the
log it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.cluster.features import record_version
from moldau.cluster.image import MetadataImage, TopicImage
from moldau.kernel import Buffer
from moldau.protocol.batches import (
    Record,
    build_batch,
    control_key,
    control_kind,
    crc_is_valid,
    iterate_batches,
    iterate_records,
)
from moldau.protocol.message import Message
from moldau.protocol.messages.raft.kraft_version_record import KRaftVersionRecord
from moldau.protocol.messages.raft.leader_change_message import LeaderChangeMessage
from moldau.protocol.messages.raft.snapshot_footer_record import SnapshotFooterRecord
from moldau.protocol.messages.raft.snapshot_header_record import SnapshotHeaderRecord
from moldau.protocol.messages.raft.voters_record import VotersRecord
from moldau.protocol.metadata_records import decode_metadata_record, encode_metadata_record

LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = 2, 3, 4, 5, 6
RECORDS_PER_BATCH_MAX = 2000
CHECKPOINT_SUFFIX = ".checkpoint"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"


@dataclass(frozen=True, slots=True)
class VoterSet:
    """kraft.version and, from 1 on, the voters that the log itself names."""

    kraft_version: int = 0
    record: VotersRecord | None = None


_CONTROL_CLASSES: dict[int, type[Message]] = {
    LEADER_CHANGE: LeaderChangeMessage,
    SNAPSHOT_HEADER: SnapshotHeaderRecord,
    SNAPSHOT_FOOTER: SnapshotFooterRecord,
    KRAFT_VERSION: KRaftVersionRecord,
    KRAFT_VOTERS: VotersRecord,
}


def checkpoint_name(end_offset: int, epoch: int) -> str:
    return f"{end_offset:020d}-{epoch:010d}{CHECKPOINT_SUFFIX}"


def parse_checkpoint_name(name: str) -> tuple[int, int] | None:
    """(end offset, epoch) of a snapshot's file name, or None for other files."""
    stem, dot, suffix = name.partition(".")
    if "." + suffix != CHECKPOINT_SUFFIX or not dot or len(stem) != 31 or stem[20] != "-":
        return None
    digits = stem[:20], stem[21:]
    return (int(digits[0]), int(digits[1])) if all(part.isdigit() for part in digits) else None


def decode_control_record(record: Record) -> tuple[int, Message | None]:
    """Kind and message of a control record; None for kinds that are not the metadata log's."""
    kind = control_kind(record.key)
    message_class = _CONTROL_CLASSES.get(kind)
    if message_class is None or record.value is None:
        return kind, None
    # The version is the first field of every control record's value.
    version = int.from_bytes(record.value[:2], "big", signed=True)
    return kind, message_class.decode(record.value, min(version, message_class.VERSION_MAX))


def read_batches(data: Buffer) -> Iterator[tuple[int, int, int, list[Any], list[tuple[int, Message | None]]]]:
    """(base offset, last offset, epoch, metadata records, control records) of each batch."""
    for header, batch in iterate_batches(data):
        if header.is_control:
            controls = [decode_control_record(record) for record in iterate_records(batch)]
            yield header.base_offset, header.last_offset, header.leader_epoch, [], controls
        else:
            records = [decode_metadata_record(record.value or b"")[0] for record in iterate_records(batch)]
            yield header.base_offset, header.last_offset, header.leader_epoch, records, []


def read_snapshot(data: Buffer) -> tuple[list[Any], list[tuple[int, Message | None]]]:
    """(metadata records, control records) of a whole snapshot; ValueError for one that is damaged or cut short."""
    for header, batch in iterate_batches(data):
        if not crc_is_valid(batch, header):
            raise ValueError(f"the batch at {header.base_offset} has a wrong checksum")
    records: list[Any] = []
    controls: list[tuple[int, Message | None]] = []
    for _, _, _, batch_records, controls_of_batch in read_batches(data):
        records += batch_records
        controls += controls_of_batch
    if not controls or controls[-1][0] != SNAPSHOT_FOOTER:
        raise ValueError("it has no footer")
    return records, controls


def write_snapshot(
    records: Iterable[Any], metadata_version: int, voters: VoterSet, *, epoch: int, now_ms: int
) -> bytes:
    """The bytes of a snapshot."""
    out = bytearray()
    offset = 0

    def add(entries: Sequence[tuple[bytes | None, bytes]], *, control: bool) -> None:
        nonlocal offset
        batch = [Record(offset + index, now_ms, key, value) for index, (key, value) in enumerate(entries)]
        out.extend(build_batch(batch, leader_epoch=epoch, control=control))
        offset += len(batch)

    head = [(control_key(SNAPSHOT_HEADER), SnapshotHeaderRecord(last_contained_log_timestamp=now_ms).encode(0))]
    if voters.kraft_version > 0 and voters.record is not None:
        version = KRaftVersionRecord(kraft_version=voters.kraft_version)
        head.append((control_key(KRAFT_VERSION), version.encode(0)))
        head.append((control_key(KRAFT_VOTERS), voters.record.encode(0)))
    add(head, control=True)
    pending: list[tuple[bytes | None, bytes]] = []
    for record in records:
        pending.append((None, encode_metadata_record(record, record_version(record, metadata_version))))
        if len(pending) == RECORDS_PER_BATCH_MAX:
            add(pending, control=False)
            pending = []
    if pending:
        add(pending, control=False)
    add([(control_key(SNAPSHOT_FOOTER), SnapshotFooterRecord().encode(0))], control=True)
    return bytes(out)


def image_records(image: MetadataImage) -> Iterator[Any]:
    """Records that make this image out of nothing, in an order in which each finds what it refers to."""
    from moldau.protocol.messages.metadata_records.config_record import ConfigRecord
    from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
    from moldau.protocol.messages.metadata_records.producer_ids_record import ProducerIdsRecord
    from moldau.protocol.messages.metadata_records.topic_record import TopicRecord

    for name, level in sorted(image.features.items(), key=lambda item: (item[0] != "metadata.version", item[0])):
        yield FeatureLevelRecord(name=name, feature_level=level)
    yield from _node_records(image)
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.id)
        yield from _partition_records(topic)
    for resource, values in image.configs.items():
        for name, value in values.items():
            yield ConfigRecord(resource_type=resource.kind, resource_name=resource.name, name=name, value=value)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from image.kept.values()


def _node_records(image: MetadataImage) -> Iterator[Any]:
    from moldau.protocol.messages.metadata_records.register_broker_record import RegisterBrokerRecord
    from moldau.protocol.messages.metadata_records.register_controller_record import RegisterControllerRecord

    for broker in image.brokers.values():
        yield RegisterBrokerRecord(
            broker_id=broker.node_id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker.epoch,
            end_points=[
                RegisterBrokerRecord.BrokerEndpoint(name, host, port, protocol)
                for name, host, port, protocol in broker.endpoints
            ],
            features=[
                RegisterBrokerRecord.BrokerFeature(name, low, high) for name, (low, high) in broker.features.items()
            ],
            rack=broker.rack,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=list(broker.log_directories),
            cordoned_log_dirs=list(broker.cordoned_log_directories) or None,
        )
    for controller in image.controllers.values():
        yield RegisterControllerRecord(
            controller_id=controller.node_id,
            incarnation_id=controller.incarnation_id,
            end_points=[
                RegisterControllerRecord.ControllerEndpoint(name, host, port, protocol)
                for name, host, port, protocol in controller.endpoints
            ],
            features=[
                RegisterControllerRecord.ControllerFeature(name, low, high)
                for name, (low, high) in controller.features.items()
            ],
        )


def _partition_records(topic: TopicImage) -> Iterator[Any]:
    from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord

    for index, partition in enumerate(topic.partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic.id,
            replicas=list(partition.replicas),
            isr=list(partition.isr),
            removing_replicas=list(partition.removing),
            adding_replicas=list(partition.adding),
            leader=partition.leader,
            leader_recovery_state=partition.leader_recovery_state,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            directories=list(partition.directories),
            eligible_leader_replicas=list(partition.elr) or None,
            last_known_elr=list(partition.last_known_elr) or None,
        )
