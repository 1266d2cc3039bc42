"""Moldau's own client: the producer with asyncio and without, and reading partitions."""

import asyncio
import os
import sys

from moldau.client import BlockingProducer, ClusterClient, Producer, read_partition

TOPIC = "moldau-client-example"
COUNT = 10


def produce(bootstrap: str) -> None:
    """Without an event loop: send returns at once, the result waits for the broker."""
    with BlockingProducer(bootstrap, {"value.serializer": "json", "compression.type": "lz4"}) as producer:
        sent = [producer.send(TOPIC, {"number": number}, partition=0) for number in range(COUNT)]
        for handle in sent:
            print(f"delivered to offset {handle.result(timeout=10).offset}")


async def produce_async(bootstrap: str) -> None:
    """With one: the first await takes the record, the second waits for its delivery."""
    async with Producer(bootstrap, {"linger.ms": 5, "value.serializer": "string"}) as producer:
        deliveries = [await producer.send(TOPIC, f"hello {number}", partition=0) for number in range(COUNT)]
        for delivery in deliveries:
            metadata = await delivery
            print(f"delivered to offset {metadata.offset}")


async def consume(bootstrap: str) -> None:
    """Everything that is in the partition now."""
    async with ClusterClient(bootstrap) as client:
        async for record in read_partition(client, TOPIC, 0):
            print(f"read {record.offset}: {record.value.decode()}")


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MOLDAU_BOOTSTRAP", "127.0.0.1:9092")
    produce(address)
    asyncio.run(produce_async(address))
    asyncio.run(consume(address))
