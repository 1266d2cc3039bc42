"""How fast `moldau reassign execute --throttle` lets replicas move: Kafka's settings, set before and removed after."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from moldau.cli.errors import usage

if TYPE_CHECKING:
    from moldau.client import ClusterClient

SIDES = ("leader", "follower")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def parse_rate(text: str) -> int:
    """Bytes per second of `500000`, `500K` or `10MB`."""
    found = re.fullmatch(r"([0-9]+)\s*([KMG]?)B?(/s)?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise usage(f"--throttle {text}: give bytes per second, e.g. 500000, 500K or 10M")
    return int(found[1]) * _UNITS[found[2].upper()]


def throttled_replicas(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """By topic: whoever has a moving partition sends slowly, whoever gets it fetches slowly."""
    listed: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        sides = listed.setdefault(row["topic"], {side: [] for side in SIDES})
        sides["leader"] += [f"{row['partition']}:{broker}" for broker in row["now"]]
        sides["follower"] += [f"{row['partition']}:{broker}" for broker in row["next"] if broker not in row["now"]]
    return {
        topic: {f"{side}.replication.throttled.replicas": ",".join(each) for side, each in sides.items() if each}
        for topic, sides in listed.items()
    }


async def throttle(client: ClusterClient, rows: list[dict[str, Any]], rate: int) -> None:
    from moldau.client import admin

    rates = [admin.Alteration(f"{side}.replication.throttled.rate", str(rate)) for side in SIDES]
    await admin.incremental_alter_configs(client, admin.ResourceType.BROKER, "", rates)
    for topic, configs in throttled_replicas(rows).items():
        changes = [admin.Alteration(name, value) for name, value in configs.items()]
        await admin.incremental_alter_configs(client, admin.ResourceType.TOPIC, topic, changes)


async def unthrottle(client: ClusterClient, topics: list[str]) -> None:
    from moldau.client import admin

    def unset(what: str) -> list[admin.Alteration]:
        delete = admin.AlterOperation.DELETE
        return [admin.Alteration(f"{side}.replication.throttled.{what}", operation=delete) for side in SIDES]

    await admin.incremental_alter_configs(client, admin.ResourceType.BROKER, "", unset("rate"))
    for topic in topics:
        await admin.incremental_alter_configs(client, admin.ResourceType.TOPIC, topic, unset("replicas"))
