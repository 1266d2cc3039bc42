"""aiokafka: produce and read with asyncio, then find the place of a moment in time."""

import asyncio
import os
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

TOPIC = "aiokafka-example"
COUNT = 10


async def main(bootstrap: str) -> None:
    began_ms = int(time.time() * 1000)
    # The topic is made when it is first used, as auto.create.topics.enable says.
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        for number in range(COUNT):
            metadata = await producer.send_and_wait(TOPIC, f"hello {number}".encode(), key=b"key", partition=0)
            print(f"delivered to offset {metadata.offset}")

    where = TopicPartition(TOPIC, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([where])
        since = (await consumer.offsets_for_times({where: began_ms}))[where]
        consumer.seek(where, since.offset)
        for _ in range(COUNT):
            message = await consumer.getone()
            print(f"read {message.offset}: {message.value.decode()}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MOLDAU_BOOTSTRAP", "127.0.0.1:9092")))
