"""Formatting a node's directories: identity, bootstrap snapshot and, for a quorum that names itself, the first voters.

As `kafka-storage format` does: `meta.properties` in every directory; in the metadata directory `bootstrap.checkpoint`
with the feature levels and, unless the voters are static (`controller.quorum.voters`), the snapshot 0-0 with
kraft.version 1 and this node as the only voter.
"""

from __future__ import annotations

from collections.abc import Sequence

from moldau.cluster import (
    BOOTSTRAP_CHECKPOINT,
    CHECKPOINT_SUFFIX,
    ELR_VERSION,
    GROUP_VERSION,
    METADATA_DIRECTORY,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    TRANSACTION_VERSION,
    VoterSet,
    checkpoint_name,
    write_snapshot,
)
from moldau.kernel import Dice, Disk, parse_uuid, uuid_text
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.protocol.messages.raft.voters_record import VotersRecord
from moldau.storage import LogDirectory, MetaProperties


def random_uuid(dice: Dice) -> bytes:
    """A random id that does not start with '-' when printed, so that command lines take it."""
    while True:
        raw = dice.random_bytes(16)
        if raw[0] >> 2 != 62 and any(raw[:15]):
            return raw


GROUP_VERSION_SINCE = 22  # metadata.version 4.0-IV0
TRANSACTION_VERSION_SINCE = 24  # 4.0-IV2
ELR_VERSION_SINCE = 26  # 4.1-IV0


def bootstrap_records(metadata_version: int) -> list[FeatureLevelRecord]:
    """The feature levels of a new cluster. As in Kafka, 4.0 has the next generation of groups and transactions on, 4.1
    the eligible leader replicas."""
    records = [FeatureLevelRecord(name=METADATA_VERSION, feature_level=metadata_version)]
    if metadata_version >= GROUP_VERSION_SINCE:
        records.append(FeatureLevelRecord(name=GROUP_VERSION, feature_level=1))
    if metadata_version >= TRANSACTION_VERSION_SINCE:
        records.append(FeatureLevelRecord(name=TRANSACTION_VERSION, feature_level=2))
    if metadata_version >= ELR_VERSION_SINCE:
        records.append(FeatureLevelRecord(name=ELR_VERSION, feature_level=1))
    return records


def single_voter(node_id: int, directory_id: bytes, endpoint: tuple[str, str, int]) -> VoterSet:
    voter = VotersRecord.Voter(
        voter_id=node_id,
        voter_directory_id=directory_id,
        endpoints=[VotersRecord.Endpoint(*endpoint)],
        kraft_version_feature=VotersRecord.KRaftVersionFeature(0, 1),
    )
    return VoterSet(1, VotersRecord(voters=[voter]))


def format_directories(
    disk: Disk,
    directories: Sequence[LogDirectory],
    metadata_directory: str,
    *,
    cluster_id: str,
    node_id: int,
    dice: Dice,
    now_ms: int,
    static_voters: bool,
    controller_endpoint: tuple[str, str, int],
    metadata_version: int = METADATA_VERSION_MAX,
) -> None:
    """Write what is missing; a directory that already has its identity keeps it. `metadata_directory` is among them."""
    for directory in directories:
        meta = directory.read_meta_properties()
        if meta is None or meta.directory_id is None:
            directory.write_meta_properties(MetaProperties(cluster_id, node_id, uuid_text(random_uuid(dice))))
    bootstrap = f"{metadata_directory}/{BOOTSTRAP_CHECKPOINT}"
    if not disk.exists(bootstrap):
        records = bootstrap_records(metadata_version)
        data = write_snapshot(records, metadata_version, VoterSet(), epoch=0, now_ms=now_ms)
        disk.replace_file(bootstrap, data)
    log_path = f"{metadata_directory}/{METADATA_DIRECTORY}"
    if static_voters or _has_log(disk, log_path):
        return
    meta = next(each for each in directories if each.path == metadata_directory).read_meta_properties()
    assert meta is not None and meta.directory_id is not None
    voters = single_voter(node_id, parse_uuid(meta.directory_id), controller_endpoint)
    disk.make_directories(log_path)
    data = write_snapshot((), metadata_version, voters, epoch=0, now_ms=now_ms)
    disk.replace_file(f"{log_path}/{checkpoint_name(0, 0)}", data)


def _has_log(disk: Disk, path: str) -> bool:
    """Whether the metadata log was begun. The directory alone may be what a crash left of an earlier formatting."""
    return disk.exists(path) and any(name.endswith((".log", CHECKPOINT_SUFFIX)) for name in disk.list(path))
