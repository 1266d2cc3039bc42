"""What goes wrong in a query, in one line, and how to find that line in what Spark makes of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.kernel import KafkaError

# pyspark looks for the first when it writes an error down; Spark sets the second in the processes that it starts.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_RUNTIME, _WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"


class OptionError(ValueError):
    """An option that is missing, does not parse or contradicts another."""


class SourceError(RuntimeError):
    """A topic cannot be read on."""


class DataLossError(SourceError):
    """Records that the query had to read are gone, and `failOnDataLoss` is true."""


def data_loss(loss: str) -> DataLossError:
    return DataLossError(f"{loss}; set failOnDataLoss=false to go on without what is lost")


# An exception of ours as pyspark writes it down, wherever in a line; else the last line of any traceback.
_OUR_ERROR = re.compile(r"\bmoldau(?:\.\w+)+: (.+)$")
_ANY_ERROR = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): (.+)$")


def reason(error: BaseException) -> str:
    """The one line that says why a query failed, without the traces that Spark adds on its way to the caller."""
    lines = [line.strip() for one in _chain(error) for line in str(one).splitlines() if line.strip()]
    ours = [match[1] for line in lines if (match := _OUR_ERROR.search(line))]
    if ours:
        return ours[0]
    others = [match[1] for line in lines if (match := _ANY_ERROR.match(line))]
    return others[-1] if others else next(iter(lines), type(error).__name__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Let Spark pass on what went wrong without this process's traceback, which says nothing to who wrote the query.

    Only for what has a line of its own; anything else is a bug and keeps its traceback. Spark ends the process after an
    error, so that the wish reaches nobody else's.
    """
    try:
        yield
    except (SourceError, OptionError) as error:
        _hide_traceback()
        raise type(error)(_one_line(error)) from None
    except (KafkaError, OSError) as error:
        _hide_traceback()
        raise SourceError(_one_line(error)) from None


def _hide_traceback() -> None:
    if os.environ.get(_RUNTIME) == _WORKER:
        os.environ[_HIDE_TRACEBACK] = "1"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
