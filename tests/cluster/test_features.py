"""Feature levels: what is promised, what is kept silent, and how levels move."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.cluster import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    MetadataImage,
    advertised_levels,
    decide_update_features,
    levels_kept_only,
    metadata_release,
    parse_level,
)
from moldau.kernel import ErrorCode
from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
from moldau.protocol.messages.update_features import UpdateFeaturesRequest
from tests.cluster.kit import cluster, replayed


def _at(level: int, **others: int) -> MetadataImage:
    levels = {METADATA_VERSION: level, **{name.replace("_", "."): other for name, other in others.items()}}
    return replayed(cluster(), [FeatureLevelRecord(name=name, feature_level=each) for name, each in levels.items()])


def _update(image: MetadataImage, *updates: tuple[str, int, int], version: int = 2, validate_only: bool = False) -> Any:
    request = UpdateFeaturesRequest(
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(name, level, upgrade_type=kind) for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    return decide_update_features(image, request, version, 1, 2)


def test_levels_above_ours_are_kept_and_not_advertised() -> None:
    image = _at(METADATA_VERSION_MAX, transaction_version=3, group_version=1, share_version=1)
    assert set(levels_kept_only(image)) == {"transaction.version", "share.version"}
    levels = {METADATA_VERSION: METADATA_VERSION_MAX, "kraft.version": 1, "group.version": 1}
    assert advertised_levels(image, kraft_version=1) == levels


def test_a_level_goes_up_and_the_record_says_so() -> None:
    image = _at(22)
    decision = _update(image, (METADATA_VERSION, 30, 1))
    assert decision.response.error_code == 0
    assert replayed(image, decision.records).features[METADATA_VERSION] == 30
    assert not _update(image, (METADATA_VERSION, 30, 1), validate_only=True).records
    assert not _update(image, (METADATA_VERSION, 22, 1)).records


@pytest.mark.parametrize("version", (0, 1, 2))
def test_one_refused_change_refuses_all(version: int) -> None:
    decision = _update(_at(22), (METADATA_VERSION, 30, 1), ("no.such.feature", 1, 1), version=version)
    assert decision.response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert not decision.records


@pytest.mark.parametrize("kind", (1, 2, 3))
def test_the_metadata_version_never_goes_down(kind: int) -> None:
    decision = _update(_at(30), (METADATA_VERSION, 29, kind))
    assert decision.response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert not decision.records


def test_releases_and_levels_are_two_names_of_one_thing() -> None:
    assert parse_level(METADATA_VERSION, "4.3-IV0") == parse_level(METADATA_VERSION, "4.3") == 30
    assert parse_level(METADATA_VERSION, "4.0") == 25
    assert metadata_release(30) == "4.3-IV0"
    with pytest.raises(ValueError, match="is no level of"):
        parse_level(METADATA_VERSION, "newest")
