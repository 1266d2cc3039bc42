"""Decisions about configurations: what may be set on which resource, and the records that set it.

Pure. The rules for a single value are the catalogue's; here are the rules that join keys, and those of the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moldau.cluster.config_catalogue import (
    ConfigKey,
    ConfigValueError,
    Kind,
    UpdateMode,
    broker_key,
    client_metrics_key,
    group_key,
    parse_value,
    topic_key,
)
from moldau.cluster.decision import Decision
from moldau.cluster.image import ConfigKind, ConfigResource, MetadataImage
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord

SET, DELETE, APPEND, SUBTRACT = range(4)
_OPERATIONS = ("SET", "DELETE", "APPEND", "SUBTRACT")
# Values of one resource's keys, None meaning "back to the default".
Changes = dict[str, str | None]


def validate_topic_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """The configs of a topic, or the refusal of the first that is wrong."""
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    values = {name: value for name, value in configs.items() if value is not None}
    _check_values(values, topic_key, ErrorCode.INVALID_CONFIG, "Unknown topic config name: {}")
    _check_topic_rules(values)
    return values


def _check_values(
    values: Mapping[str, str], find: Callable[[str], ConfigKey | None], code: ErrorCode, unknown: str | None
) -> None:
    for name, value in values.items():
        key = find(name)
        if key is None:
            if unknown is not None:
                raise KafkaError(code, unknown.format(name))
            continue
        try:
            parse_value(key, value)
        except ConfigValueError as error:
            raise KafkaError(code, str(error)) from None


def _check_topic_rules(values: Mapping[str, str]) -> None:
    low, high = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if low is not None and high is not None and int(low) > int(high):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})",
        )
    if values.get("remote.storage.enable", "").lower() == "true":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log"
            " storage.",
        )


# -- the two requests --------------------------------------------------------------------------------------------------


def decide_incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest, node_id: int
) -> Decision[IncrementalAlterConfigsResponse]:
    """Set, delete, append to and subtract from single keys; each resource on its own."""

    def changes(resource: Any) -> Changes:
        names = Counter(config.name for config in resource.configs)
        if any(count > 1 for count in names.values()):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        nulls = [each.name for each in resource.configs if each.value is None and each.config_operation != DELETE]
        if nulls:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
        return _incremental_changes(image, ConfigResource(resource.resource_type, resource.resource_name), resource)

    answers, records = _alter(image, request.resources, changes, node_id)
    response = IncrementalAlterConfigsResponse(
        responses=[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(*answer) for answer in answers]
    )
    return Decision(response, () if request.validate_only else records)


def decide_alter_configs(
    image: MetadataImage, request: AlterConfigsRequest, node_id: int
) -> Decision[AlterConfigsResponse]:
    """The legacy form: what is not named goes back to its default."""

    def changes(resource: Any) -> Changes:
        names = Counter(config.name for config in resource.configs)
        if any(count > 1 for count in names.values()):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        nulls = [each.name for each in resource.configs if each.value is None]
        if nulls:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
        now = image.config(resource.resource_type, resource.resource_name)
        replaced: Changes = dict.fromkeys(now, None)
        replaced.update((config.name, config.value) for config in resource.configs)
        return replaced

    answers, records = _alter(image, request.resources, changes, node_id)
    response = AlterConfigsResponse(
        responses=[AlterConfigsResponse.AlterConfigsResourceResponse(*answer) for answer in answers]
    )
    return Decision(response, () if request.validate_only else records)


Answer = tuple[int, str | None, int, str]


def _alter(
    image: MetadataImage, resources: Sequence[Any], changes_of: Callable[[Any], Changes], node_id: int
) -> tuple[list[Answer], list[ConfigRecord]]:
    answers: list[Answer] = []
    records: list[ConfigRecord] = []
    seen = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        code, message = ErrorCode.NONE, None
        try:
            if seen[kind, name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_resource(image, kind, name, node_id)
            changes = changes_of(resource)
            _check_changes(image, kind, name, changes)
            now = image.config(kind, name)
            records += [
                ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
                for key, value in changes.items()
                if now.get(key) != value
            ]
        except KafkaError as refusal:
            code, message = refusal.code, refusal.message
        answers.append((code, message, kind, name))
    return answers, records


def _check_resource(image: MetadataImage, kind: int, name: str, node_id: int) -> None:
    if kind == ConfigKind.TOPIC:
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind == ConfigKind.BROKER:
        if name and (not name.lstrip("-").isdigit() or int(name) not in image.brokers):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}"
            )
    elif kind in (ConfigKind.GROUP, ConfigKind.CLIENT_METRICS):
        if not name:
            what = "group ids" if kind == ConfigKind.GROUP else "subscription name"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Default {what} are not allowed.")
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _check_changes(image: MetadataImage, kind: int, name: str, changes: Changes) -> None:
    """The values after the change must be right as a whole."""
    after = {**image.config(kind, name), **changes}
    values = {key: value for key, value in after.items() if value is not None}
    if kind == ConfigKind.TOPIC:
        _check_values(values, topic_key, ErrorCode.INVALID_CONFIG, "Unknown topic config name: {}")
        _check_topic_rules(values)
    elif kind == ConfigKind.BROKER:
        _check_broker_changes(changes, is_default=not name)
        _check_values(values, broker_key, ErrorCode.INVALID_REQUEST, None)
    elif kind == ConfigKind.GROUP:
        _check_values(values, group_key, ErrorCode.INVALID_CONFIG, "Unknown group config name: {}")
    else:
        _check_values(values, client_metrics_key, ErrorCode.INVALID_REQUEST, "Unknown client metrics configuration: {}")


def _check_broker_changes(changes: Changes, *, is_default: bool) -> None:
    keys = [key for name in changes if (key := broker_key(name)) is not None]
    fixed = [key.name for key in keys if key.update_mode is UpdateMode.READ_ONLY]
    if fixed:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: [{', '.join(sorted(fixed))}]"
        )
    own = [key.name for key in keys if key.update_mode is UpdateMode.PER_BROKER]
    if own and is_default:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" [{', '.join(sorted(own))}]",
        )


def _incremental_changes(image: MetadataImage, resource: ConfigResource, request: Any) -> Changes:
    now = image.config(*resource)
    find = {
        ConfigKind.TOPIC: topic_key,
        ConfigKind.BROKER: broker_key,
        ConfigKind.GROUP: group_key,
        ConfigKind.CLIENT_METRICS: client_metrics_key,
    }[resource.kind]
    changes: Changes = {}
    for config in request.configs:
        operation = config.config_operation
        if operation not in (SET, DELETE, APPEND, SUBTRACT):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {operation}")
        if operation == DELETE:
            changes[config.name] = None
        elif operation == SET:
            changes[config.name] = config.value
        else:
            key = find(config.name)
            if key is None or key.kind is not Kind.LIST:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG,
                    f"Can't {_OPERATIONS[operation]} to key {config.name} because its type is not LIST.",
                )
            changes[config.name] = _edited_list(now.get(config.name, key.default), config.value, operation)
    return changes


def _edited_list(now: str | None, operand: str, operation: int) -> str:
    items = [item.strip() for item in (now or "").split(",") if item.strip()]
    named = [item.strip() for item in operand.split(",") if item.strip()]
    if operation == APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)
