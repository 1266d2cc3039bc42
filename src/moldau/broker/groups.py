"""The group coordinator of this broker: `__consumer_offsets`, made on first use, and the machines on its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from moldau.broker.coordinator import Coordinator
from moldau.broker.dispatch import Context
from moldau.broker.internal_topics import ensure_internal_topic
from moldau.broker.reply import Reply
from moldau.broker.settings import GROUP_PROTOCOLS_KEY, Settings
from moldau.cluster import OFFSETS_TOPIC, ConfigKind, MetadataDelta, MetadataImage
from moldau.cluster.config_catalogue import group_key, parse_value
from moldau.coordination.groups import Asked, Caller, GroupMachine, TopicsChanged
from moldau.kernel import Dice, ErrorCode, KafkaError
from moldau.protocol.compression import Compression

if TYPE_CHECKING:
    from moldau.broker.node import Node


class Groups:
    def __init__(self, node: Node, dice: Dice) -> None:
        self._node = node
        settings = NodeGroupSettings(node.settings, lambda: node.image)
        codec = Compression(node.settings.integer("offsets.topic.compression.codec"))
        self.coordinator: Coordinator[GroupMachine] = Coordinator(
            node,
            OFFSETS_TOPIC,
            lambda partition: GroupMachine(settings, dice, ImageTopics(lambda: node.image), node.say),
            lambda: codec,
        )

    def ask(self, group_id: str, request: Any, context: Context) -> Reply:
        """Hand a request to the group's shard; its answer, when it is committed. KafkaError refuses at once."""
        caller = caller_of(context)
        return self.coordinator.ask(group_id, lambda token: Asked(request, token, caller))

    def ask_all(self, request: Any, context: Context) -> list[Reply]:
        caller = caller_of(context)
        return self.coordinator.ask_all(lambda token: Asked(request, token, caller))

    def require_consumer_protocol(self) -> None:
        """KafkaError unless the groups of KIP-848 are switched on."""
        if "consumer" not in self._node.settings.items(GROUP_PROTOCOLS_KEY):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def follow_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.coordinator.follow_metadata()
        deleted = frozenset(topic.name for topic in delta.topics_removed.values())
        names = {image.topic_names[topic_id] for topic_id in delta.topics_changed if topic_id in image.topic_names}
        if deleted or names:
            self.coordinator.tell_all(TopicsChanged(frozenset(names) | deleted, deleted))

    async def ensure_topic(self) -> None:
        settings = self._node.settings
        await ensure_internal_topic(
            self._node,
            OFFSETS_TOPIC,
            partitions=settings.integer("offsets.topic.num.partitions"),
            replicas=settings.integer("offsets.topic.replication.factor"),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.integer("offsets.topic.segment.bytes")),
            },
        )

    def stop(self) -> None:
        self.coordinator.stop()


class NodeGroupSettings:
    """`GroupSettings` of the broker's configuration and the groups' own in the metadata."""

    def __init__(self, settings: Settings, image: Any) -> None:
        self._settings = settings
        self._image = image

    def integer(self, name: str) -> int:
        return self._settings.integer(name)

    def items(self, name: str) -> list[str]:
        return list(self._settings.items(name))

    def text(self, name: str) -> str:
        return self._settings.text(name)

    def group_integer(self, group: str, name: str) -> int:
        text = self._image().config(ConfigKind.GROUP, group).get(name)
        if text is None:
            return self._settings.integer(f"group.{name}")
        key = group_key(name)
        assert key is not None, name
        value = parse_value(key, text)
        assert isinstance(value, int)
        return value


class ImageTopics:
    """`TopicView` of the newest metadata."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def names(self) -> Iterable[str]:
        return self._image().topics

    def partition_count(self, name: str) -> int | None:
        topic = self._image().topics.get(name)
        return None if topic is None else len(topic.partitions)

    def topic_id(self, name: str) -> bytes | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.id

    def name_of(self, topic_id: bytes) -> str | None:
        return self._image().topic_names.get(topic_id)

    def racks(self, name: str, partition: int) -> frozenset[str]:
        image = self._image()
        brokers = (image.brokers.get(replica) for replica in image.topics[name].partitions[partition].replicas)
        return frozenset(broker.rack for broker in brokers if broker is not None and broker.rack)


def caller_of(context: Context) -> Caller:
    return Caller(context.client_id or "", f"/{context.connection.peer.rpartition(':')[0]}", context.version)
