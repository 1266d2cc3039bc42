"""The shortest way through everything: a broker starts, a client writes and reads, a restart keeps it."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.testing import Broker


def read_all(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while len(values) < count:
        message = consumer.poll(10)
        assert message is not None and message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def test_what_was_produced_is_consumed_and_survives_a_restart() -> None:
    broker = Broker().start()
    try:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(100):
            producer.produce("numbers", str(number).encode())
        assert producer.flush(10) == 0
        expected = [str(number).encode() for number in range(100)]
        assert read_all(broker.bootstrap, "numbers", 100) == expected
        broker.stop()
        broker.start()
        assert read_all(broker.bootstrap, "numbers", 100) == expected
    finally:
        broker.close()
