"""Identifiers as the protocol carries them: a UUID is its 16 raw bytes, shown as Kafka shows it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import NamedTuple

UUID_BYTES = 16
ZERO_UUID = bytes(UUID_BYTES)
# The metadata log's fixed topic id (Kafka's Uuid.METADATA_TOPIC_ID).
METADATA_TOPIC_ID = bytes(15) + b"\x01"
METADATA_TOPIC = "__cluster_metadata"
NO_LEADER = -1


def uuid_text(raw: bytes) -> str:
    """The 22 url-safe base64 characters in which Kafka prints ids."""
    assert len(raw) == UUID_BYTES
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """The inverse of `uuid_text`; ValueError names the text when it is no id."""
    try:
        raw = urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a base64 id: {error}") from None
    if len(raw) != UUID_BYTES:
        raise ValueError(f"{text!r} is not an id: it has {len(raw)} bytes, an id has {UUID_BYTES}")
    return raw


class ProducerIdAndEpoch(NamedTuple):
    """Who a producer is; of two with one id, the one with the higher epoch is the one that counts."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition by its topic's name, as directories and checkpoints name it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
