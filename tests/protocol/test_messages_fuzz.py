"""Bad bytes: every decoder refuses them with a ProtocolError, and no claimed length becomes memory."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.headers import decode_request_header, decode_response_header
from moldau.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.metadata_records import decode_metadata_record
from moldau.protocol.wire import ProtocolError
from tools.generator.samples import Sampler, all_messages, load_class

MESSAGES = all_messages()
IDS = [message.name for _, message in MESSAGES]
DECODERS = [(group, message, version) for group, message in MESSAGES for version in message.valid]

# The largest numbers that a length or count can claim: int32, int16, varint.
ABSURD = (
    b"\x7f\xff\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x00\x00\x00",
    b"\xff\xfe",
)

TOPIC = FetchRequest.ForgottenTopic(topic="t", partitions=[1])

# What decoding may allocate: some constant, and per byte of input the smallest struct that a byte can buy.
MEMORY_BYTES_BASE = 64 * 1024
MEMORY_BYTES_PER_INPUT_BYTE = 200


def _only_protocol_errors(decode, data):
    try:
        decode(data)
    except ProtocolError:
        pass


def _mutations(rng, valid):
    """Truncations, bit flips and absurd lengths of a valid encoding."""
    cuts = range(len(valid)) if len(valid) <= 24 else rng.sample(range(len(valid)), 24)
    yield from (valid[:cut] for cut in cuts)
    for _ in range(12 if valid else 0):
        flipped = bytearray(valid)
        for _ in range(rng.randint(1, 3)):
            flipped[rng.randrange(len(valid))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)
    for _ in range(12):
        at = rng.randint(0, len(valid))
        absurd = rng.choice(ABSURD)
        yield valid[:at] + absurd + valid[at + rng.choice((0, len(absurd))) :]
    for _ in range(4):
        yield rng.randbytes(rng.randint(0, 60))


@pytest.mark.parametrize(("group", "message"), MESSAGES, ids=IDS)
def test_only_protocol_errors_escape_from_damaged_messages(group, message):
    cls = load_class(group, message)
    for version in message.valid:
        rng = random.Random(version)
        print(f"{message.name} v{version} seed={version}")
        valid = Sampler(version, with_unknown_tags=True).message(cls, message, version).encode(version)
        for data in _mutations(rng, valid):
            _only_protocol_errors(lambda data: cls.decode(data, version), data)  # noqa: B023
            _only_protocol_errors(lambda data: cls.decode_from(memoryview(data), 0, version), data)  # noqa: B023


@settings(max_examples=1500, deadline=None)
@given(decoder=st.sampled_from(DECODERS), data=st.binary(max_size=200))
def test_only_protocol_errors_escape_from_any_bytes(decoder, data):
    group, message, version = decoder
    _only_protocol_errors(lambda data: load_class(group, message).decode(data, version), data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=100), api_key=st.integers(0, 100), version=st.integers(-1, 20))
def test_only_protocol_errors_escape_from_any_header(data, api_key, version):
    start = api_key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True)
    _only_protocol_errors(decode_request_header, start + data)
    _only_protocol_errors(decode_request_header, data)
    _only_protocol_errors(lambda data: decode_response_header(data, api_key, version), data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=100), api_key=st.integers(0, 40), version=st.integers(0, 6))
def test_only_protocol_errors_escape_from_any_metadata_record(data, api_key, version):
    _only_protocol_errors(decode_metadata_record, bytes((1, api_key, version)) + data)
    _only_protocol_errors(decode_metadata_record, data)


@pytest.mark.parametrize(("group", "message"), MESSAGES, ids=IDS)
def test_a_claimed_length_is_never_allocated(group, message):
    cls = load_class(group, message)
    for version in {message.valid.low, message.valid.high}:
        rng = random.Random(version)
        valid = Sampler(version + 5).message(cls, message, version).encode(version)
        inputs = [data for data in _mutations(rng, valid) if len(data) <= 2000]
        inputs += [absurd * 8 for absurd in ABSURD]
        limit = MEMORY_BYTES_BASE + MEMORY_BYTES_PER_INPUT_BYTE * max(map(len, inputs))
        tracemalloc.start()
        try:
            for data in inputs:
                _only_protocol_errors(lambda data: cls.decode(data, version), data)  # noqa: B023
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < limit, f"{message.name} v{version} seed={version}"


@pytest.mark.parametrize(
    ("cls", "version", "body", "complaint"),
    [
        # A count that the bytes after it cannot hold, in each kind of array and length encoding.
        (ProduceRequest, 3, b"\xff\xff\x00\x01\x00\x00\x00\x01" + b"\x7f\xff\xff\xff", "2147483647 elements with 0"),
        (
            ProduceRequest,
            9,
            b"\x00\x00\x01\x00\x00\x00\x01" + b"\xff\xff\xff\xff\x0f" + b"\x00" * 9,
            "4294967294 elements",
        ),
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x01" + b"\x05" + b"\x00" * 9, "4 elements with 9"),
        (ConsumerProtocolSubscription, 0, b"\x7f\xff\xff\xff" + b"\x00" * 20, "string array"),
        (ConsumerProtocolSubscription, 0, b"\x00\x00\x00\x01" + b"\x7f\xff" + b"\x00" * 20, "string in array"),
        (ConsumerProtocolSubscription, 0, b"\x00\x00\x00\x01" + b"\xff\xff" + b"\x00" * 20, "string in array"),
        (ListOffsetsRequest, 1, b"\x00" * 3, "ListOffsetsRequest v1"),
        (FetchRequest, 7, FetchRequest(forgotten_topics_data=[TOPIC]).encode(7)[:-1], "int32 array: 1 elements with 3"),
        # Lengths: too long, negative beyond null, null where there is none.
        (ProduceRequest, 3, b"\x7f\xff", "length 32767 with 0"),
        (ProduceRequest, 3, b"\xff\xfe", "length -2"),
        (ProduceRequest, 9, b"\x09abc", "length 8 with 3"),
        (MetadataRequest, 1, b"\xff\xff\xff\xfe", "-2 elements"),
        (MetadataRequest, 0, b"\x00\x00\x00\x01\xff\xff", "length -1"),
        # Tagged fields: more than there are bytes, longer than there are bytes.
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x01\x01" + b"\xff\xff\xff\xff\x07", "tagged fields"),
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x01\x01" + b"\x01\x05\x7fabc", "tagged field 5: length 127"),
        (FetchRequest, 12, FetchRequest().encode(12)[:-1] + b"\xff\xff\xff\xff\x07", "tagged fields"),
        # Varints that do not end.
        (ProduceRequest, 9, b"\xff" * 20, "varint"),
        (ProduceRequest, 9, b"\xff\xff\xff\xff\x7f", "varint"),
        # Text that is not UTF-8.
        (ProduceRequest, 9, b"\x02\xff" + b"\x00" * 20, "utf-8"),
        (ProduceRequest, 9, b"", "ProduceRequest v9"),
    ],
)
def test_bad_input_is_refused_with_a_reason(cls, version, body, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        cls.decode(body, version)
