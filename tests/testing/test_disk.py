"""The simulated disk keeps its promises, and breaks everything that is no promise."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from moldau.testing.dice import SeededDice
from moldau.testing.disk import UNLIMITED_BYTES, PowerLoss, SimulatedDisk

SEEDS = range(60)


def disk(seed: int = 0) -> SimulatedDisk:
    made = SimulatedDisk(SeededDice(seed))
    made.make_directories("d")
    made.sync_directory("")
    return made


def outcomes(act: Callable[[SimulatedDisk], None], path: str = "d/f") -> set[bytes | None]:
    """What a file may be after a power cut, over many seeds."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        before = disk(seed)
        act(before)
        after = before.crash()
        found.add(after.read_file(path) if after.exists(path) else None)
    return found


def put(to: SimulatedDisk, data: bytes, path: str = "d/f") -> None:
    to.open(path, create=True).write(0, (data,))


def test_files_read_write_grow_and_shrink() -> None:
    file = disk().open("d/f", create=True)
    file.write(2, (b"ab", bytearray(b"cd"), memoryview(b"ef")))
    assert (file.read(0, 100), file.size(), file.fileno()) == (b"\0\0abcdef", 8, -1)
    file.truncate(3)
    file.truncate(5)
    assert file.read(1, 10) == b"\0a\0\0"


def test_synced_bytes_and_names_survive() -> None:
    def act(to: SimulatedDisk) -> None:
        put(to, b"safe")
        to.open("d/f").sync()
        to.sync_directory("d")

    assert outcomes(act) == {b"safe"}


def test_a_name_without_a_synced_directory_may_be_lost_and_bytes_without_a_sync_torn() -> None:
    found = outcomes(lambda to: put(to, b"0123456789"))
    assert {None, b"", b"0123456789"} < found
    assert any(data and b"0123456789".startswith(data) and len(data) < 10 for data in found)
    assert any(data and data[0] == 0 for data in found), "a hole in front is possible too"


def test_unsynced_writes_survive_in_any_combination() -> None:
    def act(to: SimulatedDisk) -> None:
        put(to, b"....")
        file = to.open("d/f")
        file.sync()
        to.sync_directory("d")
        file.write(0, (b"A",))
        file.write(1, (b"B",))

    assert {b"....", b"A...", b".B..", b"AB.."} == outcomes(act)


def test_a_rename_is_whole_or_not_at_all_and_safe_after_the_directory_is_synced() -> None:
    def prepare(to: SimulatedDisk) -> None:
        put(to, b"new", "d/g")
        to.open("d/g").sync()
        put(to, b"old")
        to.open("d/f").sync()
        to.sync_directory("d")
        to.rename("d/g", "d/f")

    assert outcomes(prepare) == {b"old", b"new"}
    for seed in SEEDS:
        before = disk(seed)
        prepare(before)
        after = before.crash()
        assert after.exists("d/g") == (after.read_file("d/f") == b"old")

    def synced(to: SimulatedDisk) -> None:
        prepare(to)
        to.sync_directory("d")

    assert outcomes(synced) == {b"new"}


def test_a_removed_file_may_return_until_the_directory_is_synced() -> None:
    def act(to: SimulatedDisk) -> None:
        to.replace_file("d/f", b"x")
        to.remove("d/f")

    assert outcomes(act) == {None, b"x"}


def test_replacing_a_file_is_atomic_and_durable() -> None:
    def act(to: SimulatedDisk) -> None:
        to.replace_file("d/f", b"one")
        to.replace_file("d/f", b"two")

    assert outcomes(act) == {b"two"}

    def interrupted(to: SimulatedDisk) -> None:
        to.replace_file("d/f", b"one")
        to.lose_power_after(1)
        with pytest.raises(PowerLoss):
            to.replace_file("d/f", b"two")

    assert outcomes(interrupted) == {b"one", b"two"}


