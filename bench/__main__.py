"""`make bench`: every row of the table, Moldau and Apache Kafka in turns, ratios to `bench/RESULTS.md`.

    python -m bench [ROW...] [--rounds 3]
    python -m bench spark [--only ROW]... [--rounds 1]

Some rows alone replace theirs in the table and leave the others as they are. Rows: start, load, partitions, recovery,
groups, transactions, logs, clusters, failures, many, tables. `spark` is a table of its own (`bench.spark_rows`). Run it
on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from bench import cluster_rows, group_rows, log_rows, rows, table_rows, transaction_rows
from bench.report import Row, write_results
from bench.spark_report import write_spark_results

HERE = Path(__file__).parent
BINARIES = HERE / "bin"
ROUNDS = 3
SPARK = "spark"

ROWS: dict[str, Callable[[list[Row], int], None]] = {
    "start": rows.start,
    "load": rows.load,
    "partitions": rows.partitions,
    "recovery": rows.recovery,
    "groups": group_rows.groups,
    "transactions": transaction_rows.transactions,
    "logs": log_rows.logs,
    "clusters": cluster_rows.clusters,
    "failures": cluster_rows.failures,
    "many": cluster_rows.many,
    "tables": table_rows.tables,
}


class _Results(list[Row]):
    """Rows are shown as soon as they are measured: a run takes a quarter of an hour."""

    def __iadd__(self, rows: Iterable[Row]) -> Self:
        for row in rows:
            self.append(row)
        return self

    def append(self, row: Row) -> None:
        super().append(row)
        print(row.line(), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("row", nargs="*", choices=[*ROWS, SPARK, []], help="which rows; all but Spark's by default")
    parser.add_argument("--rounds", type=int, help=f"turns of each broker per row; {ROUNDS}, and 1 for Spark's")
    parser.add_argument("--only", action="append", default=[], metavar="ROW", help="which of Spark's rows")
    arguments = parser.parse_args()
    if SPARK in arguments.row:
        if len(arguments.row) > 1:
            parser.error("spark is a table of its own: run it alone")
        return spark(arguments.only, arguments.rounds or 1)
    build_load_generators()
    results = _Results()
    with alone():
        for name in arguments.row or ROWS:
            print(f"-- {name}", flush=True)
            ROWS[name](results, arguments.rounds or ROUNDS)
            # What is measured is kept, whatever becomes of the rest.
            write_results(HERE / "RESULTS.md", results, keep_others=True)
    write_results(HERE / "RESULTS.md", results, keep_others=bool(arguments.row))
    return 0 if all(row.is_reached for row in results) else 1


def spark(names: list[str], rounds: int) -> int:
    # Needs pyspark, which the other rows do without.
    from bench.spark_rows import PARTS, spark_rows

    if unknown := set(names) - set(PARTS):
        sys.exit(f"no row {', '.join(sorted(unknown))} of Spark's: there are {', '.join(PARTS)}")
    is_reached = True
    with alone():
        for rows in spark_rows(names, rounds):
            write_spark_results(HERE / "RESULTS.md", rows)
            is_reached &= all(row.is_reached() for row in rows)
    return 0 if is_reached else 1


@contextmanager
def alone() -> Iterator[None]:
    """Timings are taken alone."""
    with open(Path(tempfile.gettempdir()) / "moldau-bench.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_load_generators() -> None:
    BINARIES.mkdir(exist_ok=True)
    for name, flags in (("rawload", ["-msse4.2"]), ("rdload", ["-lrdkafka", "-lpthread"])):
        source, binary = HERE / f"{name}.c", BINARIES / name
        if binary.exists() and binary.stat().st_mtime > source.stat().st_mtime:
            continue
        command = ["gcc", "-O2", "-Wall", "-o", str(binary), str(source), *flags]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"cannot build {source.name}: it needs gcc and, for rdload, librdkafka's headers (librdkafka-dev)")


if __name__ == "__main__":
    sys.exit(main())
