"""Record batches as Arrow columns, and back: for readers and writers that move millions of records a second.

Needs numpy and pyarrow (`pip install moldau[arrow]`), so nothing else in the house imports this package when it is
itself imported. Results equal those of `iterate_records` and `build_batch`, which are the ones to read first.
"""

try:
    import numpy as _numpy  # noqa: F401
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError("columns of records need numpy and pyarrow: pip install 'moldau[arrow]'") from error

from moldau.protocol.columnar.decode import FetchedColumns, decode_fetched, utc_timestamps
from moldau.protocol.columnar.encode import encode_batches

__all__ = ["FetchedColumns", "decode_fetched", "encode_batches", "utc_timestamps"]
