"""An answer that is still to come, as a handler waits for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from moldau.kernel import KafkaError


class Reply:
    """An answer to come. Unlike an asyncio future it lets its one waiter, a handler, go on at once: no turn is lost."""

    __slots__ = ("_asyncio_future_blocking", "_error", "_is_done", "_response", "_resume")

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._is_done = False
        self._response: Any = None
        self._error: KafkaError | None = None
        self._resume: Callable[[Reply], None] | None = None

    def __await__(self) -> Generator[Reply, None, Any]:
        if not self._is_done:
            self._asyncio_future_blocking = True
            yield self
        if self._error is not None:
            raise self._error
        return self._response

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def error(self) -> KafkaError | None:
        return self._error

    def add_done_callback(self, resume: Callable[[Reply], None]) -> None:
        self._resume = resume

    def give(self, response: Any) -> None:
        """A response, or the KafkaError that stands for it."""
        self._is_done = True
        if isinstance(response, KafkaError):
            self._error = response
        else:
            self._response = response
        if self._resume is not None:
            self._resume(self)
