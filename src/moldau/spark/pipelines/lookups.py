"""Stream-table join: an event and the row of a table that has its key, as the table is when the event comes.

The table's topic is a source of the query like the stream's: its records and the events meet in one keyed state, which
holds the newest row of each key. So the table's offsets are in the query's checkpoint beside the stream's, and the
result is a function of offsets: a batch that is done again finds the same rows, which a lookup in a cache or a snapshot
that is refreshed now and then would not promise, and a state that aggregates the result stays true.

What Python sees of events and rows is their text: the types that a row of Python lacks, or that its way there changes,
never arrive there, and the state does not depend on them.

Of one micro-batch the table's records go first. The first batch has the whole table (`pipeline`), so no event comes
before the rows that were there when the query began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructField, StructType

from moldau.spark.pipelines.errors import PipelineError
from moldau.spark.pipelines.lookup_rules import Change, newest

if TYPE_CHECKING:
    from moldau.spark.pipelines.tables import Table

_KEY, _OFFSET, _EVENT, _ROW = "__moldau_key", "__moldau_offset", "__moldau_event", "__moldau_row"
_OUT = f"{_EVENT} STRING, {_ROW} STRING"
# As fine as Spark's timestamps are.
_AS_TEXT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def join(events: DataFrame, table: Table, on: str, how: Literal["inner", "left"], prefix: str) -> DataFrame:
    event_type, row_type = _nullable(events.schema), _nullable(table.schema)
    twice = sorted(set(event_type.names) & {prefix + name for name in row_type.names})
    if twice:
        raise PipelineError(f"both sides have {', '.join(twice)}: give prefix='...' for those of the table")
    left = events.select(
        _state_key(on).alias(_KEY),
        F.lit(None).cast("bigint").alias(_OFFSET),
        F.to_json(F.struct(*events.columns), _AS_TEXT).alias(_EVENT),
        F.lit(None).cast("string").alias(_ROW),
    )
    right = table.keyed_rows().select(
        _state_key("key").alias(_KEY),
        F.col("offset").cast("bigint").alias(_OFFSET),
        F.lit(None).cast("string").alias(_EVENT),
        F.to_json("row", _AS_TEXT).alias(_ROW),
    )
    met = left.unionByName(right).groupBy(_KEY).transformWithState(LatestRow(how == "left"), _OUT, "append", "none")
    parsed = met.select(
        F.from_json(_EVENT, event_type, _AS_TEXT).alias(_EVENT), F.from_json(_ROW, row_type, _AS_TEXT).alias(_ROW)
    )
    return parsed.select(f"{_EVENT}.*", *(F.col(_ROW)[name].alias(prefix + name) for name in row_type.names))


class LatestRow(StatefulProcessor):
    """For each key: remember the newest row, give it to every event."""

    def __init__(self, keeps_unmatched: bool) -> None:
        self._keeps_unmatched = keeps_unmatched

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("row", "row STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        latest: Change | None = None
        events: list[str] = []
        for row in rows:
            if row[_EVENT] is not None:
                events.append(row[_EVENT])
            else:
                latest = newest(latest, Change(int(row[_OFFSET]), row[_ROW]))
        if latest is not None:
            self._remember(latest)
        if events:
            found = self._state.get()
            if found is not None or self._keeps_unmatched:
                beside = None if found is None else found[0]
                yield from (Row(**{_EVENT: event, _ROW: beside}) for event in events)

    def close(self) -> None:
        """Spark's state closes itself."""

    def _remember(self, latest: Change) -> None:
        if latest.row is not None:
            self._state.update((latest.row,))
        elif self._state.exists():
            self._state.clear()


def _state_key(name: str) -> Column:
    """The key's text behind a letter, so that the empty text is not what an event without key looks for."""
    return F.coalesce(F.concat(F.lit("k"), F.col(name).cast("string")), F.lit(""))


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(one.name, one.dataType) for one in schema.fields])
