"""kafka-python: create a topic, produce JSON, read it back from the start."""

import json
import os
import sys

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError

TOPIC = "kafka-python-example"
COUNT = 10


def main(bootstrap: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=1)])
    except TopicAlreadyExistsError:
        pass
    admin.close()

    producer = KafkaProducer(bootstrap_servers=bootstrap, value_serializer=lambda value: json.dumps(value).encode())
    for number in range(COUNT):
        metadata = producer.send(TOPIC, {"number": number}, headers=[("source", b"example")]).get(timeout=10)
        print(f"delivered to offset {metadata.offset}")
    producer.close()

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, value_deserializer=json.loads, consumer_timeout_ms=1000)
    where = TopicPartition(TOPIC, 0)
    consumer.assign([where])
    consumer.seek_to_beginning(where)
    end = consumer.end_offsets([where])[where]
    for message in consumer:
        print(f"read {message.offset}: hello {message.value['number']}")
        if message.offset + 1 == end:
            break
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MOLDAU_BOOTSTRAP", "127.0.0.1:9092"))
