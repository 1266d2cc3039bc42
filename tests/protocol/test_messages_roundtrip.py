"""Every message in every version: what is written is read back, and what a version lacks is refused."""

import pytest

from moldau.protocol.message import NEVER_FLEXIBLE
from moldau.protocol.messages.api_versions import ApiVersionsResponse
from moldau.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import ProduceRequest, ProduceResponse
from moldau.protocol.wire import UNKNOWN_TAGS_MAX, EncodingError, ProtocolError, UnsupportedVersionError
from tools.generator.samples import Sampler, all_messages, load_class

SAMPLES_PER_VERSION = 8
MESSAGES = all_messages()


@pytest.mark.parametrize(("group", "message"), MESSAGES, ids=[message.name for _, message in MESSAGES])
def test_a_message_survives_the_wire_in_every_version(group, message):
    cls = load_class(group, message)
    for version in message.valid:
        for index in range(SAMPLES_PER_VERSION):
            seed = version * 1000 + index
            print(f"{message.name} v{version} seed={seed}")
            original = Sampler(seed, with_unknown_tags=True).message(cls, message, version)
            encoded = original.encode(version)
            assert cls.decode(encoded, version) == original
            assert cls.decode_from(b"xyz" + encoded + b"tail", 3, version) == (original, 3 + len(encoded))
            assert cls.decode(memoryview(bytearray(encoded)), version) == original
            assert cls.decode(encoded, version).encode(version) == encoded
            appended = bytearray(b"head")
            original.encode_into(appended, version)
            assert appended == b"head" + encoded


@pytest.mark.parametrize(("group", "message"), MESSAGES, ids=[message.name for _, message in MESSAGES])
def test_a_default_message_survives_the_wire_and_states_its_versions(group, message):
    cls = load_class(group, message)
    assert message.valid.low == cls.VERSION_MIN
    assert message.valid.high == cls.VERSION_MAX
    assert (message.flexible.low if message.flexible else NEVER_FLEXIBLE) == cls.FLEXIBLE_FROM
    assert message.latest_unstable == cls.LATEST_VERSION_UNSTABLE
    assert (-1 if message.api_key is None else message.api_key) == cls.API_KEY
    for version in message.valid:
        try:
            encoded = cls().encode(version)
        except EncodingError:
            continue  # a field whose default is null in a version that has no null yet
        assert cls.decode(encoded, version) == cls()


@pytest.mark.parametrize("version", [-1, 2, 14, 32767])
def test_a_version_that_does_not_exist_is_refused(version):
    with pytest.raises(UnsupportedVersionError, match="ProduceRequest has versions 3 to 13"):
        ProduceRequest.decode(b"\0" * 100, version)
    with pytest.raises(UnsupportedVersionError):
        ProduceRequest.decode_from(b"\0" * 100, 0, version)
    with pytest.raises(UnsupportedVersionError):
        ProduceRequest().encode(version)


def test_a_field_that_the_version_lacks_must_have_its_default():
    with pytest.raises(UnsupportedVersionError, match="allow_auto_topic_creation"):
        MetadataRequest(topics=[], allow_auto_topic_creation=False).encode(3)
    MetadataRequest(topics=[], allow_auto_topic_creation=True).encode(3)


def test_an_ignorable_field_that_the_version_lacks_is_dropped():
    response = ApiVersionsResponse(throttle_time_ms=7)
    assert ApiVersionsResponse.decode(response.encode(0), 0).throttle_time_ms == 0


def test_unknown_tags_do_not_fit_a_version_without_tags():
    with pytest.raises(UnsupportedVersionError, match="unknown_tags"):
        ProduceRequest(unknown_tags=((1, b"x"),)).encode(8)


def test_null_and_empty_arrays_differ():
    assert MetadataRequest.decode(MetadataRequest(topics=None).encode(9), 9).topics is None
    assert MetadataRequest.decode(MetadataRequest(topics=[]).encode(9), 9).topics == []
    assert MetadataRequest().topics == []


def test_null_is_refused_where_the_version_allows_none():
    with pytest.raises(ProtocolError, match="null"):
        MetadataRequest(topics=None).encode(0)
    with pytest.raises(ProtocolError, match="null"):
        MetadataRequest.decode(b"\xff\xff\xff\xff", 0)
    body = bytearray(ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="t")]).encode(9))
    body[body.index(b"\x02t")] = 0
    with pytest.raises(ProtocolError, match="name"):
        ProduceRequest.decode(body, 9)


