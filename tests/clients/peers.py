"""Every client behind the same two verbs, so that each can read what any other wrote.

`write` sends records to one partition with one codec; `read` returns what is in a partition from its start. What a
client cannot express (a null header, several values under one name) is left out of its sample, see `writes`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Protocol

from tests.clients.needs import JS_DIR, require_java, require_kafkajs, require_module, require_program
from tests.clients.sample import CODECS, Record, sample_records, text_records
from tests.java import TOOLS, java_program

READ_SECONDS_MAX = 20.0


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    """For tests whose subject is not the creation of topics."""
    from moldau.client import ClusterClient, admin

    async def work() -> None:
        async with ClusterClient(bootstrap) as client:
            given = {name.replace("_", "."): value for name, value in configs.items()}
            await admin.create_topics(client, topic, partitions=partitions, configs=given)

    asyncio.run(work())


class Peer(Protocol):
    codecs: Sequence[str]
    idempotent: bool

    def writes(self) -> list[Record]: ...
    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None: ...
    def read(self, topic: str, partition: int, count: int) -> list[Record]: ...
    def close(self) -> None: ...


class ConfluentPeer:
    """librdkafka through confluent-kafka."""

    codecs = CODECS
    idempotent = True

    def __init__(self, bootstrap: str) -> None:
        self._kafka = require_module("confluent_kafka")
        self._bootstrap = bootstrap

    def writes(self) -> list[Record]:
        return sample_records()

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        producer = self._kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 20,
            }
        )
        failures: list[Any] = []
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                headers=list(record.headers),
                timestamp=record.timestamp,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(READ_SECONDS_MAX) == 0
        assert not failures, failures[0]

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        # group.id is a formality of this client: nothing is joined or committed.
        consumer = self._kafka.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "check.crcs": True,
            }
        )
        consumer.assign([self._kafka.TopicPartition(topic, partition, 0)])
        found: list[Record] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, 0.1):
                assert message.error() is None, message.error()
                headers = tuple((name, value) for name, value in message.headers() or ())
                found.append(Record(message.key(), message.value(), headers, message.timestamp()[1]))
        consumer.close()
        return found

    def close(self) -> None:
        pass


class AiokafkaPeer:
    codecs = CODECS
    idempotent = True

    def __init__(self, bootstrap: str) -> None:
        self._kafka = require_module("aiokafka")
        self._bootstrap = bootstrap

    def writes(self) -> list[Record]:
        return sample_records()

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        async def work() -> None:
            producer = self._kafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=True,
                linger_ms=20,
            )
            async with producer:
                sent = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition=partition,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                await asyncio.gather(*sent)

        asyncio.run(work())

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        async def work() -> list[Record]:
            consumer = self._kafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap, enable_auto_commit=False)
            where = self._kafka.TopicPartition(topic, partition)
            found: list[Record] = []
            async with consumer:
                consumer.assign([where])
                await consumer.seek_to_beginning(where)
                async with asyncio.timeout(READ_SECONDS_MAX):
                    while len(found) < count:
                        for messages in (await consumer.getmany(timeout_ms=500)).values():
                            found += [Record(m.key, m.value, tuple(m.headers), m.timestamp) for m in messages]
            return found

        return asyncio.run(work())

    def close(self) -> None:
        pass


class KafkaPythonPeer:
    """kafka-python compresses with what else is installed; only gzip is its own."""

    idempotent = True

    def __init__(self, bootstrap: str) -> None:
        self._kafka = require_module("kafka")
        codec = require_module("kafka.codec")
        self.codecs = ["none", *(name for name in CODECS[1:] if getattr(codec, f"has_{name}")())]
        self._bootstrap = bootstrap

    def writes(self) -> list[Record]:
        return sample_records()

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        producer = self._kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=20,
        )
        sent = [
            producer.send(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                partition=partition,
                timestamp_ms=record.timestamp,
            )
            for record in records
        ]
        producer.flush(READ_SECONDS_MAX)
        for future in sent:
            future.get(timeout=READ_SECONDS_MAX)
        producer.close()

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        consumer = self._kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap, enable_auto_commit=False, group_id=None, auto_offset_reset="earliest"
        )
        consumer.assign([self._kafka.TopicPartition(topic, partition)])
        found: list[Record] = []
        deadline = time.monotonic() + READ_SECONDS_MAX
        while len(found) < count and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=200).values():
                found += [Record(m.key, m.value, tuple(m.headers), m.timestamp) for m in messages]
        consumer.close()
        return found

    def close(self) -> None:
        pass


class KcatPeer:
    """kcat works on lines and flags: text only, and one set of headers and no timestamps per call."""

    codecs = CODECS
    idempotent = False

    def __init__(self, bootstrap: str) -> None:
        self._program = require_program("kcat")
        self._bootstrap = bootstrap

    def run(self, *args: str, stdin: bytes = b"") -> bytes:
        done = subprocess.run(
            [self._program, "-b", self._bootstrap, *args],
            input=stdin,
            capture_output=True,
            timeout=READ_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout

    def writes(self) -> list[Record]:
        return [Record(r.key, r.value, (("from", b"kcat"), ("from", b"shell")), -1) for r in text_records()]

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        assert all(record.headers == records[0].headers for record in records)
        flags = [f"-H{name}={(value or b'').decode()}" for name, value in records[0].headers]
        lines = b"".join((record.key or b"") + b"\t" + (record.value or b"") + b"\n" for record in records)
        self.run("-P", "-t", topic, "-p", str(partition), "-K\t", "-z", codec, *flags, stdin=lines)

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        # Its JSON passes bytes through as they are: read as ISO 8859-1, every byte is one character.
        flags = ("-C", "-t", topic, "-p", str(partition), "-o", "beginning", "-c", str(count), "-q", "-J")
        return [self._record(json.loads(line.decode("latin-1"))) for line in self.run(*flags).splitlines()]

    @staticmethod
    def _record(message: dict[str, Any]) -> Record:
        flat = [_to_bytes(text) for text in message.get("headers", ())]
        headers = tuple(((name or b"").decode(), value) for name, value in zip(flat[::2], flat[1::2], strict=True))
        return Record(_to_bytes(message["key"]), _to_bytes(message["payload"]), headers, message["ts"])

    def close(self) -> None:
        pass


def _to_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


class _Pipe:
    """A program that answers one line of JSON with one line of JSON."""

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the client ended with {self._process.wait()}"
        answer = json.loads(line)
        assert "ok" in answer, answer["error"]
        return answer["ok"]

    def close(self) -> None:
        self._process.communicate()  # closes its input, at which it ends


def _plain(records: Sequence[Record]) -> list[dict[str, Any]]:
    return [
        {
            "key": None if r.key is None else r.key.decode("latin-1"),
            "value": None if r.value is None else r.value.decode("latin-1"),
            "headers": [[name, None if value is None else value.decode("latin-1")] for name, value in r.headers],
            "timestamp": r.timestamp,
        }
        for r in records
    ]


def _records(plain: Sequence[dict[str, Any]]) -> list[Record]:
    return [
        Record(
            _to_bytes(one["key"]),
            _to_bytes(one["value"]),
            tuple((name, _to_bytes(value)) for name, value in one["headers"]),
            one["timestamp"],
        )
        for one in plain
    ]


class JavaPeer:
    """Kafka's own Java clients and tools, all in one JVM that lives as long as the tests do."""

    codecs = CODECS
    idempotent = True

    def __init__(self, bootstrap: str) -> None:
        require_java()
        sources = ["clients/java/Peer.java", "clients/java/Tools.java"]
        self._pipe = _Pipe(java_program("Peer", bootstrap, sources=sources))
        self._bootstrap = bootstrap
        self.ask = self._pipe.ask
        self.close = self._pipe.close

    def writes(self) -> list[Record]:
        return [*sample_records(), Record(b"null header", b"v", (("null", None),))]

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        order = {"do": "produce", "topic": topic, "partition": partition, "config": {"compression.type": codec}}
        self.ask({**order, "records": _plain(records)})

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        order = {"do": "consume", "topic": topic, "partition": partition, "offset": 0, "count": count}
        return _records(self.ask(order))

    def tool(self, name: str, *args: str, stdin: str = "", code: int | None = 0) -> str:
        """Run a command-line tool as its script would, to end with `code` (None: any); returns what it printed."""
        given = list(args) if "--bootstrap-server" in args else ["--bootstrap-server", self._bootstrap, *args]
        got, out, err = self.ask({"do": "tool", "class": TOOLS[name], "args": given, "stdin": stdin})
        assert code in (None, got), f"{name} {' '.join(given)} exited with {got}:\n{out}{err}"
        return str(out + err)


