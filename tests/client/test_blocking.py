"""The producer for threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from moldau.client import BlockingProducer, ClusterClient, ProducerClosed, SettingsError, read_partition
from tests.client.conftest import Server


def test_records_sent_from_threads_are_delivered_each_threads_in_order(
    server: Server, new_topic: Callable[[], str]
) -> None:
    topic = new_topic()
    heard: list[int] = []
    with BlockingProducer(server.bootstrap, {"value.serializer": "string"}) as producer:
        assert producer.send(topic, "first", partition=0).result(timeout=10).offset == 0

        def work(name: int) -> None:
            for i in range(300):
                producer.send(
                    topic, f"{name} {i}", partition=0, on_delivery=lambda m, e: heard.append(m.offset if m else -1)
                )

        threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert heard == list(range(1, 901))
        last = producer.send(topic, "last", partition=0)
    assert last.done() and last.result().offset == 901

    async def read() -> list[str]:
        async with ClusterClient(server.bootstrap) as client:
            return [str(record.value, "utf-8") async for record in read_partition(client, topic, 0) if record.value]

    values = asyncio.run(read())
    for name in range(3):
        assert [value for value in values if value.startswith(f"{name} ")] == [f"{name} {i}" for i in range(300)]


def test_mistakes_show_where_they_are_made(server: Server, new_topic: Callable[[], str]) -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'linger.ms'"):
        BlockingProducer(server.bootstrap, {"linger": 1})
    producer = BlockingProducer(server.bootstrap)
    handle = producer.send(new_topic(), "text")
    with pytest.raises(TypeError, match="the value is str, not bytes"):
        handle.result(timeout=10)
    slow = BlockingProducer(server.bootstrap, {"linger.ms": 60_000})
    handle = slow.send(new_topic(), b"v")
    with pytest.raises(TimeoutError, match=r"not delivered within 0.01 s"):
        handle.result(timeout=0.01)
    slow.close()
    assert handle.result().offset == 0
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosed):
        producer.send("t", b"v")
