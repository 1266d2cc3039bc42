"""ApiVersions: what both speak."""

from __future__ import annotations

import struct

import pytest

from moldau.broker.api_table import SERVED
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.registry import API_MESSAGES
from tests.differential.deliberate import FEATURES, SERVED_KEYS
from tests.differential.pair import Pair, versions_of

pytestmark = pytest.mark.oracle


# The others are served where controllers listen (`test_controllers`).
ON_BROKERS = [key for key in SERVED if "broker" in API_MESSAGES[key].listeners]


def _request(name: str = "apache-kafka-java", version: str = "4.3.1") -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=name, client_software_version=version)


@pytest.mark.parametrize("version", versions_of(18))
def test_every_version_names_the_same_ranges_for_the_keys_that_both_serve(pair: Pair, version: int) -> None:
    ours, theirs = pair.ask(
        _request() if version >= 3 else ApiVersionsRequest(), version, deliberate=(FEATURES, SERVED_KEYS)
    )
    of_kafka = {each.api_key: (each.min_version, each.max_version) for each in theirs.api_keys}
    assert {each.api_key: (each.min_version, each.max_version) for each in ours.api_keys} == {
        key: of_kafka[key] for key in ON_BROKERS
    }
    assert [each.api_key for each in ours.api_keys] == [key for key in of_kafka if key in ON_BROKERS]
    levels = {each.name: (each.min_version, each.max_version) for each in theirs.supported_features}
    for feature in ours.supported_features:
        assert (feature.min_version, feature.max_version) == levels[feature.name]
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in theirs.finalized_features}
    for feature in ours.finalized_features:
        assert (feature.min_version_level, feature.max_version_level) == finalized[feature.name]


@pytest.mark.parametrize("version", (3, 4))
@pytest.mark.parametrize(
    "software",
    [("", "1"), ("-x", "1"), ("x.", "1"), ("a b", "1"), ("x", ""), ("x", "1-"), ("é", "1"), ("x\n", "1")],
    ids=repr,
)
def test_software_that_does_not_look_like_a_name_is_refused(
    pair: Pair, version: int, software: tuple[str, str]
) -> None:
    ours, _ = pair.ask(_request(*software), version)
    assert not ours.api_keys


@pytest.mark.parametrize("version", (5, 99, 32767, -1))
def test_a_version_that_nobody_knows_is_answered_with_version_0(pair: Pair, version: int) -> None:
    header = struct.pack(">hhih4s", 18, version, 7, 4, b"test") + b"\x00anything"
    ours, theirs = pair.raw(struct.pack(">i", len(header)) + header, say=f"version {version}")
    assert ours == theirs
