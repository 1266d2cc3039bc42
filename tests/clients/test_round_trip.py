"""What one client wrote, with every codec it has, every other client reads: keys, values, headers and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.batches import BatchHeader, iterate_batches
from moldau.testing import BrokerProcess
from tests.clients.needs import require_module
from tests.clients.peers import PEERS, Peer, create_topic
from tests.clients.sample import CODECS, Record

pytestmark = [
    pytest.mark.clients,
    # kafka-python reads its schemas through an API that Python deprecated.
    pytest.mark.filterwarnings("ignore:open_text is deprecated"),
    pytest.mark.filterwarnings("ignore:read_text is deprecated"),
]


def _named(names: dict[str, Any]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.oracle] if name == "java" else []) for name in names]


@pytest.fixture(scope="session")
def written(peer: Callable[[str], Peer], bootstrap: str) -> Callable[[str], str]:
    """The topic of a writer, written once: one partition for each codec, in the order of CODECS."""
    topics: dict[str, str] = {}

    def get(name: str) -> str:
        if name not in topics:
            topic = f"written-by-{name}"
            create_topic(bootstrap, topic, len(CODECS))
            writer = peer(name)
            for codec in writer.codecs:
                writer.write(topic, CODECS.index(codec), codec, writer.writes())
            topics[name] = topic
        return topics[name]

    return get


def stored_batches(broker: BrokerProcess, topic: str, partition: int) -> list[BatchHeader]:
    """The batches as they are in the broker's files."""
    segments = sorted(Path(broker.data, f"{topic}-{partition}").glob("*.log"))
    return [header for segment in segments for header, _ in iterate_batches(segment.read_bytes())]


def comparable(records: list[Record]) -> list[Record]:
    """Without the timestamps that kcat lets the clock choose."""
    return [Record(r.key, r.value, r.headers, 0) for r in records]


@pytest.mark.parametrize("reader", _named(PEERS))
@pytest.mark.parametrize("writer", _named(PEERS))
def test_one_client_reads_what_another_wrote_with_every_codec(
    peer: Callable[[str], Peer], written: Callable[[str], str], writer: str, reader: str
) -> None:
    topic, source, sink = written(writer), peer(writer), peer(reader)
    expected = source.writes()
    for codec in [codec for codec in source.codecs if codec in sink.codecs]:
        found = sink.read(topic, CODECS.index(codec), len(expected))
        if writer == "kcat":
            assert all(abs(record.timestamp / 1000 - time.time()) < 600 for record in found)
            assert comparable(found) == comparable(expected), codec
        else:
            assert found == expected, codec


@pytest.mark.parametrize("writer", _named(PEERS))
def test_the_log_holds_the_codec_and_the_producer_that_the_client_chose(
    broker: BrokerProcess, peer: Callable[[str], Peer], written: Callable[[str], str], writer: str
) -> None:
    topic, source = written(writer), peer(writer)
    for codec in source.codecs:
        batches = stored_batches(broker, topic, CODECS.index(codec))
        stored = {header.compression.name.lower() for header in batches}
        # A client leaves a batch plain that its codec would not make smaller.
        assert codec in stored and stored <= {codec, "none"}
        assert sum(header.record_count for header in batches) == len(source.writes())
        if source.idempotent:
            assert all(header.producer_id >= 0 and header.base_sequence >= 0 for header in batches)


@pytest.fixture(scope="session")
def recompressed(bootstrap: str) -> dict[str, str]:
    """A topic for each codec that the broker itself compressed with, because the topic says so, and its times too."""
    writer = PEERS["moldau"](bootstrap)
    topics = {codec: f"recompressed-{codec}" for codec in CODECS}
    for codec, topic in topics.items():
        create_topic(bootstrap, topic, compression_type=OF_TOPIC[codec], message_timestamp_type="LogAppendTime")
        writer.write(topic, 0, "gzip" if codec == "none" else "none", writer.writes())
    return topics


OF_TOPIC = {codec: codec for codec in CODECS} | {"none": "uncompressed"}


@pytest.mark.parametrize("reader", _named(PEERS))
def test_every_client_reads_what_the_broker_compressed_and_dated_itself(
    broker: BrokerProcess, peer: Callable[[str], Peer], recompressed: dict[str, str], reader: str
) -> None:
    sink, expected = peer(reader), peer("moldau").writes()
    for codec, topic in recompressed.items():
        assert {header.compression.name.lower() for header in stored_batches(broker, topic, 0)} == {codec}
        if codec in sink.codecs:
            found = sink.read(topic, 0, len(expected))
            assert comparable(found) == comparable(expected), codec
            assert all(abs(record.timestamp / 1000 - time.time()) < 600 for record in found)


def test_kafka_python_has_every_codec(peer: Callable[[str], Peer]) -> None:
    """Its codecs are packages of their own: without them its rows of the table are shorter."""
    for module in ("snappy", "lz4.frame", "zstandard"):
        require_module(module)
    assert list(peer("kafka-python").codecs) == list(CODECS)
