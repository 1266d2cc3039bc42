"""Damage below the recovery point: never cut in silence, always found, and repaired without losing what is whole."""

from __future__ import annotations

import struct

import pytest

from moldau.kernel import TopicPartition
from moldau.protocol.batches import iterate_batches
from moldau.storage import LOST, DamagedLogError, LogDirectory, PartitionLog, repair_partition, verify_partition
from moldau.testing.dice import SeededDice
from moldau.testing.disk import SimulatedDisk
from tests.storage.kit import DIRECTORY, append, batch, content, fill, flush, new_disk, open_log

ORDERS = TopicPartition("orders", 0)
SIZE = len(batch())
BATCHES, PER_SEGMENT = 12, 4
SETTINGS = {"segment_bytes": PER_SEGMENT * SIZE, "index_interval_bytes": 0}
SEEDS, CHUNK = 400, 100
# Where a batch's checksum, or a reader, notices a change: not in the base offset nor in the leader epoch.
NOTICED = [*range(8, 12), *range(16, SIZE)]


def stored(disk: SimulatedDisk) -> PartitionLog:
    """Three full segments, all of them safe, and the checkpoint that says so."""
    disk.sync_directory("")
    log = open_log(disk, **SETTINGS)
    fill(log, BATCHES)
    flush(log)
    LogDirectory(disk, "data").write_recovery_points({ORDERS: log.recovery_point})
    return log


def again(disk: SimulatedDisk) -> PartitionLog:
    recovery_point = LogDirectory(disk, "data").read_recovery_points()[ORDERS]
    return open_log(disk, recovery_point=recovery_point, **SETTINGS)


def path(segment: int) -> str:
    return f"{DIRECTORY}/{segment * PER_SEGMENT:020d}.log"


def lost(disk: SimulatedDisk) -> list[tuple[int, int]]:
    found = verify_partition(disk, DIRECTORY, LogDirectory(disk, "data").read_recovery_points()[ORDERS])
    return [(finding.first_offset, finding.next_offset) for finding in found if finding.effect == LOST]


def test_a_damaged_batch_that_was_safe_once_keeps_the_log_closed_and_in_one_piece() -> None:
    disk = new_disk()
    stored(disk)
    disk.flip_bit(path(2), SIZE + 40)
    before = {name: data for name, data in disk.tree().items() if name.endswith(".log")}
    with pytest.raises(DamagedLogError, match=r"damaged at offset 9, below its recovery point 12.*moldau log repair"):
        again(disk)
    assert {name: data for name, data in disk.tree().items() if name.endswith(".log")} == before


def test_a_torn_tail_above_the_recovery_point_is_cut_as_before() -> None:
    disk = new_disk()
    log = stored(disk)
    append(log)
    disk.open(path(3)).truncate(SIZE - 5)
    assert [finding.effect for finding in verify_partition(disk, DIRECTORY, 12)] == ["cut"]
    assert again(disk).end_offset == 12


def test_a_log_that_ends_below_its_recovery_point_says_so() -> None:
    for damage in (lambda disk: disk.open(path(2)).truncate(2 * SIZE), lambda disk: disk.remove(path(2))):
        disk = new_disk()
        stored(disk)
        damage(disk)
        with pytest.raises(DamagedLogError, match="the files end early"):
            again(disk)
        assert len(lost(disk)) == 1


def test_repair_keeps_what_is_whole_behind_the_damage_and_cut_does_not() -> None:
    for cut, expected in ((False, [*range(9), 10, 11]), (True, [*range(9)])):
        disk = new_disk()
        stored(disk)
        disk.flip_bit(path(2), SIZE + 40)
        assert lost(disk) == [(9, 10)]
        (done,) = repair_partition(disk, LogDirectory(disk, "data"), ORDERS, cut=cut)
        assert (done.bytes_kept, done.bytes_dropped) == ((3 * SIZE, SIZE) if not cut else (SIZE, 3 * SIZE))
        assert disk.size(f"{DIRECTORY}/{done.saved_as}") == 4 * SIZE, "the damaged file is kept beside it"
        log = again(disk.crash())
        assert [base for base, _ in offsets_left(log)] == expected
        assert append(log) == 12, "no offset is given out twice"


def damage(disk: SimulatedDisk, dice: SeededDice) -> set[int]:
    """Something happens to a segment; the batches that are touched by it."""
    segment = dice.below(3)
    first, size = segment * PER_SEGMENT, PER_SEGMENT * SIZE
    kind = dice.below(4)
    if kind == 0:
        place = dice.below(PER_SEGMENT)
        disk.flip_bit(path(segment), place * SIZE + NOTICED[dice.below(len(NOTICED))], dice.below(8))
        return {first + place}
    if kind == 1:
        end = dice.below(size)
        disk.open(path(segment)).truncate(end)
        return set(range(first + end // SIZE, first + PER_SEGMENT))
    if kind == 2:
        start = dice.below(size - 1)
        end = start + 1 + dice.below(size - start)
        disk.open(path(segment)).write(start, (b"\xa5" * (end - start),))
        return set(range(first + start // SIZE, first + (end - 1) // SIZE + 1))
    disk.remove(path(segment))
    return set(range(first, first + PER_SEGMENT))


def damage_beside(disk: SimulatedDisk, dice: SeededDice) -> None:
    """Files that can be made again: missing, empty, cut, zeroed, in any combination."""
    for name in disk.list(DIRECTORY):
        file = f"{DIRECTORY}/{name}"
        if name.endswith(".log") or dice.below(2):
            continue
        fate, size = dice.below(4), disk.size(file)
        if fate == 0:
            disk.remove(file)
        elif fate == 1:
            disk.open(file).truncate(0)
        elif fate == 2:
            disk.open(file).truncate(dice.below(size + 1))
        else:
            disk.open(file).write(0, (bytes(size),))


@pytest.mark.parametrize("first_seed", range(0, SEEDS, CHUNK))
def test_what_was_safe_is_readable_or_the_log_says_that_it_is_damaged(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + CHUNK):
        dice, disk = SeededDice(seed), new_disk(seed)
        everything = content(stored(disk))
        damage_beside(disk, dice)
        if dice.below(4) == 0:
            assert content(again(disk)) == everything, seed
            continue
        touched = damage(disk, dice)
        try:
            log = again(disk.kill())
        except DamagedLogError:
            pass
        else:
            # Only a segment that a crash cannot have touched is not looked at; its readers see what is there.
            assert log.end_offset == BATCHES and max(touched) < 2 * PER_SEGMENT, seed
        repair_partition(disk, LogDirectory(disk, "data"), ORDERS, cut=False)
        assert lost(disk) == [], seed
        log = again(disk.crash())
        assert {base for base, _ in offsets_left(log)} == set(range(BATCHES)) - touched, seed
        assert append(log) == BATCHES, seed


def offsets_left(log: PartitionLog) -> list[tuple[int, int]]:
    """As `offsets`, for a log that may have nothing behind its last gap."""
    found: list[tuple[int, int]] = []
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1 << 20, offset_max=log.end_offset)
        if piece is None:
            break
        found += [(header.base_offset, header.last_offset) for header, _ in iterate_batches(piece.read())]
        offset = piece.next_offset
    return found


def test_the_next_batch_is_found_behind_a_length_that_lies() -> None:
    disk = new_disk()
    stored(disk)
    disk.open(path(2)).write(SIZE + 8, (struct.pack(">i", 7),))
    assert lost(disk) == [(9, 10)]
