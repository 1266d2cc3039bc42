"""The primitives below the messages: varints and arrays, their limits included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol import wire
from moldau.protocol.wire import EncodingError, ProtocolError


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, b"\x00"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**32 - 1, b"\xff\xff\xff\xff\x0f")],
)
def test_an_unsigned_varint_has_seven_bits_a_byte(value, encoded):
    out = bytearray()
    wire.write_uvarint(out, value)
    assert out == encoded
    assert wire.read_uvarint(b"." + encoded + b".", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(("value", "encoded"), [(0, b"\x00"), (-1, b"\x01"), (1, b"\x02"), (-65, b"\x81\x01")])
def test_a_signed_varint_is_zigzag_coded(value, encoded):
    for write, read in ((wire.write_varint, wire.read_varint), (wire.write_varlong, wire.read_varlong)):
        out = bytearray()
        write(out, value)
        assert out == encoded
        assert read(encoded, 0) == (value, len(encoded))


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_int32_survives_as_varint(value):
    out = bytearray()
    wire.write_varint(out, value)
    assert wire.read_varint(out, 0) == (value, len(out))
    assert len(out) <= wire.VARINT_BYTES_MAX


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_int64_survives_as_varlong(value):
    out = bytearray()
    wire.write_varlong(out, value)
    assert wire.read_varlong(out, 0) == (value, len(out))
    assert len(out) <= wire.VARLONG_BYTES_MAX


@pytest.mark.parametrize("encoded", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x00"])
def test_a_varint_beyond_32_bits_is_refused(encoded):
    with pytest.raises(ProtocolError):
        wire.read_uvarint(encoded, 0)


@pytest.mark.parametrize("encoded", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00"])
def test_a_varlong_beyond_64_bits_is_refused(encoded):
    with pytest.raises(ProtocolError):
        wire.read_varlong(encoded, 0)


ARRAYS = [
    (wire.read_int8s, wire.write_int8s, 1, [-128, 127]),
    (wire.read_int16s, wire.write_int16s, 2, [-(2**15), 2**15 - 1]),
    (wire.read_int32s, wire.write_int32s, 4, [-(2**31), 2**31 - 1]),
    (wire.read_int64s, wire.write_int64s, 8, [-(2**63), 2**63 - 1]),
    (wire.read_uuids, wire.write_uuids, 16, [bytes(16), bytes(range(16))]),
]


@pytest.mark.parametrize(("read", "write", "size", "values"), ARRAYS)
def test_an_array_of_fixed_size_is_read_only_when_all_of_it_is_there(read, write, size, values):
    out = bytearray()
    write(out, values)
    assert len(out) == 2 * size
    assert read(memoryview(out), 0, len(out), 2) == (values, 2 * size)
    for count in (3, 2**31 - 1):
        with pytest.raises(ProtocolError, match=f"array: {count} elements with {2 * size} bytes left"):
            read(out, 0, len(out), count)


def test_a_uuid_in_an_array_has_sixteen_bytes():
    with pytest.raises(EncodingError):
        wire.write_uuids(bytearray(), [b"short"])
