"""The four codecs: Kafka's framings, other libraries as oracles, damage and bombs."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc

import pytest
from aiokafka import codec as aiokafka_codec
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol import Compression, CompressionError, compress, decompress

CODECS = [codec for codec in Compression if codec]
THEIR_DECODERS = {
    Compression.GZIP: aiokafka_codec.gzip_decode,
    Compression.SNAPPY: aiokafka_codec.snappy_decode,
    Compression.LZ4: aiokafka_codec.lz4_decode,
    Compression.ZSTD: aiokafka_codec.zstd_decode,
}
THEIR_ENCODERS = {
    Compression.GZIP: aiokafka_codec.gzip_encode,
    Compression.SNAPPY: aiokafka_codec.snappy_encode,
    Compression.LZ4: aiokafka_codec.lz4_encode,
    Compression.ZSTD: aiokafka_codec.zstd_encode,
}
payloads = st.binary(max_size=200) | st.integers(0, 5).map(lambda n: bytes(range(256)) * 400 * n)


@given(data=payloads, codec=st.sampled_from(list(Compression)))
def test_what_is_compressed_inflates_to_the_same(data: bytes, codec: Compression) -> None:
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [1, 100, 70_000, 300_000])
def test_other_libraries_agree_in_both_directions(codec: Compression, size: int) -> None:
    data = bytes(index * 7 % 251 for index in range(size))
    try:
        assert bytes(THEIR_DECODERS[codec](compress(codec, data))) == data
        assert bytes(decompress(codec, THEIR_ENCODERS[codec](data))) == data
    except (AssertionError, RuntimeError) as error:
        if "not available" in str(error):
            pytest.skip(f"the other library has no {codec.name}")
        raise


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_levels_are_obeyed(codec: Compression) -> None:
    data = b"".join(b'{"id":%d,"user":"user-%d","text":"lorem ipsum %d"}' % (n, n % 50, n % 13) for n in range(5_000))
    fast, small = compress(codec, data, 1), compress(codec, data, 9)
    assert len(small) < len(fast)
    assert bytes(decompress(codec, small)) == data


def test_lz4_blocks_are_independent_as_java_needs_them() -> None:
    frame = compress(Compression.LZ4, bytes(200_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20, "the block independence bit"


def test_snappy_is_read_in_xerial_blocks_and_bare() -> None:
    import cramjam

    data = b"moldau" * 20_000
    framed = compress(Compression.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00")
    assert bytes(decompress(Compression.SNAPPY, framed)) == data
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_without_being_inflated(codec: Compression) -> None:
    bomb = compress(codec, bytes(30 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError, match="more than 1048576 bytes"):
            decompress(codec, bomb, bytes_max=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_a_snappy_length_that_lies_is_refused() -> None:
    framed = bytearray(compress(Compression.SNAPPY, b"x" * 100))
    for length in (-1, 2**31 - 1, 0):
        struct.pack_into(">i", framed, 16, length)
        with pytest.raises(CompressionError):
            decompress(Compression.SNAPPY, framed)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_raises_only_its_own_error(codec: Compression) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    whole = compress(codec, b"some text to inflate " * 200)
    for _ in range(500):
        damaged = bytearray(whole)
        if dice.random() < 0.5:
            del damaged[dice.randrange(len(damaged)) :]
        elif damaged:
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        try:
            decompress(codec, damaged, bytes_max=1 << 20)
        except CompressionError:
            pass


def test_gzip_of_the_standard_library_is_read() -> None:
    assert bytes(decompress(Compression.GZIP, gzip.compress(b"hello"))) == b"hello"
