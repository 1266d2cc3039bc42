"""Java's .properties format, as server.properties is written."""

from __future__ import annotations

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values; the last of several equal keys wins. ValueError names the line of a bad escape."""
    values: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        line = line.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            _, following = next(lines, (0, ""))
            line = line[:-1] + following.lstrip(_BLANKS)
        key, value = _split(line)
        try:
            values[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


def _is_continued(line: str) -> bool:
    """An odd number of backslashes at the end joins the next line."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    index = 0
    while index < len(line) and line[index] not in _BLANKS + "=:":
        index += 2 if line[index] == "\\" else 1
    key, rest = line[:index], line[index:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest.rstrip("\r\n")


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out = []
    index = 0
    while index < len(text):
        character = text[index]
        index += 1
        if character != "\\" or index == len(text):
            out.append(character)
            continue
        escaped = text[index]
        index += 1
        if escaped == "u":
            digits = text[index : index + 4]
            if len(digits) < 4:
                raise ValueError(f"\\u{digits} is no character")
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
