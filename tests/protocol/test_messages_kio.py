"""Our codec against `kio`, an independent one: same bytes, same values, every API and version that both have."""

import dataclasses
import datetime
import enum
import io
import uuid

import pytest
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from moldau.protocol.wire import ZERO_UUID
from tools.generator.samples import Sampler, all_messages, load_class
from tools.generator.schema import snake_case

SAMPLES_PER_VERSION = 6
EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
NOT_SENT = object()
KINDS = {
    "request": EntityType.request,
    "response": EntityType.response,
    "header": EntityType.header,
    "data": EntityType.data,
}


def _kio_name(message):
    stem = message.name.removesuffix("Request").removesuffix("Response")
    return snake_case(stem).replace("kraft_", "k_raft_")


def _pairs():
    for group, message in all_messages():
        known = schema_name_map.get(_kio_name(message), {})
        if message.kind in KINDS and group in ("rpc", "raft") and known:
            yield group, message, [version for version in message.valid if version in known]


PAIRS = list(_pairs())


def _plain(value):
    """A value of kio's in our terms."""
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, enum.IntEnum):
        return int(value)
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value


def _ours(value, struct, version):
    """A value of ours as the list of what the version has, in the order of the definition."""
    if value is None:
        return None
    values = []
    for field in struct.fields:
        if version not in field.versions:
            continue
        item = getattr(value, field.attribute)
        if field.is_optional_struct and item is None:
            values.append(NOT_SENT)
        elif field.struct is None or item is None:
            values.append(item)
        elif field.is_array:
            values.append([_ours(element, field.struct, version) for element in item])
        else:
            values.append(_ours(item, field.struct, version))
    return values


def _same(ours, theirs):
    if ours is NOT_SENT:
        return theirs is not None  # kio shows the defaults as a struct
    if ours == ZERO_UUID:
        return theirs is None
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return ours == theirs


def test_kio_knows_nearly_everything_we_do():
    missing = sorted(message.name for _, message in all_messages() if message.kind in ("request", "response"))
    covered = {message.name for _, message, _ in PAIRS}
    assert [name for name in missing if name not in covered] == []
    versions_short = [
        (message.name, version) for _, message, both in PAIRS for version in message.valid if version not in both
    ]
    assert versions_short == []


@pytest.mark.parametrize(("group", "message", "versions"), PAIRS, ids=[message.name for _, message, _ in PAIRS])
def test_kio_reads_what_we_write_and_writes_what_we_read(group, message, versions):
    cls = load_class(group, message)
    for version in versions:
        schema = load_entity_schema(_kio_name(message), version, KINDS[message.kind])
        read, write = entity_reader(schema), entity_writer(schema)
        for index in range(SAMPLES_PER_VERSION):
            seed = version * 1000 + index
            print(f"{message.name} v{version} seed={seed}")
            ours = Sampler(seed, tame=True).message(cls, message, version)
            encoded = ours.encode(version)
            theirs, size = read(encoded, 0)
            assert size == len(encoded)
            assert _same(_ours(ours, message.root, version), _plain(theirs))
            buffer = io.BytesIO()
            write(buffer, theirs)
            assert buffer.getvalue() == encoded
            assert cls.decode(buffer.getvalue(), version) == ours
