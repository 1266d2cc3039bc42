"""Records of one key from any client meet in one partition: our hash is Java's."""

from __future__ import annotations

import itertools
import random
import subprocess

import pytest

from moldau.client.accumulator import TopicLanes
from moldau.client.partitioner import RoundRobin, murmur2, partition_of_key
from tests.java import java_program
from tests.oracle import require_oracle


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_has_the_values_that_java_has(key: bytes, hashed: int) -> None:
    assert _signed(murmur2(key)) == hashed


@pytest.mark.oracle
def test_murmur2_and_partitions_equal_javas_on_random_keys() -> None:
    require_oracle()
    dice = random.Random(20)
    keys = [bytes(length) for length in range(9)] + [b"\xff" * length for length in range(9)]
    keys += [dice.randbytes(dice.randrange(0, 100)) for _ in range(2000)]
    done = subprocess.run(
        java_program("Murmur2", sources=["client/java/Murmur2.java"]),
        input="".join(key.hex() + "\n" for key in keys),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for key, line in zip(keys, done.stdout.splitlines(), strict=True):
        hashed, *partitions = (int(word) for word in line.split())
        assert _signed(murmur2(key)) == hashed, key
        assert [partition_of_key(key, count) for count in (1, 7, 1000)] == partitions, key


def _lanes(count: int, partitioner=None, sticky_bytes: int = 1000) -> TopicLanes:
    lanes = TopicLanes("t", count, partitioner=partitioner, sticky_bytes=sticky_bytes, idempotent=False)
    for queue in lanes.queues:
        queue.leader = 1
    return lanes


def test_keyless_records_stay_with_a_partition_for_one_batch_size_and_then_move() -> None:
    lanes = _lanes(3)
    seen = []
    for _ in range(30):
        queue = lanes.choose(None, b"v")
        assert lanes.choose(None, b"v") is queue
        seen.append(queue.partition)
        batch = queue.open_batch(0.0, 0)
        batch.append(0, None, bytes(1000), None)
        queue.close_batch()
        lanes.on_batch_closed(batch)
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert set(seen) == {0, 1, 2}


def test_small_lingered_batches_do_not_move_the_sticky_partition() -> None:
    lanes = _lanes(3)
    queue = lanes.choose(None, b"v")
    batch = queue.open_batch(0.0, 0)
    batch.append(0, None, b"small", None)
    queue.close_batch()
    lanes.on_batch_closed(batch)
    assert lanes.choose(None, b"v") is queue


def test_sticky_choice_avoids_partitions_without_a_leader() -> None:
    lanes = _lanes(3)
    lanes.queues[0].leader = lanes.queues[2].leader = -1
    assert lanes.choose(None, None).partition == 1


def test_round_robin_takes_partitions_in_turn_per_topic() -> None:
    lanes = _lanes(3, RoundRobin())
    assert [lanes.choose(b"same", None).partition for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_a_users_partitioner_is_asked_and_its_mistakes_are_named() -> None:
    asked = []
    lanes = _lanes(3, lambda *args: asked.append(args) or 2)
    assert lanes.choose(b"k", b"v").partition == 2
    assert asked == [("t", b"k", b"v", 3)]
    with pytest.raises(ValueError, match=r"chose 9 for topic 't', which has partitions 0 to 2"):
        _lanes(3, lambda *args: 9).choose(b"k", b"v")
