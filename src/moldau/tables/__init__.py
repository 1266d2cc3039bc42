"""Tables that can be asked: a materialised view of compacted topics, and HTTP in front of it.

A face like any other: reads topics through `moldau.client`, so that it serves Apache Kafka's tables as well, and knows
nothing of who writes them. Start reading at `view`, the rows on disk with the offsets that they reflect; `rules` says
when a view may go on and when it must be read anew, `follower` keeps it current, `conditions` is what a scan may ask,
`service` answers over HTTP (starlette and uvicorn, imported by it alone), `asking` is the other side of that.
"""

from moldau.tables.asking import TableServerError, ask
from moldau.tables.conditions import ConditionError, parse_condition
from moldau.tables.follower import Follower
from moldau.tables.view import Answer, Page, TableView, ViewInUse

__all__ = [
    "Answer",
    "ConditionError",
    "Follower",
    "Page",
    "TableServerError",
    "TableView",
    "ViewInUse",
    "ask",
    "parse_condition",
]
