from __future__ import annotations

from typing import Any

import pytest

from moldau.client import SERIALIZERS


@pytest.mark.parametrize(
    ("name", "value", "coded"),
    [
        ("bytes", b"x", b"x"),
        ("bytes", bytearray(b"x"), b"x"),
        ("str", "žluť", "žluť".encode()),
        ("string", "", b""),
        ("int", 1, b"\x00\x00\x00\x01"),
        ("int", -2, b"\xff\xff\xff\xfe"),
        ("integer", 2**31 - 1, b"\x7f\xff\xff\xff"),
        ("long", -1, b"\xff" * 8),
        ("json", {"a": [1, None, "ž"]}, '{"a":[1,null,"ž"]}'.encode()),
        ("csv", ["a", 1, 'say "hi", twice', None], b'a,1,"say ""hi"", twice",'),
        ("csv", {"x": 1, "y": "two\nlines"}, b'1,"two\nlines"'),
        ("none", None, None),
    ],
)
def test_a_serializer_writes(name: str, value: Any, coded: bytes | None) -> None:
    assert SERIALIZERS[name](value) == coded


@pytest.mark.parametrize("name", SERIALIZERS)
def test_none_is_a_tombstone_for_every_serializer(name: str) -> None:
    assert SERIALIZERS[name](None) is None


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("bytes", "text", "str is not bytes: encode it, or name a serializer"),
        ("str", 5, "int is not str"),
        ("int", 2**31, "2147483648 does not fit the 32 bits of Java's int"),
        ("int", True, "bool is not an integer"),
        ("long", 2**63, "does not fit the 64 bits of Java's long"),
        ("csv", "a,b", "str is not a row"),
        ("none", b"x", "no bytes is expected here"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_words(name: str, value: Any, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        SERIALIZERS[name](value)
