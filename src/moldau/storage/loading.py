"""Opening a partition's directory: what a clean shutdown left is believed, what a crash left is examined.

After a clean shutdown the directory's names, the newest producer snapshot and the epoch checkpoint are all that is
read. Otherwise every batch from the segment of the recovery point on is checked, indexes, producers and epochs are
made again, and the log is cut at the last whole valid batch. What is wrong below the recovery point was safe once: such
a log is not opened at all (`DamagedLogError`), as cutting it would drop what was acknowledged. Snapshots above the
recovery point are not believed after a crash: they were not yet durable, or belong to a tail that was cut and written
anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from moldau.kernel import Buffer, Disk
from moldau.protocol.batches import BatchHeader, CorruptBatchError
from moldau.storage.checkpoints import CorruptCheckpointError, parse_epochs
from moldau.storage.config import LogConfig
from moldau.storage.faults import DamagedLogError
from moldau.storage.leader_epochs import LeaderEpochs
from moldau.storage.producer_state import ProducerStates
from moldau.storage.scan import SegmentScan, scan_segment
from moldau.storage.segment import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from moldau.storage.snapshots import Snapshots
from moldau.storage.transaction_index import TransactionIndex

EPOCHS_FILE = "leader-epoch-checkpoint"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp", ".part")
OFFSET_DIGITS = 20

Say = Callable[[str], None]


@dataclass(slots=True)
class LoadedLog:
    segments: list[Segment]
    start_offset: int
    end_offset: int
    recovery_point: int
    epochs: LeaderEpochs
    producers: ProducerStates
    snapshots: Snapshots
    # Segments that were examined and may hold bytes that are not durable.
    unsynced: list[Segment] = field(default_factory=list)
    # Where the checkpoint says that it starts, when a crash may have taken the segments that began there.
    head_missing_from: int | None = None


def load(
    disk: Disk,
    directory: str,
    names: list[str],
    config: LogConfig,
    *,
    now_ms: int,
    recovery_point: int,
    start_offset: int,
    clean: bool,
    say: Say,
) -> LoadedLog:
    names = _clear_leftovers(disk, directory, names, config)
    bases, snapshots = _sort_names(disk, directory, names)
    bases = _remove_below(disk, directory, bases, start_offset)
    segments = [
        Segment(
            disk,
            directory,
            base,
            disk.size(f"{directory}/{base:020d}{LOG_SUFFIX}"),
            config.index_interval_bytes,
            now_ms,
        )
        for base in bases
    ]
    for earlier, later in pairwise(segments):
        earlier.end_offset = later.base_offset
    kept = Snapshots(disk, directory, snapshots)
    loader = _Loader(disk, directory, names, config, segments, kept, recovery_point, start_offset, say)
    loaded = loader.believe() if clean else loader.examine()
    loaded = _settle_start(loader, loaded, start_offset, now_ms)
    if loaded.start_offset > start_offset and not clean:
        loaded.head_missing_from = start_offset
    return loaded


def _settle_start(loader: _Loader, loaded: LoadedLog, start_offset: int, now_ms: int) -> LoadedLog:
    """Where the log starts: at the checkpoint or the first segment; past the end means that all of it is deleted."""
    disk, segments = loader.disk, loaded.segments
    if segments and start_offset > loaded.end_offset:
        loader.say(f"log_restarted {loader.name} end_offset={loaded.end_offset} start_offset={start_offset}")
        for segment in segments:
            remove_segment(disk, segment)
        segments.clear()
        loaded.producers.clear()
        loaded.epochs.clear()
        loaded.snapshots.drop_above(-1)
    if not segments:
        segment = Segment(disk, loader.directory, start_offset, 0, loader.config.index_interval_bytes, now_ms)
        segments.append(segment)
        loaded.end_offset = start_offset
        loaded.unsynced.clear()
        if start_offset:
            # An empty file that keeps the offset: none is ever given out twice.
            segment.open()
            disk.sync_directory(loader.directory)
    loaded.start_offset = max(start_offset, segments[0].base_offset)
    loaded.recovery_point = min(loaded.recovery_point, loaded.end_offset)
    loaded.epochs.truncate_from_end(loaded.end_offset)
    loaded.epochs.truncate_from_start(loaded.start_offset)
    return loaded


# -- names in the directory --------------------------------------------------------------------------------------------


def remove_segment(disk: Disk, segment: Segment, suffixes: tuple[str, ...] = SEGMENT_SUFFIXES) -> None:
    for suffix in suffixes:
        remove_if_there(disk, segment.path(suffix))
    segment.file = None


def remove_if_there(disk: Disk, path: str) -> None:
    try:
        disk.remove(path)
    except FileNotFoundError:
        pass


def _offset_of(name: str, suffix: str) -> int | None:
    digits = name[: -len(suffix)]
    return int(digits) if name.endswith(suffix) and len(digits) == OFFSET_DIGITS and digits.isdigit() else None


def _sort_names(disk: Disk, directory: str, names: list[str]) -> tuple[list[int], list[int]]:
    """Base offsets and snapshot offsets; an index without its log is removed."""
    bases: list[int] = []
    snapshots: list[int] = []
    indexes: list[tuple[int, str]] = []
    for name in names:
        if (base := _offset_of(name, LOG_SUFFIX)) is not None:
            bases.append(base)
        elif (offset := _offset_of(name, SNAPSHOT_SUFFIX)) is not None:
            snapshots.append(offset)
        else:
            for suffix in INDEX_SUFFIXES:
                if (offset := _offset_of(name, suffix)) is not None:
                    indexes.append((offset, name))
    known = set(bases)
    for offset, name in indexes:
        if offset not in known:
            disk.remove(f"{directory}/{name}")
    return bases, snapshots


def _remove_below(disk: Disk, directory: str, bases: list[int], start_offset: int) -> list[int]:
    """Segments that end below the log's start were deleted; a crash may have brought some of them back."""
    count = max(bisect_right(bases, start_offset) - 1, 0)
    for base in bases[:count]:
        for suffix in SEGMENT_SUFFIXES:
            remove_if_there(disk, f"{directory}/{base:020d}{suffix}")
    return bases[count:]


