"""The records that every client writes and reads: what a key, value, header and timestamp can be."""

from __future__ import annotations

from dataclasses import dataclass, replace

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP = 1_750_000_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """One record as every client sees it; headers keep their order and may repeat a name."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = BASE_TIMESTAMP


def sample_records() -> list[Record]:
    """Records with every shape of key, value and headers, then enough text for a codec to bite on."""
    shapes = [
        Record(b"key", b"value"),
        Record(None, b"no key"),
        Record(b"tombstone", None),
        Record(b"", b""),
        Record(bytes(range(256)), bytes(reversed(range(256)))),
        Record(b"headers", b"three", (("trace", b"\x00\xff\x80"), ("trace", b"again"), ("empty", b""))),
        Record("klíč".encode(), "Vltava, Moldau, 川".encode(), (("jméno", "řeka".encode()),)),
        Record(b"large", b"the river runs through the town " * 4_000),
    ]
    text = [Record(f"key-{i}".encode(), f"line {i} of a text that repeats itself".encode() * 3) for i in range(50)]
    # Ten milliseconds apart, and one in the middle that looks back.
    stamped = [replace(record, timestamp=BASE_TIMESTAMP + 10 * i) for i, record in enumerate(shapes + text)]
    stamped[20] = replace(stamped[20], timestamp=BASE_TIMESTAMP + 5)
    return stamped


def text_records() -> list[Record]:
    """What can go through a command line: no null, no line end, no bytes outside UTF-8."""
    return [
        replace(record, headers=())
        for record in sample_records()
        if record.key and record.value and b"\n" not in record.value + record.key and b"\x00" not in record.key
    ]