class KafkajsPeer:
    """kafkajs brings gzip; other codecs are packages of their own."""

    codecs = ("none", "gzip")
    idempotent = True

    def __init__(self, bootstrap: str) -> None:
        node = require_kafkajs()
        source = str(JS_DIR.parents[1] / "tests" / "clients" / "js" / "peer.js")
        environment = {"NODE_PATH": str(JS_DIR / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        self._pipe = _Pipe([node, "--no-deprecation", source, bootstrap], environment)
        self.ask = self._pipe.ask
        self.close = self._pipe.close

    def writes(self) -> list[Record]:
        return sample_records()

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        order = {"do": "produce", "topic": topic, "partition": partition, "codec": codec, "idempotent": True}
        self.ask({**order, "records": _plain(records)})

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        order = {"do": "consume", "topic": topic, "partition": partition, "offset": 0, "count": count}
        return _records(self.ask(order))


class MoldauPeer:
    """Our own client."""

    codecs = CODECS
    idempotent = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def writes(self) -> list[Record]:
        return [*sample_records(), Record(b"null header", b"v", (("null", None),))]

    def write(self, topic: str, partition: int, codec: str, records: Sequence[Record]) -> None:
        from moldau.client import BlockingProducer

        with BlockingProducer(self._bootstrap, {"compression.type": codec, "linger.ms": 20}) as producer:
            sent = [producer.send(topic, r.value, r.key, list(r.headers), partition, r.timestamp) for r in records]
            producer.flush()
            for handle in sent:
                handle.result(READ_SECONDS_MAX)

    def read(self, topic: str, partition: int, count: int) -> list[Record]:
        from moldau.client import ClusterClient, read_partition

        async def work() -> list[Record]:
            async with ClusterClient(self._bootstrap) as client:
                return [
                    Record(r.key, r.value, tuple((h[0], h[1]) for h in r.headers), r.timestamp)
                    async for r in read_partition(client, topic, partition)
                ]

        return asyncio.run(work())

    def close(self) -> None:
        pass


PEERS: dict[str, type[Any]] = {
    "confluent-kafka": ConfluentPeer,
    "java": JavaPeer,
    "aiokafka": AiokafkaPeer,
    "kafka-python": KafkaPythonPeer,
    "kcat": KcatPeer,
    "kafkajs": KafkajsPeer,
    "moldau": MoldauPeer,
}
