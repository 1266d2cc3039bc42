"""The real disk, clock and dice do what the ports promise."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from moldau.broker.host import SystemClock, SystemDice, SystemDisk


def test_a_file_reads_writes_truncates_and_syncs(tmp_path: Path) -> None:
    disk = SystemDisk()
    path = f"{tmp_path}/f"
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    file = disk.open(path, create=True)
    file.write(0, (b"hello",))
    file.write(5, (b" ", bytearray(b"wor"), memoryview(b"ld")))
    file.write(11, ())
    assert (file.read(0, 100), file.read(6, 3), file.size(), disk.size(path)) == (b"hello world", b"wor", 11, 11)
    file.truncate(4)
    file.sync()
    assert disk.read_file(path) == b"hell"
    assert os.fstat(file.fileno()).st_size == 4
    file.close()
    file.close()


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_short_writes_are_continued_and_short_reads_too(tmp_path: Path, limit: int) -> None:
    real_pwrite, real_pwritev, real_pread = os.pwrite, os.pwritev, os.pread
    file = SystemDisk().open(f"{tmp_path}/f", create=True)
    with (
        patch("os.pwrite", lambda fd, data, position: real_pwrite(fd, bytes(data)[:limit], position)),
        patch(
            "os.pwritev", lambda fd, data, position: real_pwritev(fd, [b"".join(map(bytes, data))[:limit]], position)
        ),
        patch("os.pread", lambda fd, count, position: real_pread(fd, min(count, limit), position)),
    ):
        file.write(0, (b"0123456789",))
        file.write(10, (b"abc", b"", b"defgh", b"ij"))
        assert file.read(0, 100) == b"0123456789abcdefghij"


def test_more_buffers_than_the_kernel_takes_are_written(tmp_path: Path) -> None:
    file = SystemDisk().open(f"{tmp_path}/f", create=True)
    file.write(0, [b"%04d" % number for number in range(3000)])
    assert file.read(4 * 2999, 10) == b"2999"
    assert file.size() == 12_000


def test_a_file_is_closed_when_nobody_holds_it(tmp_path: Path) -> None:
    file = SystemDisk().open(f"{tmp_path}/f", create=True)
    descriptor = file.fileno()
    del file
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_directories_names_and_replacement(tmp_path: Path) -> None:
    disk = SystemDisk()
    disk.make_directories(f"{tmp_path}/a/b/c")
    disk.make_directories(f"{tmp_path}/a/b/c")
    disk.replace_file(f"{tmp_path}/a/x", b"1")
    disk.replace_file(f"{tmp_path}/a/x", b"22")
    assert disk.list(f"{tmp_path}/a") == ["b", "x"]
    disk.rename(f"{tmp_path}/a/x", f"{tmp_path}/a/y")
    assert disk.read_file(f"{tmp_path}/a/y") == b"22"
    assert disk.exists(f"{tmp_path}/a/b") and not disk.exists(f"{tmp_path}/a/x")
    assert disk.modified_ms(f"{tmp_path}/a/y") > 1_600_000_000_000
    assert disk.free_bytes(str(tmp_path)) > 0
    disk.sync_directory(f"{tmp_path}/a")
    disk.remove(f"{tmp_path}/a/y")
    disk.remove_tree(f"{tmp_path}/a")
    assert disk.list(str(tmp_path)) == []


def test_a_lock_keeps_out_this_process_and_others(tmp_path: Path) -> None:
    disk, path = SystemDisk(), f"{tmp_path}/.lock"
    other = f"from moldau.broker.host import SystemDisk\nSystemDisk().lock({path!r})"

    def other_process_gets_it() -> bool:
        done = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or f"BlockingIOError: process {os.getpid()}" in done.stderr, done.stderr
        return done.returncode == 0

    lock = disk.lock(path)
    with pytest.raises(BlockingIOError, match="which is this one"):
        disk.lock(path)
    assert not other_process_gets_it()
    lock.release()
    lock.release()
    assert other_process_gets_it()
    disk.lock(path).release()


def test_clocks_run_and_timers_fire_on_the_running_loop() -> None:
    clock = SystemClock()
    assert abs(clock.now_ms() / 1000 - __import__("time").time()) < 5
    first = clock.monotonic_ms()

    async def main() -> list[str]:
        fired: list[str] = []
        clock.call_later(1, lambda: fired.append("yes"))
        clock.call_later(1, lambda: fired.append("no")).cancel()
        await asyncio.sleep(0.05)
        return fired

    assert asyncio.run(main()) == ["yes"]
    assert clock.monotonic_ms() >= first + 40


@pytest.mark.parametrize("bound", [1, 2, 3, 6, 255, 256, 257, 2**40 + 1])
def test_dice_stay_below_their_bound_and_reach_every_small_number(bound: int) -> None:
    dice = SystemDice()
    throws = [dice.below(bound) for _ in range(300)]
    assert min(throws) >= 0 and max(throws) < bound
    if bound <= 6:
        assert set(throws) == set(range(bound))
    assert len(dice.random_bytes(16)) == 16