def test_a_directory_may_be_lost_until_its_parent_is_synced() -> None:
    def act(to: SimulatedDisk) -> None:
        to.make_directories("d/e")
        to.replace_file("d/e/f", b"x")

    assert outcomes(act, "d/e/f") == {None, b"x"}

    def renamed(to: SimulatedDisk) -> None:
        act(to)
        to.sync_directory("d")
        to.rename("d/e", "d/z")

    assert outcomes(renamed, "d/z/f") == {None, b"x"} == outcomes(renamed, "d/e/f")


def test_killing_the_process_loses_nothing() -> None:
    before = disk()
    put(before, b"unsynced")
    before.lock("d/.lock")
    after = before.kill()
    assert after.read_file("d/f") == b"unsynced"
    after.lock("d/.lock")


def test_power_may_go_in_the_middle_of_a_write() -> None:
    lengths = set()
    for seed in SEEDS:
        made = disk(seed)
        file = made.open("d/f", create=True)
        made.lose_power_after(1)
        file.write(0, (b"whole",))
        with pytest.raises(PowerLoss):
            file.write(5, (b"0123456789",))
        lengths.add(file.size() - 5)
    assert min(lengths) == 0 and max(lengths) == 10 and len(lengths) > 5


def test_a_failed_sync_drops_the_bytes_and_the_next_one_lies() -> None:
    def act(to: SimulatedDisk) -> None:
        put(to, b"x")
        to.sync_directory("d")
        to.fail_sync("d/f")
        with pytest.raises(OSError) as error:
            to.open("d/f").sync()
        assert error.value.errno == errno.EIO
        assert to.synced_again is None
        to.open("d/f").sync()
        assert to.synced_again == "d/f", "whoever judges is told"

    assert outcomes(act) == {b"", b"x"}


def test_a_full_disk_takes_a_part_and_says_so() -> None:
    sizes = set()
    for seed in SEEDS:
        made = disk(seed)
        made.capacity_bytes = 6
        file = made.open("d/f", create=True)
        with pytest.raises(OSError) as error:
            file.write(0, (b"0123456789",))
        assert error.value.errno == errno.ENOSPC
        assert b"0123456789".startswith(file.read(0, 100))
        sizes.add(file.size())
        made.capacity_bytes = UNLIMITED_BYTES
        file.write(0, (b"0123456789",))
    assert sizes == set(range(7))


def test_bits_flip_and_reads_fail_on_demand() -> None:
    made = disk()
    put(made, b"abc")
    made.flip_bit("d/f", 1, 0)
    assert made.read_file("d/f") == b"acc"
    made.fail_reads("d/f")
    with pytest.raises(OSError):
        made.open("d/f").read(0, 1)


def test_listing_locks_and_missing_files() -> None:
    made = disk()
    put(made, b"", "d/b")
    put(made, b"", "d/a")
    made.make_directories("d/sub/deep")
    assert made.list("d") == ["a", "b", "sub"]
    lock = made.lock("d/.lock")
    with pytest.raises(BlockingIOError):
        made.lock("d/.lock")
    lock.release()
    made.lock("d/.lock")
    for act in (made.open, made.size, made.read_file, made.remove, made.remove_tree, made.list, made.sync_directory):
        with pytest.raises(FileNotFoundError):
            act("d/none")
    made.remove_tree("d/sub")
    assert made.list("d") == [".lock", "a", "b"]


def test_the_same_seed_crashes_the_same_way() -> None:
    def run(seed: int) -> dict[str, bytes]:
        made = disk(seed)
        for number in range(20):
            put(made, bytes([number]) * 30, f"d/{number}")
        return made.crash().tree()

    assert run(1) == run(1) != run(2)


def test_after_a_power_loss_nothing_changes_any_more() -> None:
    lost = disk()
    told: list[int] = []
    lost.on_power_loss = lambda: told.append(lost.steps)
    file = lost.open("d/f", create=True)
    lost.lose_power_after(0)
    with pytest.raises(PowerLoss):
        file.write(0, [b"first"])
    left = lost.tree()
    for act in (lambda: file.write(0, [b"second"]), lambda: lost.remove("d/f"), lambda: lost.sync_directory("d")):
        with pytest.raises(PowerLoss):
            act()
    assert lost.tree() == left
    assert len(told) == 1
