"""Chance that repeats: the same seed gives the same throws, in every process and on every machine."""

from __future__ import annotations

import random


class SeededDice:
    __slots__ = ("_random",)

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(f"moldau {seed}")

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def chance(self, percent: int) -> bool:
        return self._random.randrange(100) < percent