def _clear_leftovers(disk: Disk, directory: str, names: list[str], config: LogConfig) -> list[str]:
    """Finish or undo what was going on when the broker stopped, as Kafka does.

    Files marked deleted or still being cleaned go. A cleaned segment that was being swapped in is complete once nothing
    is left in cleaning at or below it, so it replaces the segments that it was made from.
    """
    if not any(name.endswith((*LEFTOVER_SUFFIXES, SWAP_SUFFIX)) for name in names):
        return names
    cleaning = [int(name[:OFFSET_DIGITS]) for name in names if name.endswith(CLEANED_SUFFIX)]
    incomplete_from = min(cleaning, default=None)
    for name in names:
        if name.endswith(LEFTOVER_SUFFIXES):
            disk.remove(f"{directory}/{name}")
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    finished: list[str] = []
    for name in swaps:
        if incomplete_from is not None and int(name[:OFFSET_DIGITS]) >= incomplete_from:
            disk.remove(f"{directory}/{name}")
        else:
            finished.append(name)
    for name in finished:
        base = _offset_of(name, LOG_SUFFIX + SWAP_SUFFIX)
        if base is not None:
            _remove_swapped_out(disk, directory, name, base, config)
    for name in finished:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")
    disk.sync_directory(directory)
    return disk.list(directory)


def _remove_swapped_out(disk: Disk, directory: str, name: str, base: int, config: LogConfig) -> None:
    file = disk.open(f"{directory}/{name}")
    found = scan_segment(file, file.size(), base, index_interval_bytes=config.index_interval_bytes, verify=False)
    file.close()
    for other in disk.list(directory):
        offset = _offset_of(other, LOG_SUFFIX)
        if offset is not None and base <= offset < max(found.next_offset, base + 1):
            for suffix in SEGMENT_SUFFIXES:
                remove_if_there(disk, f"{directory}/{offset:020d}{suffix}")


# -- state -------------------------------------------------------------------------------------------------------------


