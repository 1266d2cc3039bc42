"""The framing of KRaft's records, and what happens to records that we do not know."""

import pytest

from moldau.protocol.messages.metadata_records.partition_record import PartitionRecord
from moldau.protocol.messages.metadata_records.topic_record import TopicRecord
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.messages.registry import METADATA_RECORDS, metadata_record_class
from moldau.protocol.messages.storage.remote_log_segment_metadata_record import RemoteLogSegmentMetadataRecord
from moldau.protocol.metadata_records import UnknownMetadataRecord, decode_metadata_record, encode_metadata_record
from moldau.protocol.wire import ProtocolError, UnsupportedVersionError
from tools.generator.samples import Sampler
from tools.generator.schema import load

TOPIC_ID = bytes(range(16))


def test_a_topic_record_has_kafkas_bytes():
    encoded = encode_metadata_record(TopicRecord(name="orders", topic_id=TOPIC_ID), 0)
    assert encoded == b"\x01\x02\x00" + b"\x07orders" + TOPIC_ID + b"\x00"


@pytest.mark.parametrize("message", load("metadata"), ids=lambda message: message.name)
def test_every_record_survives_its_frame_in_every_version(message):
    cls = metadata_record_class(message.api_key)
    assert cls.__name__ == message.name
    for version in message.valid:
        for seed in range(5):
            print(f"{message.name} v{version} seed={seed}")
            record = Sampler(seed, with_unknown_tags=True).message(cls, message, version)
            assert decode_metadata_record(encode_metadata_record(record, version)) == (record, version)


@pytest.mark.parametrize("frame", [b"\x01\xff\x01\x03body", b"\x01\x02\x63body", b"\x01\x63\x00"])
def test_an_unknown_type_or_version_is_kept_verbatim(frame):
    record, version = decode_metadata_record(frame)
    assert isinstance(record, UnknownMetadataRecord)
    assert record.version == version
    assert encode_metadata_record(record, version) == frame


def test_an_unknown_record_cannot_change_its_version():
    with pytest.raises(UnsupportedVersionError):
        encode_metadata_record(UnknownMetadataRecord(99, 0, b""), 1)


def test_a_field_that_the_version_lacks_is_refused():
    with pytest.raises(UnsupportedVersionError, match="directories"):
        encode_metadata_record(PartitionRecord(directories=[TOPIC_ID]), 0)


@pytest.mark.parametrize("other", [ProduceRequest(), RemoteLogSegmentMetadataRecord()])
def test_a_message_that_is_no_metadata_record_is_refused(other):
    assert other.API_KEY in METADATA_RECORDS  # the keys of other worlds overlap
    with pytest.raises(UnsupportedVersionError, match="not a metadata record"):
        encode_metadata_record(other, other.VERSION_MIN)


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (b"", "metadata record"),
        (b"\x00\x02\x00", "frame version 0"),
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x02", "metadata record"),
        (b"\x01\xff\xff\xff\xff\xff\x01", "varint"),
        (b"\x01\x02\x00\x07orders", "TopicRecord"),
        (b"\x01\x02\x00\x07orders" + TOPIC_ID + b"\x00more", "4 bytes after TopicRecord"),
    ],
)
def test_a_bad_frame_is_a_protocol_error(frame, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        decode_metadata_record(frame)
