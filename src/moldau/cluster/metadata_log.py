"""The metadata log `__cluster_metadata-0` with its snapshots and the quorum's vote file, on a disk.

Opens what is there (ours or Apache Kafka's), replays it into an image, appends decisions as batches. Does not decide
and does not wait: durability is reported by whoever ran the flush task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from moldau.cluster.decision import BYTES_PER_DECISION_MAX
from moldau.cluster.delta import MetadataDelta
from moldau.cluster.features import METADATA_VERSION, METADATA_VERSION_MAX, metadata_release, record_version
from moldau.cluster.image import MetadataImage
from moldau.cluster.snapshot import (
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    VoterSet,
    checkpoint_name,
    image_records,
    parse_checkpoint_name,
    read_batches,
    read_snapshot,
    write_snapshot,
)
from moldau.cluster.voters import voters_of, voters_record
from moldau.consensus import EpochEnd, QuorumState, Voters
from moldau.kernel import METADATA_TOPIC_ID, Buffer, Disk, parse_uuid, uuid_text
from moldau.protocol.batches import Record, build_batch, control_key
from moldau.protocol.messages.raft.kraft_version_record import KRaftVersionRecord
from moldau.protocol.messages.raft.leader_change_message import LeaderChangeMessage
from moldau.protocol.messages.raft.voters_record import VotersRecord
from moldau.protocol.metadata_records import encode_metadata_record
from moldau.storage import LogConfig, PartitionLog

DIRECTORY = "__cluster_metadata-0"
QUORUM_STATE = "quorum-state"
DAMAGED_SUFFIX = ".damaged"
REPLAY_BYTES = 1 << 20
SNAPSHOTS_KEPT = 2
_FEATURE_LEVEL, _BEGIN, _END, _ABORT = 12, 23, 24, 25


class MetadataLogError(ValueError):
    """What is on disk cannot be believed or read; one line for the person who starts the node."""


# The records of a metadata transaction that was begun and not ended yet; None outside of one.
Transaction = tuple[Any, ...] | None


class Replayed(NamedTuple):
    """A run of batches: what it changes, the image after it, and what it left open."""

    delta: MetadataDelta
    image: MetadataImage
    transaction: Transaction
    # Voter sets with the offsets of their records.
    voters: Sequence[tuple[int, Voters]] = ()


class MetadataLog:
    def __init__(self, disk: Disk, log_directory: str, *, now_ms: int, say: Callable[[str], None]) -> None:
        self._disk = disk
        self._say = say
        self.path = f"{log_directory}/{DIRECTORY}"
        config = LogConfig(max_message_bytes=BYTES_PER_DECISION_MAX, segment_bytes=1 << 30)
        names = disk.list(self.path) if disk.exists(self.path) else []
        self._snapshots = sorted(filter(None, map(parse_checkpoint_name, names)))
        self.log = PartitionLog.open(
            disk, self.path, config, now_ms=now_ms, start_offset=0, topic_id=METADATA_TOPIC_ID, say=say
        )
        self.voters = VoterSet()
        self.bytes_since_snapshot = 0
        # After `load`: a transaction was begun and never ended.
        self.is_transaction_open = False

    # -- what the quorum asks of it ------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def last_epoch(self) -> int:
        return max(self.log.epochs.latest, self._snapshots[-1][1] if self._snapshots else 0, 0)

    @property
    def snapshot(self) -> EpochEnd | None:
        return self._snapshot_id(-1)

    @property
    def first_snapshot(self) -> EpochEnd | None:
        return self._snapshot_id(0)

    def _snapshot_id(self, index: int) -> EpochEnd | None:
        # The one that formatting made (0-0) holds nothing but the first voters. Between one that is older than the log
        # and the log something is missing: the log began anew with another one.
        made = [each for each in self._snapshots if each[0] >= max(self.log.start_offset, 1)]
        return EpochEnd(made[index][1], made[index][0]) if made else None

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        if epoch >= self.last_epoch:
            return EpochEnd(self.last_epoch, self.log.end_offset)
        found, end_offset = self.log.epochs.end_offset_for(epoch, self.log.end_offset)
        return EpochEnd(found, end_offset) if found >= 0 else EpochEnd(epoch, self.log.start_offset)

    # -- the vote file -------------------------------------------------------------------------------------------------

    @property
    def is_vote_lost(self) -> bool:
        """There are records, and before the first of them there was a vote."""
        return self.log.end_offset > 0 and not self._disk.exists(f"{self.path}/{QUORUM_STATE}")

    def read_quorum_state(self) -> QuorumState:
        path = f"{self.path}/{QUORUM_STATE}"
        if not self._disk.exists(path):
            return QuorumState(epoch=max(self.log.epochs.latest, 0))
        try:
            state = json.loads(self._disk.read_file(path))
            return QuorumState(
                epoch=int(state["leaderEpoch"]),
                leader_id=int(state["leaderId"]),
                voted_id=int(state["votedId"]),
                voted_directory_id=parse_uuid(state.get("votedDirectoryId", uuid_text(bytes(16)))),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataLogError(f"{path} is damaged ({error}); the vote of this node is lost") from None

    def write_quorum_state(self, state: QuorumState, voters: Sequence[int]) -> None:
        """Durably, before anyone is told of the vote."""
        fields: dict[str, Any] = {"leaderId": state.leader_id, "leaderEpoch": state.epoch, "votedId": state.voted_id}
        if self.voters.kraft_version == 0:
            fields |= {"appliedOffset": 0, "currentVoters": [{"voterId": voter} for voter in voters], "data_version": 0}
            fields = {"clusterId": "", **fields}
        else:
            fields |= {"votedDirectoryId": uuid_text(state.voted_directory_id), "data_version": 1}
        self._disk.replace_file(f"{self.path}/{QUORUM_STATE}", json.dumps(fields, separators=(",", ":")).encode())

    # -- replay --------------------------------------------------------------------------------------------------------

    def load_snapshot(self) -> MetadataImage:
        """The image of the newest whole snapshot: all of it is agreed. The log after it may not be."""
        try:
            return self._load_snapshot()
        except MetadataLogError:
            raise
        except (ValueError, LookupError) as error:
            raise MetadataLogError(f"the metadata log {self.path} cannot be replayed: {error}") from error

    def load(self) -> MetadataImage:
        """The image at the end of the log: newest whole snapshot, then every batch after it."""
        image = self.load_snapshot()
        replayed = self.replay_log(image, None)
        self.is_transaction_open = replayed is not None and replayed.transaction is not None
        return image if replayed is None else replayed.image

    def _load_snapshot(self) -> MetadataImage:
        image = MetadataImage()
        damaged: list[tuple[int, int]] = []
        while self._snapshots:
            end_offset, epoch = self._snapshots[-1]
            path = self._snapshot_path(end_offset, epoch)
            try:
                records, controls = read_snapshot(self._disk.read_file(path))
            except ValueError as error:
                self._say(f"metadata_snapshot_damaged path={path} reason={str(error)!r}")
                damaged.append(self._snapshots.pop())
                continue
            delta = MetadataDelta(image)
            for record in records:
                self._replay(delta, record)
            self.note_controls(controls)
            image = delta.image(end_offset - 1, epoch)
            break
        if damaged:
            self._check_log_stands_in(damaged, image.offset + 1)
        if self.log.start_offset > image.offset + 1:
            raise MetadataLogError(
                f"the metadata log {self.path} begins at offset {self.log.start_offset}, and the checkpoint before it"
                f" is missing (what there is reaches to offset {image.offset + 1}); restore it from a copy"
            )
        if self.log.end_offset <= image.offset:
            self.log.truncate_fully_and_start_at(image.offset + 1)
        for snapshot in damaged:
            path = self._snapshot_path(*snapshot)
            self._disk.rename(path, path + DAMAGED_SUFFIX)
        return image

    def _check_log_stands_in(self, damaged: Sequence[tuple[int, int]], position: int) -> None:
        """From `position` on the log must have all that a damaged snapshot had. The first voters it never has."""
        newest, oldest = damaged[0], damaged[-1]
        is_covered = self.log.start_offset <= position and newest[0] <= self.log.end_offset
        if not is_covered or (not self._snapshots and self._names_voters()):
            raise MetadataLogError(
                f"{self._snapshot_path(*(newest if self._snapshots else oldest))} is damaged, and neither an older"
                " checkpoint nor the log can stand in for it; restore it from a copy"
            )

    def _names_voters(self) -> bool:
        """Whether the vote was written under kraft.version 1, where snapshot 0-0 or a later one names the voters."""
        path = f"{self.path}/{QUORUM_STATE}"
        return not self._disk.exists(path) or b'"data_version":1' in self._disk.read_file(path)

    def _snapshot_path(self, end_offset: int, epoch: int) -> str:
        return f"{self.path}/{checkpoint_name(end_offset, epoch)}"

    def replay_log(self, image: MetadataImage, transaction: Transaction) -> Replayed | None:
        """All that follows the image, at once; None when there is nothing."""
        delta = MetadataDelta(image)
        offset, epoch = image.offset, image.epoch
        voters: list[tuple[int, Voters]] = []
        try:
            for data in self._pieces(max(image.offset + 1, self.log.start_offset)):
                for base_offset, last_offset, batch_epoch, records, controls in read_batches(data):
                    if base_offset <= image.offset:
                        continue
                    voters += [(last_offset, voters_of(each)) for _, each in controls if isinstance(each, VotersRecord)]
                    self.note_controls(controls)
                    transaction = self.replay_records(delta, records, transaction)
                    offset, epoch = last_offset, batch_epoch
        except MetadataLogError:
            raise
        except (ValueError, LookupError) as error:
            raise MetadataLogError(f"the metadata log {self.path} cannot be replayed: {error}") from error
        return None if offset == image.offset else Replayed(delta, delta.image(offset, epoch), transaction, voters)

    def _pieces(self, position: int) -> Iterator[bytes]:
        while position < self.log.end_offset:
            piece = self.log.read(position, REPLAY_BYTES, offset_max=self.log.end_offset)
            if piece is None:
                return
            data = piece.read()
            self.bytes_since_snapshot += len(data)
            yield data
            position = piece.next_offset

    def replay_records(self, delta: MetadataDelta, records: Sequence[Any], transaction: Transaction) -> Transaction:
        """Onto the delta, except what stands between Begin and End: that counts only together (KIP-868)."""
        for record in records:
            key = getattr(record, "API_KEY", None)  # None: of a newer Kafka, kept in the log
            if key == _BEGIN:
                transaction = ()
            elif key == _END:
                for each in transaction or ():
                    self._replay(delta, each)
                transaction = None
            elif key == _ABORT:
                transaction = None
            elif transaction is not None:
                transaction = (*transaction, record)
            else:
                self._replay(delta, record)
        return transaction

    def _replay(self, delta: MetadataDelta, record: Any) -> None:
        """A level that we do not know ends the replay before the records that were written at it."""
        if getattr(record, "API_KEY", None) == _FEATURE_LEVEL and record.name == METADATA_VERSION:
            level = record.feature_level
            if level > METADATA_VERSION_MAX:
                raise MetadataLogError(
                    f"the metadata log is at metadata.version {level}, newer than"
                    f" {metadata_release(METADATA_VERSION_MAX)} ({METADATA_VERSION_MAX}), the newest that this version"
                    " reads"
                )
        delta.replay(record)

    def note_controls(self, controls: Sequence[tuple[int, Any]]) -> None:
        for kind, message in controls:
            if kind == KRAFT_VERSION:
                self.voters = VoterSet(message.kraft_version, self.voters.record)
            elif kind == KRAFT_VOTERS:
                self.voters = VoterSet(self.voters.kraft_version, message)

    # -- append --------------------------------------------------------------------------------------------------------

    def append_leader_change(
        self, epoch: int, leader_id: int, voters: Voters, granting: Sequence[int], now_ms: int
    ) -> int | None:
        """Open an epoch. The first one of all also says who votes: until then that stands only in the snapshot of this
        node's formatting, which nobody else has; the offset of that record.
        """
        message = LeaderChangeMessage(
            leader_id=leader_id,
            voters=[LeaderChangeMessage.Voter(voter) for voter in voters.ids],
            granting_voters=[LeaderChangeMessage.Voter(voter) for voter in granting],
        )
        records = [Record(0, now_ms, control_key(LEADER_CHANGE), message.encode(0))]
        names_voters = self.log.end_offset == 0 and self.voters.kraft_version > 0
        if names_voters:
            self.voters = VoterSet(self.voters.kraft_version, voters_record(voters))
            version = KRaftVersionRecord(kraft_version=self.voters.kraft_version)
            records.append(Record(1, now_ms, control_key(KRAFT_VERSION), version.encode(0)))
            records.append(Record(2, now_ms, control_key(KRAFT_VOTERS), voters_record(voters).encode(0)))
        batch = build_batch(records, leader_epoch=epoch, control=True)
        last_offset = self.log.append_control(batch, epoch, now_ms).last_offset
        return last_offset if names_voters else None

    def append(self, records: Sequence[Any], metadata_version: int, epoch: int, now_ms: int) -> tuple[int, int]:
        """One batch; (first offset, last offset). Written, not yet durable."""
        entries = [
            Record(index, now_ms, None, encode_metadata_record(record, record_version(record, metadata_version)))
            for index, record in enumerate(records)
        ]
        batch = build_batch(entries, leader_epoch=epoch)
        result = self.log.append_as_leader(batch, epoch, now_ms)
        self.bytes_since_snapshot += len(batch)
        return result.base_offset, result.last_offset

    def append_voters(self, voters: Voters, epoch: int, now_ms: int) -> int:
        """The next voter set (kraft.version 1); the offset of its record."""
        record = voters_record(voters)
        entry = Record(0, now_ms, control_key(KRAFT_VOTERS), record.encode(0))
        batch = build_batch([entry], leader_epoch=epoch, control=True)
        offset = self.log.append_control(batch, epoch, now_ms).base_offset
        self.voters = VoterSet(1, record)
        return offset

    def append_fetched(self, batches: Buffer) -> Iterator[tuple[int, int, list[Any], list[tuple[int, Any]]]]:
        """Batches of the leader, whole ones only: (last offset, epoch, records, control records) of each."""
        before = self.log.end_offset
        self.log.append_as_follower(batches)
        for base_offset, last_offset, epoch, records, controls in read_batches(batches):
            if before <= base_offset < self.log.end_offset:
                self.note_controls(controls)
                yield last_offset, epoch, records, controls
        self.bytes_since_snapshot += len(batches)

    def truncate_to(self, offset: int, voters: Voters) -> None:
        """Give up what the leader does not have; `voters` are those that are in force without it."""
        self.log.truncate_to(offset)
        if self.voters.kraft_version > 0:
            self.voters = VoterSet(self.voters.kraft_version, voters_record(voters))

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def write_snapshot(self, image: MetadataImage, voters: VoterSet, now_ms: int) -> int:
        """Write the snapshot of a committed image and of the voters at its offset; its size.

        Touches nothing else, so a thread may do it.
        """
        level = image.features.get(METADATA_VERSION, METADATA_VERSION_MAX)
        data = write_snapshot(image_records(image), level, voters, epoch=image.epoch, now_ms=now_ms)
        self._disk.replace_file(self._snapshot_path(image.offset + 1, image.epoch), data)
        return len(data)

    def note_snapshot(self, image: MetadataImage, size: int) -> None:
        """The snapshot is on disk: forget what it makes needless."""
        written = (image.offset + 1, image.epoch)
        if self._snapshots and self._snapshots[-1] >= written:
            # Meanwhile a newer one came from the leader, which this one must not stand before.
            if self._snapshots[-1] > written:
                self._disk.remove(self._snapshot_path(*written))
            return
        self._snapshots.append(written)
        while len(self._snapshots) > SNAPSHOTS_KEPT:
            self._disk.remove(self._snapshot_path(*self._snapshots.pop(0)))
        # What every kept snapshot covers is not needed any more.
        self.log.delete_records_before(self._snapshots[0][0])
        self._say(f"metadata_snapshot_written end_offset={image.offset + 1} epoch={image.epoch} bytes={size}")

    def read_snapshot_bytes(self, snapshot: EpochEnd, position: int, count: int) -> tuple[int, bytes] | None:
        """(size of the snapshot, a piece of it); None when it is not here (any more)."""
        if (snapshot.end_offset, snapshot.epoch) not in self._snapshots:
            return None
        file = self._disk.open(self._snapshot_path(snapshot.end_offset, snapshot.epoch))
        try:
            return file.size(), file.read(position, count)
        finally:
            file.close()

    def install_snapshot(self, snapshot: EpochEnd, data: bytes) -> MetadataImage:
        """What the leader's snapshot says stands for all that was here."""
        read_snapshot(data)
        self._disk.replace_file(self._snapshot_path(snapshot.end_offset, snapshot.epoch), data)
        self._snapshots = sorted({*self._snapshots, (snapshot.end_offset, snapshot.epoch)})
        self.log.truncate_fully_and_start_at(snapshot.end_offset)
        self.bytes_since_snapshot = 0
        return self.load_snapshot()

    def close(self, now_ms: int) -> None:
        self.log.close(clean=True, now_ms=now_ms)
