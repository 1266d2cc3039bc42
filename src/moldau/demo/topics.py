"""The topics of the demo: what they are called, and for how long they keep what."""

from __future__ import annotations

from collections.abc import Mapping

from moldau.client import ClusterClient, admin
from moldau.demo.scale import Scale
from moldau.kernel import ErrorCode, KafkaError

EVENTS, REQUESTS, SEEN = "demo-events", "demo-requests", "demo-seen"
DEAD_LETTERS, TRUTH = "demo-dead-letters", "demo-truth"
# Tables, which the page shows.
SITES, ACTIVE, APPROXIMATE = "demo_sites", "demo_active", "demo_active_approximate"
TREND, ANOMALIES = "demo_trend", "demo_anomalies"
TABLES = (SITES, ACTIVE, APPROXIMATE, TREND, ANOMALIES)

_DAYS_KEPT, _HOURS_KEPT_MIN = 3, 1


async def prepare(client: ClusterClient, scale: Scale) -> None:
    """Make those that are not there."""
    kept_ms = max(_DAYS_KEPT * scale.day_ms, _HOURS_KEPT_MIN * 3_600_000)
    passing = {"retention.ms": str(kept_ms), "segment.ms": str(kept_ms // 8)}
    for name in (EVENTS, REQUESTS, SEEN):
        await _create(client, name, passing)
    await _create(client, DEAD_LETTERS, {})
    await _create(client, TRUTH, {"cleanup.policy": "compact"})
    for name in TABLES:
        await _create(client, name, {**passing, "cleanup.policy": "compact,delete"})


async def _create(client: ClusterClient, name: str, configs: Mapping[str, str]) -> None:
    """With one partition: some thousand events a second need no more, and what is read is in the order of time."""
    try:
        await admin.create_topics(client, name, partitions=1, configs=configs)
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
