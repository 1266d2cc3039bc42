"""confluent-kafka (librdkafka): create a topic, produce with delivery reports, read it from the start."""

import os
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "confluent-kafka-example"
COUNT = 10


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(TOPIC, num_partitions=1)])[TOPIC].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def produce(bootstrap: str) -> None:
    def report(error, message) -> None:
        if error is not None:
            raise KafkaException(error)
        print(f"delivered {message.key().decode()} to offset {message.offset()}")

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "zstd"})
    for number in range(COUNT):
        producer.produce(TOPIC, key=f"key-{number}", value=f"hello {number}", on_delivery=report)
    producer.flush()


def consume(bootstrap: str) -> None:
    # group.id is required by the client even when nothing is joined; auto-commit would want a group.
    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while True:
        message = consumer.poll(10)
        if message is None:
            raise TimeoutError("no broker answered within 10 s")
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:
                break
            raise KafkaException(message.error())
        print(f"read {message.offset()}: {message.value().decode()}")
    consumer.close()


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MOLDAU_BOOTSTRAP", "127.0.0.1:9092")
    create_topic(address)
    produce(address)
    consume(address)
