"""A row of Spark's table: one broker, our connector beside Spark's own with default and with tuned options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from bench.report import SPARK_HEADING, machine, show

_RULE = "|---|---|---|---|---|---|---|---|---|"


@dataclass(slots=True)
class SparkRow:
    """`of_default` and `of_tuned` are what ours must be, divided by theirs; `limit` is an absolute bound for ours."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    of_default: float | None = None
    of_tuned: float | None = None
    limit: float | None = None
    ours: list[float] = field(default_factory=list)
    default: list[float] = field(default_factory=list)
    tuned: list[float] = field(default_factory=list)

    def is_reached(self) -> bool:
        bounds = [
            (ratio(self.ours, self.default), self.of_default),
            (ratio(self.ours, self.tuned), self.of_tuned),
            (median(self.ours) if self.ours else None, self.limit),
        ]
        for value, bound in bounds:
            if value is None or bound is None:
                continue
            if value < bound if self.better == "higher" else value > bound:
                return False
        return True

    @property
    def goal(self) -> str:
        sign = ">=" if self.better == "higher" else "<="
        parts = []
        if self.of_default is not None:
            parts.append(f"{sign} {self.of_default:g}x default")
        if self.of_tuned is not None:
            parts.append(f"{sign} {self.of_tuned:g}x tuned")
        if self.limit is not None:
            parts.append(f"{sign} {self.limit:g} {self.unit}")
        return ", ".join(parts)

    def cells(self) -> list[str]:
        return [
            show(self.ours),
            show(self.default),
            show(self.tuned),
            self.unit,
            _times(ratio(self.ours, self.default)),
            _times(ratio(self.ours, self.tuned)),
            self.goal,
        ]

    def line(self) -> str:
        ours, default, tuned, unit, of_default, of_tuned, goal = self.cells()
        mark = "reached" if self.is_reached() else "MISSED"
        return (
            f"{self.name:<52} {ours:>28} {default:>28} {tuned:>28} {unit:<14} {of_default:>6} {of_tuned:>6}  "
            f"{goal:<32} {mark}"
        )


def ratio(ours: list[float], theirs: list[float]) -> float | None:
    if not ours or not theirs or not median(theirs):
        return None
    return median(ours) / median(theirs)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def write_spark_results(path: Path, rows: list[SparkRow]) -> None:
    """Spark's part of the file; rows of an earlier run that were not measured now stay, and so does the other part."""
    before, _, part = path.read_text(encoding="utf-8").partition(SPARK_HEADING)
    table = {}
    for line in part.partition(_RULE)[2].strip().splitlines():
        table[line.split(" | ")[0].removeprefix("| ")] = line
    for row in rows:
        mark = "reached" if row.is_reached() else "**missed**"
        table[row.name] = f"| {row.name} | {' | '.join(row.cells())} | {mark} |"
    lines = [
        SPARK_HEADING,
        "",
        "Written by `make bench-spark`: `moldau` in a session of `moldau.spark.session`, Spark's `kafka` (4.2.0) in",
        "one of Spark's, with its defaults and with larger fetches, polls and batches; same data, local[2] on the",
        "cores that the broker has too, warmed up, in turns. Median (least-most) of the rounds; ratios are ours",
        "divided by theirs.",
        "",
        machine(),
        "",
        "| | moldau | kafka, default | kafka, tuned | unit | of default | of tuned | goal | |",
        _RULE,
        *table.values(),
    ]
    path.write_text(before + "\n".join(lines) + "\n", encoding="utf-8")
