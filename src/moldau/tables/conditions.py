"""What a scan may ask of rows: `count > 10 and city = 'Praha' and place.street is not null`.

Comparisons joined by `and`, of fields of the row's JSON value (`a.b` goes inside) or of `key`, with numbers, texts in
single quotes, true, false and null. Becomes SQL with parameters: no text of the asker's is ever part of the SQL but
names that consist of letters, digits and `_`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

CONDITION_CHARACTERS_MAX = 4000
TERMS_MAX = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<text>'(?:[^']|'')*')|(?P<sign><=|>=|!=|<>|==|=|<|>))",
    re.ASCII,
)
_EXAMPLE = "write conditions such as count > 10 and city = 'Praha'"
_WORDS = ("and", "is", "not", "null", "true", "false")


class ConditionError(ValueError):
    """A condition that cannot be read; one line with the place."""


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL that is true for the rows that are wanted, over columns `key` and `value`, and its parameters."""

    sql: str
    parameters: tuple[str | int | float | None, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_condition(text: str) -> Condition:
    if len(text) > CONDITION_CHARACTERS_MAX:
        raise ConditionError(f"the condition has {len(text)} characters: {CONDITION_CHARACTERS_MAX} are taken")
    tokens = _tokens(text)
    parts: list[str] = []
    parameters: list[str | int | float | None] = []
    while True:
        if len(parts) == TERMS_MAX:
            raise ConditionError(f"the condition has more than {TERMS_MAX} comparisons")
        parts.append(_term(tokens, parameters))
        token = tokens.pop(0)
        if token.kind == "end":
            return Condition(" AND ".join(parts), tuple(parameters))
        if token.kind != "and":
            raise _unexpected(token, "and")


def _term(tokens: list[_Token], parameters: list[str | int | float | None]) -> str:
    field = _field(tokens.pop(0))
    sign = tokens.pop(0)
    if sign.kind == "is":
        negated = tokens[0].kind == "not"
        if negated:
            tokens.pop(0)
        null = tokens.pop(0)
        if null.kind != "null":
            raise _unexpected(null, "null")
        return f"{field} IS {'NOT ' if negated else ''}NULL"
    if sign.kind != "sign":
        raise _unexpected(sign, "a comparison such as = or >")
    parameters.append(_literal(tokens.pop(0)))
    operator = {"==": "=", "<>": "!="}.get(sign.text, sign.text)
    return f"{field} {operator} ?"


def _field(token: _Token) -> str:
    if token.kind != "name":
        raise _unexpected(token, "the name of a field")
    if token.text == "key":
        return "key_text"
    path = "".join(f'."{name}"' for name in token.text.split("."))
    # A value that is no JSON has no fields, and must not end the scan.
    return f"CASE WHEN json_valid(value) THEN json_extract(value, '${path}') END"


def _literal(token: _Token) -> str | int | float:
    if token.kind == "number":
        return int(token.text) if re.fullmatch(r"-?\d{1,18}", token.text) else float(token.text)
    if token.kind == "text":
        return token.text[1:-1].replace("''", "'")
    if token.kind in ("true", "false"):
        return int(token.kind == "true")  # as json_extract has them
    raise _unexpected(token, "a number, a text in single quotes, true or false")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise ConditionError(f"{text[place : place + 20]!r} at character {place + 1} cannot be read: {_EXAMPLE}")
        found = match[match.lastgroup]
        word = found.lower()
        kind = word if match.lastgroup == "name" and word in _WORDS else match.lastgroup
        tokens.append(_Token(kind, found, match.start(match.lastgroup)))
        at = match.end()
    tokens.append(_Token("end", "", len(text)))
    return tokens


def _unexpected(token: _Token, wanted: str) -> ConditionError:
    found = "the end" if token.kind == "end" else repr(token.text)
    return ConditionError(f"{found} at character {token.at + 1} where {wanted} was expected: {_EXAMPLE}")
