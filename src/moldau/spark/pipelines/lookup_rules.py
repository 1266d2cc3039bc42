"""Which of a key's records in one micro-batch is the row, without Spark."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """A record of a table's topic; without a row it deletes."""

    offset: int
    row: str | None


def newest(known: Change | None, change: Change) -> Change:
    """A key is in one partition, where the higher offset is the newer; a shuffle hands them over in any order."""
    return change if known is None or change.offset > known.offset else known
