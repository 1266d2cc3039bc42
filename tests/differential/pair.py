"""Moldau and Apache Kafka side by side: the same request to both, the answers compared field by field.

A scenario is a test that asks in order; a step is `pair.ask(request, version, masks=...)`. The request is a message, or
a function of a `Side` where the two must be asked differently (topic ids, producer ids, sessions). Differences are
gathered and printed together when the scenario is over, so that one run shows all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from moldau.broker.api_table import SERVED
from moldau.kernel import ErrorCode
from moldau.protocol.message import Message
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.messages.registry import API_MESSAGES
from tests.differential.deliberate import Deliberate
from tests.differential.plain import Edits, Plain, differences, edited, plain, shown
from tests.differential.wire import Wire

SETTLE_SECONDS_MAX = 15.0
POLL_SECONDS = 0.01
SHOWN_CHARACTERS_MAX = 600

# Quotas never apply here, but Kafka measures; each cluster has its own id and addresses.
ALWAYS_MASKED = ("throttle_time_ms", "cluster_id", "host", "port", "*.host", "*.port")

Request = Message | Callable[["Side"], Message]


class Side:
    """One of the two brokers, and what the scenario has learnt about it."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.wire = Wire(bootstrap)
        self.topic_ids: dict[str, bytes] = {}
        self.producer_names: dict[int, str] = {}
        self.notes: dict[str, Any] = {}

    @property
    def names_of_ids(self) -> dict[bytes | int, str]:
        return {**{topic_id: name for name, topic_id in self.topic_ids.items()}, **self.producer_names}

    def ask(self, request: Request, version: int) -> Any:
        return self.wire.ask(request if isinstance(request, Message) else request(self), version)

    def ask_until(self, request: Request, version: int, until: Callable[[Any], bool]) -> Any:
        """Ask again while what was changed is still on its way (Kafka's brokers follow the controller by some ms)."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            answer = self.ask(request, version)
            if until(answer) or time.monotonic() > deadline:
                return answer
            time.sleep(POLL_SECONDS)

    def learn_ids(self, names: Sequence[str]) -> None:
        """Wait until the topics are known, led and open, and remember their ids."""
        wanted = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        answer = self.ask_until(wanted, 12, _all_led)
        for topic in answer.topics:
            assert topic.error_code == 0, f"{self.name} has no topic {topic.name}"
            self.topic_ids[topic.name] = topic.topic_id
        offsets = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    topic.name,
                    [
                        ListOffsetsRequest.ListOffsetsPartition(partition_index=each.partition_index, timestamp=-1)
                        for each in topic.partitions
                    ],
                )
                for topic in answer.topics
            ],
        )
        self.ask_until(offsets, 7, _no_errors)


def _all_led(answer: Any) -> bool:
    return all(
        topic.error_code == 0 and topic.partitions and all(each.error_code == 0 for each in topic.partitions)
        for topic in answer.topics
    )


def _no_errors(answer: Any) -> bool:
    return all(each.error_code == 0 for topic in answer.topics for each in topic.partitions)


class Pair:
    def __init__(self, moldau: Side, kafka: Side, prefix: str) -> None:
        self.moldau = moldau
        self.kafka = kafka
        self.prefix = prefix
        self._found: list[str] = []

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.moldau, self.kafka

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(
        self,
        request: Request,
        version: int,
        *,
        masks: Iterable[str] = (),
        unordered: Iterable[str] = (),
        deliberate: Sequence[Deliberate] = (),
        until: Callable[[Any], bool] | None = None,
        edit: Callable[[Plain], Plain] | None = None,
        say: str = "",
    ) -> tuple[Any, Any]:
        """The same question to both. Differences that are neither masked nor deliberate are noted for the verdict."""
        answers = [
            side.ask(request, version) if until is None else side.ask_until(request, version, until)
            for side in self.sides
        ]
        trees = []
        ignored = tuple(path for each in deliberate for path in each.paths)
        edits = Edits((*ALWAYS_MASKED, *masks), ignored, tuple(unordered))
        for side, answer in zip(self.sides, answers, strict=True):
            tree = plain(answer, side.names_of_ids)
            if edit is not None and isinstance(tree, dict):
                tree = edit(tree)
            trees.append(edited(tree, edits))
        asked = request if isinstance(request, Message) else request(self.moldau)
        self._note(differences(*trees), asked, version, say)
        return answers[0], answers[1]

    def tell(self, request: Request, version: int, *, say: str = "") -> tuple[str, str]:
        """The same request, which is not to be answered, to both."""
        heard = [
            side.wire.tell(request if isinstance(request, Message) else request(side), version) for side in self.sides
        ]
        asked = request if isinstance(request, Message) else request(self.moldau)
        self._note(differences(*heard), asked, version, say)
        return heard[0], heard[1]

    def raw(self, frame: bytes, *, say: str) -> tuple[bytes | str, bytes | str]:
        """The same bytes to both; the frames that came back, or CLOSED."""
        heard = [side.wire.exchange(frame) for side in self.sides]
        return heard[0], heard[1]

    def _note(self, found: Iterable[str], asked: Message, version: int, say: str) -> None:
        lines = list(found)
        if not lines:
            return
        name = API_MESSAGES[asked.API_KEY].name
        question = shown(asked)[:SHOWN_CHARACTERS_MAX]
        self._found.append(f"{name} v{version} {say}\n  {question}\n" + "\n".join(f"    {line}" for line in lines))

    def verdict(self) -> None:
        if self._found:
            raise AssertionError("Moldau and Kafka differ:\n\n" + "\n\n".join(self._found))

    # -- setting the stage ---------------------------------------------------------------------------------------------

    def topic(self, name: str) -> str:
        """A name that is this scenario's own."""
        return f"{self.prefix}-{name}"

    def create(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None, *, batches: Sequence[bytes] = ()
    ) -> str:
        """A topic on both, ready to be used, with batches in its partition 0; its full name."""
        full = self.topic(name)
        request = CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    full,
                    partitions,
                    1,
                    [],
                    [CreateTopicsRequest.CreatableTopicConfig(*each) for each in (configs or {}).items()],
                )
            ],
            timeout_ms=10_000,
        )
        for side in self.sides:
            answer = side.ask(request, 7)
            assert answer.topics[0].error_code == 0, answer
            side.learn_ids([full])
            for batch in batches:
                produced = side.ask(produce(full, batch), 9)
                assert produced.responses[0].partition_responses[0].error_code == 0, produced
        return full


def produce(topic: str, batch: bytes | None, *, partition: int = 0, acks: int = -1) -> ProduceRequest:
    """One batch for one partition."""
    data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )


def versions_of(key: int) -> range:
    """Every version that is served of a key, or would be."""
    known = SERVED.get(key) or API_MESSAGES[key]
    return range(known.version_min, known.version_max + 1)


def error_name(code: int) -> str:
    return ErrorCode(code).name
