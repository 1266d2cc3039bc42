"""What a decision of the controller is: records for the metadata log, and the answer that is given once they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord

# As Kafka: one request may not become an unbounded batch of the metadata log.
RECORDS_PER_DECISION_MAX = 10_000
BYTES_PER_DECISION_MAX = 8 << 20
TOO_LARGE = "Unable to perform excessively large batch operation."
# More than any record takes, but for a configuration's texts: a topic's name has at most 249 characters.
RECORD_BYTES_MAX = 320
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Response]):
    """`records` are appended as one batch, all or nothing; no records means that the answer may leave at once."""

    response: Response
    records: Sequence[Any] = field(default=())


def check_size(records: Sequence[Any]) -> None:
    """POLICY_VIOLATION when the records do not go into one batch."""
    if len(records) > RECORDS_PER_DECISION_MAX or _bytes_at_most(records) > BYTES_PER_DECISION_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_LARGE)


def _bytes_at_most(records: Sequence[Any]) -> int:
    texts = sum(
        len(text.encode())
        for record in records
        if isinstance(record, ConfigRecord)
        for text in (record.resource_name, record.name, record.value or "")
    )
    return RECORD_BYTES_MAX * len(records) + texts
