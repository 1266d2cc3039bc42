"""A dead letter: a record that a stream could not read, with where it came from and why, in headers.

The headers are those of Kafka Connect's dead letter queues, so that tools that show those show ours. Key, value and the
record's own headers stay as they were, so that it can be sent back where it came from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "__connect.errors."
TOPIC = PREFIX + "topic"
PARTITION = PREFIX + "partition"
OFFSET = PREFIX + "offset"
PIPELINE = PREFIX + "connector.name"
STAGE = PREFIX + "stage"
EXCEPTION = PREFIX + "exception.class.name"
REASON = PREFIX + "exception.message"
STACK = PREFIX + "exception.stacktrace"

VALUE_STAGE = "VALUE_CONVERTER"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What the headers of a dead letter say; None where they say nothing."""

    topic: str
    partition: int
    offset: int
    reason: str | None
    exception: str | None
    stack: str | None
    pipeline: str | None
    own_headers: tuple[tuple[str, bytes | None], ...]


def dead_letter_of(headers: Iterable[tuple[str, bytes | None]]) -> DeadLetter | None:
    """None when the record is no dead letter: it does not say where it came from."""
    told: dict[str, str] = {}
    own: list[tuple[str, bytes | None]] = []
    for name, value in headers:
        if not name.startswith(PREFIX):
            own.append((name, value))
        elif value is not None:
            # The last one counts: a letter that died again has older headers before it.
            told[name] = value.decode(errors="replace")
    try:
        topic, partition, offset = told[TOPIC], int(told[PARTITION]), int(told[OFFSET])
    except (KeyError, ValueError):
        return None
    return DeadLetter(
        topic,
        partition,
        offset,
        told.get(REASON),
        told.get(EXCEPTION),
        told.get(STACK),
        told.get(PIPELINE),
        tuple(own),
    )
