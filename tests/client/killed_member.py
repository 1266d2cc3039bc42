"""A member to be killed: reads numbers, prints each one once it is processed.

    killed_member.py bootstrap group topic before|after|never [name=value ...]

`before` commits each record before it is processed, `after` when it was, `never` not at all.
"""

from __future__ import annotations

import asyncio
import sys

from moldau.client import Consumer


async def main(bootstrap: str, group: str, topic: str, when: str, *settings: str) -> None:
    given = dict(pair.split("=", 1) for pair in settings)
    given |= {"group.id": group, "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    async with Consumer(bootstrap, given) as consumer:
        consumer.subscribe(topic)
        async for record in consumer:
            if when == "before":
                await consumer.commit()
            assert record.value is not None
            print(record.value.decode(), flush=True)
            if when == "after":
                await consumer.commit()


asyncio.run(main(*sys.argv[1:]))
