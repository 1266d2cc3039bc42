"""Topics as Spark sources and sinks, in Python: `spark.readStream.format("moldau")` and `df.write.format("moldau")`.

A face like any other: reaches brokers through `moldau.client`, Apache Kafka's as well as ours. Needs pyspark and Java
(`pip install moldau[spark]`). Start reading at `data_source`, which Spark finds by itself (see `pyspark_moldau`), then
`source` for what Spark calls, `offsets` for what is decided, `range_reader` for what a task does; `sink` for the way
back, `exactly_once` for what its promise rests on.
"""

import importlib
from typing import TYPE_CHECKING, Any

from moldau.spark.errors import DataLossError, OptionError, SourceError, reason
from moldau.spark.java import JavaMissing, find_java

if TYPE_CHECKING:
    from moldau.spark.exactly_once_batches import foreach_batch
    from moldau.spark.progress import publish_progress
    from moldau.spark.spark_session import session

# Every task's process imports this package: what only a driver needs comes when it is asked for.
_DRIVER_SIDE = {
    "foreach_batch": "moldau.spark.exactly_once_batches",
    "publish_progress": "moldau.spark.progress",
    "session": "moldau.spark.spark_session",
}

__all__ = [
    "DataLossError",
    "JavaMissing",
    "OptionError",
    "SourceError",
    "find_java",
    "foreach_batch",
    "publish_progress",
    "reason",
    "session",
]


def __getattr__(name: str) -> Any:
    if name not in _DRIVER_SIDE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_DRIVER_SIDE[name]), name)
