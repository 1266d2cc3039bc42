"""What identifies a row in a table's topic, as text that people can type: `moldau table get orders_by_user --key 42`.

One column and no window: its text as it is. Otherwise a JSON array of the columns' texts and the window's start, in
which no value can be mistaken for another: `["eu","42","2026-11-18T10:00:00.000Z"]`. A null is the empty text. The same
rule in Spark's words is in `streams`, and a test holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

# Java's pattern for a window's start, in UTC.
TIME_PATTERN = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"


def row_key(values: Sequence[str], window_start: str | None = None) -> bytes:
    """The key of the record that holds a row."""
    if len(values) == 1 and window_start is None:
        return values[0].encode()
    parts = [*values] if window_start is None else [*values, window_start]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
