"""Regular expressions of clients, for topics and transactional ids: RE2's syntax, matched over whole names.

RE2 runs in linear time whatever a client sends, so one expression cannot hold up a broker; Python's `re` could. It is
imported on first use: most brokers never need it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from moldau.kernel import ErrorCode, KafkaError

EXPRESSIONS_CACHED_MAX = 128
# What one expression may grow to while it matches; RE2 begins anew when it is full.
EXPRESSION_BYTES_MAX = 1 << 20


@lru_cache(maxsize=EXPRESSIONS_CACHED_MAX)
def _compile(expression: str) -> Any:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = EXPRESSION_BYTES_MAX
    return re2.compile(expression, options=options)


def require_valid(expression: str, what: str = "SubscribedTopicRegex") -> None:
    import re2

    try:
        _compile(expression)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]
        message = f"{what} `{expression}` is not a valid regular expression: {reason}."
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def matching(expression: str, names: Iterable[str]) -> frozenset[str]:
    """The names that the expression matches as a whole. It was found valid when it came, perhaps by another broker:
    what we cannot read matches nothing, and its group is loaded with all others."""
    import re2

    try:
        fullmatch = _compile(expression).fullmatch
    except re2.error:
        return frozenset()
    return frozenset(name for name in names if fullmatch(name))


def matching_after(
    expression: str, known: frozenset[str], changed: frozenset[str], present: Iterable[str]
) -> frozenset[str]:
    """What `matching` would give now, when it gave `known` before; of the `changed` names, some are `present`."""
    return (known - changed) | matching(expression, present)