def test_trap_8_a_nullable_struct_has_an_int8_before_it():
    cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=5)
    encoded = DescribeTopicPartitionsRequest(cursor=cursor).encode(0)
    assert encoded == b"\x01" + b"\x00\x00\x07\xd0" + b"\x01" + b"\x02t\x00\x00\x00\x05\x00" + b"\x00"
    assert DescribeTopicPartitionsRequest().encode(0) == b"\x01" + b"\x00\x00\x07\xd0" + b"\xff" + b"\x00"
    assert DescribeTopicPartitionsRequest.decode(encoded, 0).cursor == cursor
    assert DescribeTopicPartitionsRequest.decode(b"\x01\x00\x00\x07\xd0\xff\x00", 0).cursor is None
    with pytest.raises(ProtocolError, match="cursor"):
        DescribeTopicPartitionsRequest.decode(b"\x01\x00\x00\x07\xd0\x02\x00", 0)


def test_unknown_tagged_fields_are_kept_in_order_beside_known_ones():
    request = FetchRequest(cluster_id="c", unknown_tags=((500, b"late"), (7, b"early")))
    encoded = request.encode(12)
    assert encoded.endswith(b"\x03" + b"\x00\x02\x02c" + b"\x07\x05early" + b"\xf4\x03\x04late")
    decoded = FetchRequest.decode(encoded, 12)
    assert decoded.cluster_id == "c"
    assert decoded.unknown_tags == ((7, b"early"), (500, b"late"))


def test_no_more_unknown_tagged_fields_are_kept_than_the_limit():
    tags = tuple((tag, b"v") for tag in range(100, 100 + 2 * UNKNOWN_TAGS_MAX))
    for cls, version in ((FetchRequest, 12), (ProduceRequest, 9)):
        decoded = cls.decode(cls(unknown_tags=tags).encode(version), version)
        assert decoded.unknown_tags == tags[:UNKNOWN_TAGS_MAX]


def test_a_tag_that_is_known_and_unknown_at_once_is_refused():
    with pytest.raises(EncodingError, match="twice"):
        FetchRequest(cluster_id="c", unknown_tags=((0, b"x"),)).encode(12)


def test_a_tagged_field_must_fill_its_size():
    encoded = bytearray(FetchRequest(cluster_id="abc").encode(12))
    at = encoded.index(b"\x00\x04\x04abc")  # tag 0, four bytes, compact string of three
    encoded[at + 2] = 3
    with pytest.raises(ProtocolError, match="declared size"):
        FetchRequest.decode(encoded, 12)


def test_a_tagged_struct_with_default_values_is_not_sent():
    plain = ProduceResponse.PartitionProduceResponse(index=1)
    explicit = ProduceResponse.PartitionProduceResponse(index=1, current_leader=ProduceResponse.LeaderIdAndEpoch())
    bodies = [
        ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=[part])]).encode(
            10
        )
        for part in (plain, explicit)
    ]
    assert bodies[0] == bodies[1]


def test_records_are_a_view_of_the_input_and_any_bytes_like_is_written():
    part = FetchResponse.PartitionData(partition_index=1, records=memoryview(bytearray(b"batch")))
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])])
    buffer = bytearray(response.encode(11))
    records = FetchResponse.decode(buffer, 11).responses[0].partitions[0].records
    assert records == b"batch"
    buffer[buffer.index(b"batch")] = ord("c")
    assert records == b"catch"


@pytest.mark.parametrize(
    "request_",
    [
        ProduceRequest(acks=40_000),
        ProduceRequest(transactional_id="x" * 40_000),
        ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name=None)]),
        ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(name="\ud800")]),
        ProduceRequest(topic_data=None),
    ],
)
def test_a_value_that_cannot_be_written_is_an_encoding_error(request_):
    with pytest.raises(EncodingError):
        request_.encode(8)


def test_a_uuid_of_the_wrong_length_is_not_padded():
    topic = ProduceRequest.TopicProduceData(topic_id=b"short")
    with pytest.raises(EncodingError, match="16 bytes"):
        ProduceRequest(topic_data=[topic]).encode(13)


def test_lists_and_structs_are_not_shared_between_messages():
    ProduceRequest().topic_data.append(ProduceRequest.TopicProduceData())
    assert ProduceRequest().topic_data == []


def test_messages_show_and_compare_their_fields():
    topic = ProduceRequest.TopicProduceData(name="t")
    assert repr(topic).startswith("ProduceRequest.TopicProduceData(name='t', topic_id=")
    assert topic == ProduceRequest.TopicProduceData(name="t")
    assert topic != ProduceRequest.TopicProduceData(name="u")
    assert topic != "t"
