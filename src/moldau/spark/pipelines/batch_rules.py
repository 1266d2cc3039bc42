"""What every sink decides before it writes or commits a batch, without Spark and without the place that it writes to.

A sink keeps a query's newest `Mark` together with the rows, so that both become visible at once. It reads the mark
before tasks write, and again inside of what makes the commit one step: a lock, or a version that nobody else may have
taken meanwhile. Of two drivers that run one query only one can then write a batch.
"""

from __future__ import annotations

import json

from moldau.spark.exactly_once import ExactlyOnceRefused, Mark, Refuse, Skip, SourceOffsets, decide_under


def is_next(stored: Mark | None, batch: Mark, name: str, naming: str) -> bool:
    """Whether the batch is to be written; False when it is in already. ExactlyOnceRefused when the checkpoint is lost,
    older than what was written, or another query's. `name` is where the mark is kept, and `naming` sets it."""
    decision = decide_under(stored, batch, name, naming)
    if isinstance(decision, Refuse):
        raise ExactlyOnceRefused(decision.why)
    return not isinstance(decision, Skip)


def offsets_by_topic(sources: SourceOffsets) -> dict[str, dict[str, int]]:
    """Up to where a batch has read its topics, as JSON has it."""
    topics: dict[str, dict[str, int]] = {}
    for where, offset in sorted(sources.by_partition.items()):
        topics.setdefault(where.topic, {})[str(where.partition)] = offset
    return topics


def note(query: str, batch: Mark, sources: SourceOffsets) -> str:
    """A mark with its offsets as one text, for places that keep texts."""
    told = {"name": query, "mark": batch.to_metadata(), "offsets": offsets_by_topic(sources)}
    return json.dumps(told, separators=(",", ":"))
