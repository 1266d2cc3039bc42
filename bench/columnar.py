"""Rows a second of the columnar codec beside the plain Python loop, one core, nothing but the codec.

    python -m bench.columnar [--rounds 7]

The best of the rounds counts, in seconds of CPU: whatever else runs can only make a round slower.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from moldau.client.column_partitioner import partitions_of_keys
from moldau.client.partitioner import murmur2
from moldau.protocol import Compression, Record, build_batch, iterate_batches, iterate_records
from moldau.protocol.columnar import decode_fetched, encode_batches

FETCHED_BYTES = 8 << 20
ALL_OFFSETS = 1 << 62
TIME_MS = 1_700_000_000_000


def rows_per_second(row_count: int, rounds: int, work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return row_count / best


def measure(value_bytes: int, spread: float, batch_bytes: int, codec: Compression, rounds: int) -> None:
    """Keys of ten bytes; values of `value_bytes` give or take `spread` of it."""
    dice = random.Random(1)
    row_count = FETCHED_BYTES // (value_bytes + 20)
    keys = [b"key-%06d" % dice.randrange(10**6) for _ in range(row_count)]
    text = dice.randbytes(1 << 16).hex().encode()
    values = []
    for _ in range(row_count):
        start = dice.randrange(1 << 16)
        values.append(text[start : start + round(value_bytes * dice.uniform(1 - spread, 1 + spread))])
    times = TIME_MS + np.arange(row_count) // 50
    columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())

    def encode() -> None:
        for _ in encode_batches(*columns, timestamp=pa.array(times), bytes_max=batch_bytes, compression=codec):
            pass

    def encode_plainly() -> None:
        rows = zip(range(row_count), times.tolist(), keys, values, strict=True)
        build_batch([Record(*row) for row in rows], compression=codec)

    log = bytearray()
    for batch in encode_batches(*columns, timestamp=pa.array(times), bytes_max=batch_bytes, compression=codec):
        log += batch
    fetched = memoryview(bytes(log))

    def decode() -> None:
        for _ in decode_fetched(fetched, 0, ALL_OFFSETS):
            pass

    def decode_plainly() -> None:
        for _, batch in iterate_batches(fetched):
            for _ in iterate_records(batch):
                pass

    rates = [
        rows_per_second(row_count, rounds, decode),
        rows_per_second(row_count, 2, decode_plainly),
        rows_per_second(row_count, rounds, encode),
        rows_per_second(row_count, 2, encode_plainly),
    ]
    sizes = f"{value_bytes} B ±{spread:.0%}" if spread else f"{value_bytes} B"
    name = f"{sizes}, batches of {batch_bytes >> 10} KiB, {codec.name.lower()}"
    print(f"{name:<44}" + "".join(f"{rate / 1e6:>14.2f}" for rate in rates))


def measure_partitioner(rounds: int) -> None:
    keys = [b"key-%06d" % index for index in range(100_000)]
    column = pa.array(keys, pa.binary())
    rates = [
        rows_per_second(len(keys), rounds, lambda: partitions_of_keys(column, 6)),
        rows_per_second(len(keys), 2, lambda: [murmur2(key) for key in keys]),
    ]
    print(f"partitions of 10 B keys: {rates[0] / 1e6:.1f} M keys/s, one by one {rates[1] / 1e6:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    titles = ("decode", "plain loop", "encode", "plain builder")
    print(f"{'M rows/s':<44}" + "".join(f"{title:>14}" for title in titles))
    for value_bytes in (100, 1024):
        measure(value_bytes, 0, 1 << 20, Compression.NONE, rounds)
        measure(value_bytes, 0.5, 1 << 20, Compression.NONE, rounds)
        measure(value_bytes, 0, 1 << 14, Compression.NONE, rounds)
        measure(value_bytes, 0, 1 << 20, Compression.LZ4, rounds)
        measure(value_bytes, 0, 1 << 20, Compression.ZSTD, rounds)
    measure_partitioner(rounds)


if __name__ == "__main__":
    main()
