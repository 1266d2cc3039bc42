"""What a decision of the controller is: records for the metadata log, and the answer that is given once they are in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Response]):
    """`records` are appended as one batch, all or nothing; no records means that the answer may leave at once."""

    response: Response
    records: Sequence[Any] = field(default=())
