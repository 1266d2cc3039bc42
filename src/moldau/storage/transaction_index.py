"""Aborted transactions of one segment, as Kafka's `.txnindex` file holds them; most segments have none and no file.

version 2 | producer id 8 | first offset 8 | last offset (of the abort marker) 8 | last stable offset 8
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class CorruptTransactionIndexError(ValueError):
    """Bytes that are no index of aborted transactions: it is made again from the log."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        return _ENTRY.pack(VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset)


class TransactionIndex:
    """The entries in the order of their markers."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[AbortedTransaction] | None = None) -> None:
        self.entries = entries if entries is not None else []

    def append(self, aborted: AbortedTransaction) -> None:
        assert not self.entries or self.entries[-1].last_offset < aborted.last_offset
        self.entries.append(aborted)

    def truncate(self, offset: int) -> bool:
        """Forget transactions whose marker is at or after the offset; whether any was forgotten."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        changed = len(kept) != len(self.entries)
        self.entries = kept
        return changed

    def collect(self, first_offset: int, upper_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions that touch [first, upper), and whether later segments cannot hold any more of them."""
        found: list[AbortedTransaction] = []
        for entry in self.entries:
            if entry.last_offset >= first_offset and entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found, True
        return found, False

    def to_bytes(self) -> bytes:
        return b"".join(entry.to_bytes() for entry in self.entries)

    @classmethod
    def from_bytes(cls, data: bytes) -> TransactionIndex:
        if len(data) % ENTRY_BYTES:
            raise CorruptTransactionIndexError(f"{len(data)} bytes are no whole number of aborted transactions")
        entries: list[AbortedTransaction] = []
        for version, producer_id, first_offset, last_offset, last_stable_offset in _ENTRY.iter_unpack(data):
            if version != VERSION or (entries and entries[-1].last_offset >= last_offset):
                raise CorruptTransactionIndexError("entries of an unknown version or out of order")
            entries.append(AbortedTransaction(producer_id, first_offset, last_offset, last_stable_offset))
        return cls(entries)
