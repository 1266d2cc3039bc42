"""A row of the table: what was measured on both brokers, in turns, and what must be reached."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

_RULE = "|---|---|---|---|---|---|---|"
# Where the other table begins, which `spark_report` writes.
SPARK_HEADING = "# Spark without a jar, beside Spark's own connector"


@dataclass(slots=True)
class Row:
    """`better` says which direction is good; `at_least` the ratio to reach, `limit` an absolute bound for Moldau."""

    name: str
    unit: str
    better: str  # "higher" or "lower"
    at_least: float | None = None
    limit: float | None = None
    moldau: list[float] = field(default_factory=list)
    kafka: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """How many times better Moldau is; above 1 is ahead."""
        if not self.moldau or not self.kafka:
            return None
        ours, theirs = median(self.moldau), median(self.kafka)
        if not ours or not theirs:
            return None
        return ours / theirs if self.better == "higher" else theirs / ours

    @property
    def is_reached(self) -> bool:
        if self.limit is not None and self.moldau:
            value = median(self.moldau)
            if value > self.limit if self.better == "lower" else value < self.limit:
                return False
        return self.at_least is None or self.ratio is None or self.ratio >= self.at_least

    @property
    def goal(self) -> str:
        parts = []
        if self.at_least is not None:
            parts.append(f">= {self.at_least:g}x")
        if self.limit is not None:
            parts.append(f"{'<=' if self.better == 'lower' else '>='} {self.limit:g} {self.unit}")
        return ", ".join(parts) or "-"

    def line(self) -> str:
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}x"
        mark = "reached" if self.is_reached else "MISSED"
        figures = f"{show(self.moldau):>24} {show(self.kafka):>24} {self.unit:<10} {ratio:>8}"
        return f"{self.name:<58} {figures}  {self.goal:<20} {mark}"


def show(values: list[float]) -> str:
    """The median and, of several rounds, the spread."""
    if not values:
        return "-"
    if len(values) == 1 or min(values) == max(values):
        return _number(median(values))
    return f"{_number(median(values))} ({_number(min(values))}-{_number(max(values))})"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write_results(path: Path, rows: list[Row], *, keep_others: bool) -> None:
    """The whole table; with `keep_others`, rows of an earlier run that were not measured now stay."""
    table = {}
    before, heading, spark = (path.read_text(encoding="utf-8") if path.exists() else "").partition(SPARK_HEADING)
    if keep_others:
        for line in before.partition(_RULE)[2].strip().splitlines():
            table[line.split(" | ")[0].removeprefix("| ")] = line
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
        mark = "reached" if row.is_reached else "**missed**"
        table[row.name] = (
            f"| {row.name} | {show(row.moldau)} | {show(row.kafka)} | {row.unit} | {ratio} | {row.goal} | {mark} |"
        )
    lines = [
        "# Moldau beside Apache Kafka 4.3.1",
        "",
        "Written by `make bench`: both brokers on the same core in one run, in turns, the load on another core,",
        "Apache Kafka (G1, 1 GB heap) warmed by the same load first. Median (least-most) of the rounds. Absolute",
        "figures depend on the machine; the ratio says how many times better Moldau is. Rows of three nodes",
        "have all cores, with the load beside them.",
        "",
        machine(),
        "",
        "| | Moldau | Apache Kafka | unit | ratio | goal | |",
        _RULE,
        *table.values(),
    ]
    kept = f"\n{heading}{spark}" if heading else ""
    path.write_text("\n".join(lines) + "\n" + kept, encoding="utf-8")


def machine() -> str:
    return f"Machine: {os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}."
