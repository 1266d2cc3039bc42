"""Idempotent producers that send one number after the other until they are told to end, whatever happens meanwhile.

`acknowledged` has the numbers that the cluster has taken, in the order of the acknowledgements; `failed` is the first
failure.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from tests import java
from tests.clients.needs import require_java, require_module

PAUSE_SECONDS = 0.002
INT32_MAX = (1 << 31) - 1
END_SECONDS_MAX = 60.0


class SteadyProducer:
    """A thread that runs `_produce`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.failed: Any = None
        self._bootstrap = bootstrap
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:  # for the test
            self.failed = self.failed or error

    def _produce(self) -> None:
        raise NotImplementedError

    def end(self) -> list[int]:
        """All that was sent is acknowledged by then."""
        self._over.set()
        self._thread.join(END_SECONDS_MAX)
        assert not self._thread.is_alive(), "the producer does not end"
        assert self.failed is None, self.failed
        return self.acknowledged


class Confluent(SteadyProducer):
    def _produce(self) -> None:
        kafka = require_module("confluent_kafka")
        settings = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0}
        producer = kafka.Producer(settings)
        number = 0
        while not self._over.is_set():
            producer.produce(self._topic, str(number).encode(), on_delivery=self._delivered)
            producer.poll(PAUSE_SECONDS)
            number += 1
        assert producer.flush(END_SECONDS_MAX) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.failed = error
        else:
            self.acknowledged.append(int(message.value()))


class Aiokafka(SteadyProducer):
    def _produce(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        kafka = require_module("aiokafka")
        number = 0
        async with kafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True) as producer:
            sent: set[asyncio.Task[None]] = set()
            while not self._over.is_set():
                waiting = asyncio.ensure_future(
                    self._wait(await producer.send(self._topic, str(number).encode()), number)
                )
                sent.add(waiting)
                waiting.add_done_callback(sent.discard)
                await asyncio.sleep(PAUSE_SECONDS)
                number += 1
            await asyncio.gather(*sent)

    async def _wait(self, delivery: Any, number: int) -> None:
        try:
            await delivery
        except Exception as error:  # for the test
            self.failed = error
        else:
            self.acknowledged.append(number)


class KafkaPython(SteadyProducer):
    def _produce(self) -> None:
        kafka = require_module("kafka")
        producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap.split(","), enable_idempotence=True, acks="all"
        )
        number = 0
        while not self._over.wait(PAUSE_SECONDS):
            future = producer.send(self._topic, str(number).encode())
            future.add_callback(lambda _, number=number: self.acknowledged.append(number))
            future.add_errback(self._refused)
            number += 1
        producer.flush(END_SECONDS_MAX)
        producer.close()

    def _refused(self, error: BaseException) -> None:
        self.failed = error


class Java(SteadyProducer):
    """Kafka's own tool for such tests."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        require_java()
        super().__init__(bootstrap, topic)

    def _produce(self) -> None:
        given = ["--bootstrap-server", self._bootstrap, "--topic", self._topic, "--throughput", "400"]
        # The tool does not try again unless it is told to.
        settings = f"enable.idempotence=true\nretries={INT32_MAX}\n"
        with tempfile.NamedTemporaryFile("w", suffix=".properties") as file:
            file.write(settings)
            file.flush()
            self._listen(java.java_command(java.TOOLS["verifiable-producer"], *given, "--command-config", file.name))

    def _listen(self, command: list[str]) -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            threading.Thread(target=lambda: (self._over.wait(), process.terminate()), daemon=True).start()
            assert process.stdout is not None
            for line in process.stdout:
                said = json.loads(line) if line.startswith("{") else {}
                if said.get("name") == "producer_send_success":
                    self.acknowledged.append(int(said["value"]))
                elif said.get("name") == "producer_send_error":
                    self.failed = said


STEADY_PRODUCERS: dict[str, Callable[[str, str], SteadyProducer]] = {
    "confluent-kafka": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "java": Java,
}
