"""The partitions of a column of keys are those of its keys one by one, and so Java's."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.client.column_partitioner import NO_PARTITION, partitions_of_keys
from moldau.client.partitioner import partition_of_key

keys = st.none() | st.binary(max_size=20) | st.integers(0, 300).map(lambda size: random.Random(size).randbytes(size))


@settings(deadline=None)
@given(
    keys=st.lists(keys, max_size=40),
    partition_count=st.integers(1, 1000),
    kind=st.sampled_from([pa.binary(), pa.large_binary()]),
    skipped=st.integers(0, 3),
)
def test_a_column_is_partitioned_as_its_keys_are(
    keys: list[bytes | None], partition_count: int, kind: pa.DataType, skipped: int
) -> None:
    partitions = partitions_of_keys(pa.array(keys, kind)[skipped:], partition_count)
    assert partitions.tolist() == [
        NO_PARTITION if key is None else partition_of_key(key, partition_count) for key in keys[skipped:]
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "ü", None]),
        pa.chunked_array([["a"], ["ü", None]]),
        pa.array(["a", "ü", None]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_strings_are_hashed_as_their_utf8(column: object) -> None:
    expected = [partition_of_key(b"a", 50), partition_of_key("ü".encode(), 50), NO_PARTITION]
    assert partitions_of_keys(column, 50).tolist() == expected


def test_nulls_and_nothing_have_no_partition() -> None:
    assert partitions_of_keys(pa.nulls(2), 3).tolist() == [NO_PARTITION, NO_PARTITION]
    assert partitions_of_keys(pa.array([], pa.binary()), 3).tolist() == []
    assert partitions_of_keys(pa.array([b""]), 3).tolist() == [partition_of_key(b"", 3)]