class _Loader:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        names: list[str],
        config: LogConfig,
        segments: list[Segment],
        snapshots: Snapshots,
        recovery_point: int,
        start_offset: int,
        say: Say,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.names = frozenset(names)
        self.config = config
        self.segments = segments
        self.snapshots = snapshots
        self.recovery_point = recovery_point
        self.start_offset = start_offset
        self.say = say
        topic, _, partition = directory.rsplit("/", 1)[-1].rpartition("-")
        self.name = f"topic={topic} partition={partition}"

    def believe(self) -> LoadedLog:
        """A clean shutdown: the files are what they say."""
        end_offset = self._believed_end_offset()
        self._check_reaches(end_offset, "the files end early")
        self.snapshots.drop_above(end_offset)
        epochs = self._stored_epochs()
        if epochs is None:
            epochs = LeaderEpochs()
            self._scan_headers(self.segments, epochs=epochs)
            epochs.dirty = True
        producers, replay_from = self._load_newest_snapshot()
        replay_producers(self.segments, producers, replay_from, end_offset)
        return LoadedLog(self.segments, 0, end_offset, end_offset, epochs, producers, self.snapshots)

    def _believed_end_offset(self) -> int:
        if not self.segments:
            return 0
        active = self.segments[-1]
        if active.size == 0:
            return active.base_offset
        # Closing writes a snapshot at the end and checkpoints it as the recovery point. Where the two agree past the
        # segment's start nothing has to be read; else (another broker's files) the headers tell.
        if self.snapshots.newest == self.recovery_point > active.base_offset:
            return self.recovery_point
        active.load_indexes()
        end_offset = active.base_offset
        for step in active.walk_from_offset(end_offset + (active.offsets.offsets[-1] if active.offsets else 0)):
            end_offset = step.last_offset + 1
        return end_offset

    def examine(self) -> LoadedLog:
        """A crash: check every batch that was not known to be durable."""
        first = self._first_unsure()
        scan_start = self.segments[first].base_offset if self.segments else 0
        stored = self._stored_epochs()
        epochs = LeaderEpochs(stored.entries if stored else ())
        if stored is None:
            self._scan_headers(self.segments[:first], epochs=epochs)
        else:
            epochs.truncate_from_end(scan_start)
        # The indexes of aborted transactions are made again too, so the replay begins at or before the segment does.
        self.snapshots.drop_above(scan_start)
        producers, replay_from = self._load_newest_snapshot()
        replay_producers(self.segments[:first], producers, replay_from, scan_start)
        end_offset = self._scan_unsure(first, producers, epochs, replay_from)
        epochs.dirty = stored is None or epochs != stored
        recovery_point = min(self.recovery_point, end_offset)
        unsynced = self.segments[min(first, len(self.segments)) :]
        return LoadedLog(self.segments, 0, end_offset, recovery_point, epochs, producers, self.snapshots, unsynced)

    def _first_unsure(self) -> int:
        """The place of the segment that holds the recovery point.

        One that begins exactly there may have been rolled since, without the indexes of the one before it being safe.
        """
        bases = [segment.base_offset for segment in self.segments]
        return max(bisect_left(bases, self.recovery_point) - 1, 0)

    def _scan_unsure(self, first: int, producers: ProducerStates, epochs: LeaderEpochs, replay_from: int) -> int:
        """Check segments in order; cut at the first thing that is wrong. The log's end."""
        end_offset = self.segments[first].base_offset if self.segments else 0
        for place in range(first, len(self.segments)):
            segment = self.segments[place]
            if place > first and self._hangs_in_the_air(segment, end_offset):
                self._check_reaches(end_offset, f"the next segment begins at offset {segment.base_offset}")
                self._cut(place, end_offset, 0, f"a gap before offset {segment.base_offset}")
                break
            aborted = TransactionIndex()
            found = self._scan(segment, producers, epochs, replay_from, aborted)
            end_offset = found.next_offset
            if found.stopped is not None:
                self._check_reaches(end_offset, f"{segment.path(LOG_SUFFIX)}: {found.stopped}")
            segment.adopt(found)
            if aborted.entries or f"{segment.base_offset:020d}{TRANSACTION_INDEX_SUFFIX}" in self.names:
                segment.replace_transactions(aborted)
            if found.stopped is not None:
                bytes_cut = segment.size - found.valid_bytes
                segment.open().truncate(found.valid_bytes)
                segment.size = found.valid_bytes
                segment.open().sync()
                self._cut(place + 1, end_offset, bytes_cut, found.stopped)
                break
        self._check_reaches(end_offset, "the files end early")
        for segment in self.segments[first:-1]:
            segment.write_indexes()
            segment.forget_indexes()
            segment.file = None
        return end_offset

    def _check_reaches(self, end_offset: int, reason: str) -> None:
        # A log that was deleted up to its end may have nothing left but its start.
        if max(end_offset, self.start_offset) < self.recovery_point:
            raise DamagedLogError(self.directory, end_offset, self.recovery_point, reason)

    def _hangs_in_the_air(self, segment: Segment, end_offset: int) -> bool:
        """Whether something that was never durable is missing before a segment: a name or a tail that was lost.

        Below the recovery point a gap is what compaction left, and in a compacted topic the one around it may be.
        """
        if segment.base_offset < end_offset:
            return True
        is_gap = segment.base_offset > max(end_offset, self.recovery_point)
        return is_gap and (end_offset >= self.recovery_point or not self.config.compact)

    def _scan(
        self,
        segment: Segment,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        replay_from: int,
        aborted: TransactionIndex,
    ) -> SegmentScan:
        return scan_segment(
            segment.open(),
            segment.size,
            segment.base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            on_producer=_replayer(producers, replay_from, aborted),
            on_epoch=_epoch_collector(epochs),
        )

    def _cut(self, place: int, offset: int, bytes_cut: int, reason: str) -> None:
        for segment in self.segments[place:]:
            bytes_cut += segment.size
            remove_segment(self.disk, segment)
        removed = len(self.segments) - place
        del self.segments[place:]
        self.disk.sync_directory(self.directory)
        self.say(
            f"log_truncated {self.name} offset={offset} bytes_cut={bytes_cut} segments_removed={removed} "
            f"reason={reason.replace(' ', '_')}"
        )

    def _stored_epochs(self) -> LeaderEpochs | None:
        """The checkpoint's epochs; None when batches must tell."""
        if EPOCHS_FILE not in self.names:
            return None if any(segment.size for segment in self.segments) else LeaderEpochs()
        try:
            return LeaderEpochs(parse_epochs(self.disk.read_file(f"{self.directory}/{EPOCHS_FILE}")))
        except CorruptCheckpointError as error:
            self.say(f"leader_epochs_rebuilt {self.name} reason={str(error).replace(' ', '_')}")
            return None

    def _scan_headers(self, segments: list[Segment], *, epochs: LeaderEpochs) -> None:
        for segment in segments:
            scan_segment(
                segment.open(),
                segment.size,
                segment.base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
                verify=False,
                on_epoch=_epoch_collector(epochs),
            )
            segment.file = None

    def _load_newest_snapshot(self) -> tuple[ProducerStates, int]:
        producers, offset, complaints = self.snapshots.load_newest()
        for complaint in complaints:
            self.say(f"producer_snapshot_ignored {self.name} {complaint}")
        return producers, offset


