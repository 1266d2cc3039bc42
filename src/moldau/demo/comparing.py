"""The score of what runs or ran on a cluster: reads the truth and what the pipeline found, and has them compared."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from moldau.client import ClusterClient, IsolationLevel, PartitionReader, Start, admin
from moldau.demo.scoring import Score, Span, score, visible
from moldau.demo.topics import ANOMALIES, TREND, TRUTH
from moldau.kernel import KafkaError, TopicPartition

# What begins in the newest minutes takes a few to be told from chance, and is then on its way for a batch.
_SETTLING_MINUTES = 8


class NothingToScore(RuntimeError):
    """One line that says what is missing."""


async def read_score(client: ClusterClient) -> Score:
    """What was put in and could be seen by now, beside all that was found."""
    try:
        truth = await _values(client, TRUTH)
        judged = await _values(client, TREND)
        found = await _values(client, ANOMALIES)
    except KafkaError as error:
        raise NothingToScore(f"there is no demo on this cluster ({error}): start one with `moldau demo run`") from error
    runs = [one["run"] for one in truth if "run" in one]
    if not runs or not judged:
        raise NothingToScore("nothing has been analysed yet: start the demo with `moldau demo run`, and wait a while")
    minute_ms = int(runs[-1]["minute_ms"])
    until_ms = max(_ms(one["window_start"]) for one in judged) - _SETTLING_MINUTES * minute_ms
    told = [one["anomaly"] for one in truth if "anomaly" in one]
    everything = [Span(one["site"], one["metric"], one["kind"], one["start_ms"], one["end_ms"]) for one in told]
    whole = visible(
        (span for span, one in zip(everything, told, strict=True) if not one["is_cut"]), runs[0]["start_ms"], until_ms
    )
    spans = [
        Span(one["site"], one["metric"], one["kind"], _ms(one["window_start"]), _ms(one["window_end"])) for one in found
    ]
    return score(whole, spans, minute_ms, also=everything)


async def _values(client: ClusterClient, topic: str) -> list[dict[str, Any]]:
    """The newest value of each key, in the order of the log."""
    where, committed = TopicPartition(topic, 0), IsolationLevel.READ_COMMITTED
    end = (await admin.list_offsets(client, {where: admin.LATEST}, isolation_level=committed))[where].offset
    newest: dict[bytes | None, dict[str, Any]] = {}
    start: dict[TopicPartition, Start] = {where: "earliest"}
    async with PartitionReader(client, start, stop={where: end}, isolation_level=committed) as reader:
        async for records in reader:
            newest |= {record.key: json.loads(record.value) for record in records if record.value is not None}
    return list(newest.values())


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
