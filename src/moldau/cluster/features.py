"""Feature levels: what this version of Moldau can promise, what the cluster agreed on, and what that means on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moldau.cluster.decision import Decision
from moldau.cluster.eligible_leaders import ELR_VERSION, pin_min_in_sync
from moldau.cluster.image import MetadataImage
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.metadata_records import UnknownMetadataRecord

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"
METADATA_VERSION_MIN = 7  # 3.3-IV3
METADATA_VERSION_MAX = 30  # 4.3-IV0


@dataclass(frozen=True, slots=True)
class FeatureRange:
    low: int
    high: int

    def __contains__(self, level: int) -> bool:
        return self.low <= level <= self.high


# Only what is really kept.
SUPPORTED: Mapping[str, FeatureRange] = {
    METADATA_VERSION: FeatureRange(METADATA_VERSION_MIN, METADATA_VERSION_MAX),
    KRAFT_VERSION: FeatureRange(0, 1),
    TRANSACTION_VERSION: FeatureRange(0, 2),
    GROUP_VERSION: FeatureRange(0, 1),
    ELR_VERSION: FeatureRange(0, 1),
}

_METADATA_RELEASES = {
    7: "3.3-IV3",
    8: "3.4-IV0",
    9: "3.5-IV0",
    10: "3.5-IV1",
    11: "3.5-IV2",
    12: "3.6-IV0",
    13: "3.6-IV1",
    14: "3.6-IV2",
    15: "3.7-IV0",
    16: "3.7-IV1",
    17: "3.7-IV2",
    18: "3.7-IV3",
    19: "3.7-IV4",
    20: "3.8-IV0",
    21: "3.9-IV0",
    22: "4.0-IV0",
    23: "4.0-IV1",
    24: "4.0-IV2",
    25: "4.0-IV3",
    26: "4.1-IV0",
    27: "4.1-IV1",
    28: "4.2-IV0",
    29: "4.2-IV1",
    30: "4.3-IV0",
}
# Record key -> (metadata.version from which on, record version), newest first.
_RECORD_VERSIONS = {
    0: ((30, 4), (17, 3), (8, 2), (0, 1)),
    3: ((23, 2), (17, 1), (0, 0)),
    5: ((23, 2), (17, 1), (0, 0)),
    17: ((30, 3), (17, 2), (0, 1)),
}


def record_version(record: Any, metadata_version: int) -> int:
    """The version in which a metadata record is written at this metadata.version."""
    if isinstance(record, UnknownMetadataRecord):
        return record.version
    for since, version in _RECORD_VERSIONS.get(record.API_KEY, ()):
        if metadata_version >= since:
            return version
    return 0


def metadata_release(level: int) -> str:
    """The name that people know a metadata.version by."""
    return _METADATA_RELEASES.get(level, str(level))


def parse_level(feature: str, text: str) -> int:
    """A level as a number or, for metadata.version, as a release such as 4.3-IV0 or 4.3."""
    if text.lstrip("-").isdigit():
        return int(text)
    if feature == METADATA_VERSION:
        matches = [level for level, name in _METADATA_RELEASES.items() if name == text or name.split("-")[0] == text]
        if matches:
            return max(matches)
    raise ValueError(f"{text!r} is no level of {feature}: give a number{_release_hint(feature)}")


def _release_hint(feature: str) -> str:
    return " or a release such as 4.3-IV0" if feature == METADATA_VERSION else ""


def levels_kept_only(image: MetadataImage) -> dict[str, int]:
    """Finalized levels above what we can promise: kept in the log, not advertised."""
    return {
        name: level
        for name, level in image.features.items()
        if name != METADATA_VERSION and (name not in SUPPORTED or level > SUPPORTED[name].high)
    }


def advertised_levels(image: MetadataImage, kraft_version: int) -> dict[str, int]:
    """What ApiVersions names as finalized."""
    levels = {
        name: level for name, level in image.features.items() if name in SUPPORTED and level <= SUPPORTED[name].high
    }
    levels[METADATA_VERSION] = min(image.features.get(METADATA_VERSION, METADATA_VERSION_MIN), METADATA_VERSION_MAX)
    if kraft_version:
        levels[KRAFT_VERSION] = kraft_version
    return levels


# Upgrade types of UpdateFeatures.
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def decide_update_features(
    image: MetadataImage, request: Any, version: int, node_id: int, static_min_in_sync: int
) -> Decision[Any]:
    """UpdateFeatures: all of the changes or, when one is refused, none of them (KIP-584, KIP-1022)."""
    from moldau.protocol.messages.metadata_records.feature_level_record import FeatureLevelRecord
    from moldau.protocol.messages.update_features import UpdateFeaturesResponse

    records: list[Any] = []
    results = []
    for update in request.feature_updates:
        upgrade_type = update.upgrade_type
        if version == 0:
            upgrade_type = SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
        try:
            _check_update(image, update.feature, update.max_version_level, upgrade_type, node_id)
        except KafkaError as error:
            message = f"The update failed for all features since the following feature had an error: {error.message}"
            return Decision(UpdateFeaturesResponse(error_code=error.code, error_message=message))
        results.append(UpdateFeaturesResponse.UpdatableFeatureResult(update.feature, ErrorCode.NONE, "NONE"))
        if image.features.get(update.feature, 0) != update.max_version_level:
            if update.feature == ELR_VERSION and update.max_version_level > 0:
                records += pin_min_in_sync(image, static_min_in_sync)
            records.append(FeatureLevelRecord(name=update.feature, feature_level=update.max_version_level))
    response = UpdateFeaturesResponse(error_message=None, results=[] if version >= 2 else results)
    return Decision(response, () if request.validate_only else records)


def _check_update(image: MetadataImage, name: str, level: int, upgrade_type: int, node_id: int) -> None:
    now = image.features.get(name, 0)
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _invalid(name, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _invalid(name, level, "A feature version cannot be less than 0.")
    supported = SUPPORTED.get(name)
    if supported is None:
        known = (
            f"Feature {name} not found." if level == 0 else f"Local controller {node_id} does not support this feature."
        )
        raise _invalid(name, level, known)
    if level not in supported:
        raise _invalid(
            name, level, f"Local controller {node_id} only supports versions {supported.low}-{supported.high}"
        )
    _check_everybody_can(image, name, level)
    if level < now and upgrade_type == UPGRADE:
        raise _invalid(
            name,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
            " downgrade.",
        )
    if level > now and upgrade_type != UPGRADE:
        raise _invalid(name, level, "Can't downgrade to a newer version.")
    if name == METADATA_VERSION and level < now:
        why = (
            "Unsafe metadata downgrade is not supported in this version."
            if upgrade_type == UNSAFE_DOWNGRADE
            else "Refusing to perform the requested downgrade because it might delete metadata information."
        )
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"Unsupported metadata.version downgrade from {now} to {level}. {why}"
        )


def _check_everybody_can(image: MetadataImage, name: str, level: int) -> None:
    nodes = [(f"Broker {each.node_id}", each.features) for each in image.brokers.values()]
    nodes += [(f"Controller {node_id}", each.features) for node_id, each in image.controllers.items()]
    for who, features in nodes:
        low, high = features.get(name, (0, 0))
        if (low, high) == (0, 0) and level != 0:
            raise _invalid(name, level, f"{who} does not support this feature.")
        if not low <= level <= high:
            raise _invalid(name, level, f"{who} only supports versions {low}-{high}")


def _invalid(name: str, level: int, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {name}. {why}")