def _epoch_collector(epochs: LeaderEpochs) -> Callable[[int, int], None]:
    def collect(epoch: int, base_offset: int) -> None:
        if epoch > epochs.latest:
            epochs.assign(epoch, base_offset)

    return collect


def _replayer(
    producers: ProducerStates, replay_from: int, aborted: TransactionIndex | None
) -> Callable[[BatchHeader, Buffer | None], None]:
    """Feeds stored batches into producer state, and aborted transactions into an index when one is given."""

    def replay(header: BatchHeader, batch: Buffer | None) -> None:
        if header.base_offset < replay_from:
            return
        try:
            completed = producers.note_stored(header, batch)
        except CorruptBatchError:
            return
        if completed is not None and completed.aborted and aborted is not None:
            aborted.append(producers.aborted_entry(completed))

    return replay


def replay_producers(segments: list[Segment], producers: ProducerStates, from_offset: int, end_offset: int) -> None:
    """Apply the batches in [from, end) to a state that was taken at `from`."""
    if from_offset >= end_offset:
        return
    for place, segment in enumerate(segments):
        is_last = place == len(segments) - 1
        if segment.size == 0 or (not is_last and segments[place + 1].base_offset <= from_offset):
            continue
        replay_segment(segment, producers, from_offset, None)
        if not is_last:
            segment.file = None


def replay_segment(
    segment: Segment, producers: ProducerStates, from_offset: int, aborted: TransactionIndex | None
) -> None:
    scan_segment(
        segment.open(),
        segment.size,
        segment.base_offset,
        index_interval_bytes=segment.interval_bytes,
        verify=False,
        on_producer=_replayer(producers, from_offset, aborted),
    )
