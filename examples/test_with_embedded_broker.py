"""A broker for tests of your own: real sockets and files, a free port, gone when the tests are over.

Run it with pytest. One broker serves all tests of a session; topics keep them apart.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.testing import Broker


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def publish_order(producer: Producer, order_id: str, amount: int) -> None:
    """Stands for the code under test."""
    producer.produce("orders", key=order_id, value=str(amount))


def read(broker: Broker, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=10)
    consumer.close()
    return [(message.key(), message.value()) for message in messages]


def test_an_order_is_published_under_its_id(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    publish_order(producer, "o-1", 250)
    assert producer.flush(10) == 0
    assert read(broker, "orders", 1) == [(b"o-1", b"250")]


def test_records_are_there_after_a_restart() -> None:
    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("kept", key="k", value="v")
        assert producer.flush(10) == 0
        broker.stop()
        broker.start()
        assert read(broker, "kept", 1) == [(b"k", b"v")]
