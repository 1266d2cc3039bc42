"""A member to be killed: reads numbers, prints each one once it is processed.

    killed_member.py bootstrap group topic before|after|never records [name=value ...]

`before` commits each record before it is processed, `after` when it was, `never` not at all. After so many records it
does nothing but wait for its end, so that it leaves some to others however late that comes.
"""

from __future__ import annotations

import asyncio
import sys

from moldau.client import Consumer


async def main(bootstrap: str, group: str, topic: str, when: str, records: str, *settings: str) -> None:
    given = dict(pair.split("=", 1) for pair in settings)
    given |= {"group.id": group, "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
    async with Consumer(bootstrap, given) as consumer:
        consumer.subscribe(topic)
        left = int(records)
        async for record in consumer:
            if when == "before":
                await consumer.commit()
            assert record.value is not None
            print(record.value.decode(), flush=True)
            if when == "after":
                await consumer.commit()
            left -= 1
            if not left:
                await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
