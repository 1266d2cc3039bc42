"""Decisions about configurations: what may be set on which resource, and the records that set it.

Pure. The rules for a single value are the catalogue's; here are the rules that join keys, and those of the requests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from moldau.cluster.config_catalogue import (
    Allowed,
    ConfigKey,
    ConfigValueError,
    Kind,
    UpdateMode,
    broker_key,
    client_metrics_key,
    group_key,
    parse_value,
    topic_default_problem,
    topic_key,
)
from moldau.cluster.decision import Decision, check_size
from moldau.cluster.eligible_leaders import check_min_in_sync_change, forget_eligible
from moldau.cluster.image import ConfigKind, ConfigResource, MetadataImage
from moldau.cluster.topic_names import topic_name_problem
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from moldau.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.protocol.messages.metadata_records.clear_elr_record import ClearElrRecord
from moldau.protocol.messages.metadata_records.config_record import ConfigRecord

SET, DELETE, APPEND, SUBTRACT = range(4)
NODE_ID_CHARACTERS_MAX = len("-2147483648")
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
    low, high = (_integer(topic_key, name, values) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"))
    if low is not None and high is not None and low > high:
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


def _integer(find: Callable[[str], ConfigKey | None], name: str, values: Mapping[str, str]) -> int | None:
    """A value that was checked before, as a number; None where there is none."""
    key = find(name)
    assert key is not None
    value = parse_value(key, values[name]) if name in values else None
    assert value is None or isinstance(value, int)
    return value


# -- the two requests --------------------------------------------------------------------------------------------------

# A broker's own value of an integer key, for rules that compare with it.
BrokerValue = Callable[[str], int]


def decide_incremental_alter_configs(
    image: MetadataImage, request: IncrementalAlterConfigsRequest, node_id: int | None, broker_value: BrokerValue
) -> Decision[IncrementalAlterConfigsResponse]:
    """Set, delete, append to and subtract from single keys; each resource on its own.

    `node_id` is the broker that was asked, the only one whose own keys it may set. None: a controller was asked.
    """

    def changes(resource: Any) -> Changes:
        _check_names(resource, may_be_null=lambda config: config.config_operation == DELETE)
        return _incremental_changes(image, ConfigResource(resource.resource_type, resource.resource_name), resource)

    answers, records = _alter(image, request.resources, changes, node_id, broker_value)
    response = IncrementalAlterConfigsResponse(
        responses=[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(*answer) for answer in answers]
    )
    return Decision(response, () if request.validate_only else records)


def decide_alter_configs(
    image: MetadataImage, request: AlterConfigsRequest, node_id: int | None, broker_value: BrokerValue
) -> Decision[AlterConfigsResponse]:
    """The legacy form: what is not named goes back to its default."""

    def changes(resource: Any) -> Changes:
        _check_names(resource, may_be_null=lambda config: False)
        now = image.config(resource.resource_type, resource.resource_name)
        replaced: Changes = dict.fromkeys(now, None)
        replaced.update((config.name, config.value) for config in resource.configs)
        return replaced

    answers, records = _alter(image, request.resources, changes, node_id, broker_value)
    response = AlterConfigsResponse(
        responses=[AlterConfigsResponse.AlterConfigsResourceResponse(*answer) for answer in answers]
    )
    return Decision(response, () if request.validate_only else records)


Answer = tuple[int, str | None, int, str]


def _alter(
    image: MetadataImage,
    resources: Sequence[Any],
    changes_of: Callable[[Any], Changes],
    node_id: int | None,
    broker_value: BrokerValue,
) -> tuple[list[Answer], list[ConfigRecord | ClearElrRecord]]:
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
            _check_changes(image, kind, name, changes, broker_value)
            now = image.config(kind, name)
            records += [
                ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
                for key, value in changes.items()
                if now.get(key) != value
            ]
        except KafkaError as refusal:
            code, message = refusal.code, refusal.message
        answers.append((code, message, kind, name))
    try:
        check_size(records)
    except KafkaError as refusal:
        return [_refused_unless_already(answer, refusal) for answer in answers], []
    return answers, [*records, *forget_eligible(image, records)]


def _refused_unless_already(answer: Answer, refusal: KafkaError) -> Answer:
    return answer if answer[0] != ErrorCode.NONE else (refusal.code, refusal.message, *answer[2:])


def _check_names(resource: Any, may_be_null: Callable[[Any], bool]) -> None:
    names = Counter(config.name for config in resource.configs)
    if any(count > 1 for count in names.values()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [config.name for config in resource.configs if config.value is None and not may_be_null(config)]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _check_resource(image: MetadataImage, kind: int, name: str, node_id: int | None) -> None:
    if kind == ConfigKind.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        problem = topic_name_problem(name)
        if problem:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind in (ConfigKind.BROKER, ConfigKind.BROKER_LOGGER):
        _check_broker(kind, name, node_id)
    elif kind == ConfigKind.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    elif kind == ConfigKind.CLIENT_METRICS:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def for_other_brokers(resources: Sequence[Any], node_id: int) -> list[Answer]:
    """The refusals of a broker that was asked for what only another one may be asked."""
    refused: list[Answer] = []
    for each in resources:
        if each.resource_type in (ConfigKind.BROKER, ConfigKind.BROKER_LOGGER):
            try:
                _check_broker(each.resource_type, each.resource_name, node_id)
            except KafkaError as refusal:
                refused.append((refusal.code, refusal.message, each.resource_type, each.resource_name))
    return refused


def _check_broker(kind: int, name: str, node_id: int | None) -> None:
    if not name and kind == ConfigKind.BROKER:
        return
    if not name.removeprefix("-").isdecimal() or len(name) > NODE_ID_CHARACTERS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if node_id is not None and int(name) != node_id:
        text = (
            f"Unexpected broker id, expected {node_id}, but received {name}"
            if kind == ConfigKind.BROKER
            else f"Unexpected node id. Expected {node_id}, but received {name}"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _check_changes(image: MetadataImage, kind: int, name: str, changes: Changes, broker_value: BrokerValue) -> None:
    """The values after the change must be right as a whole."""
    after = {**image.config(kind, name), **changes}
    values = {key: value for key, value in after.items() if value is not None}
    if kind == ConfigKind.TOPIC:
        _check_values(values, topic_key, ErrorCode.INVALID_CONFIG, "Unknown topic config name: {}")
        _check_topic_rules(values)
    elif kind == ConfigKind.BROKER:
        _check_broker_changes(changes, is_default=not name)
        check_min_in_sync_change(image, name, changes)
        _check_values(values, broker_key, ErrorCode.INVALID_REQUEST, None)
        _check_topic_defaults(values)
    elif kind == ConfigKind.GROUP:
        _check_values(values, group_key, ErrorCode.INVALID_CONFIG, "Unknown group config name: {}")
        _check_group_rules(values, broker_value)
    elif kind == ConfigKind.BROKER_LOGGER:
        # Nothing here logs by Java's loggers.
        for logger in changes:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist!")
    else:
        _check_subscription(values)


def _check_topic_defaults(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        problem = topic_default_problem(name, value)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"requirement failed: {problem}")


# Keys of a group that may not leave the bounds that the brokers set, with the prefix of those.
_BOUNDED_GROUP_KEYS = tuple(
    f"{kind}.{key}"
    for kind, keys in (
        ("consumer", ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")),
        (
            "share",
            (
                "heartbeat.interval.ms",
                "session.timeout.ms",
                "assignment.interval.ms",
                "record.lock.duration.ms",
                "delivery.count.limit",
                "partition.max.record.locks",
            ),
        ),
        ("streams", ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")),
    )
    for key in keys
)


def _check_group_rules(values: Mapping[str, str], broker_value: BrokerValue) -> None:
    for name in _BOUNDED_GROUP_KEYS:
        if name not in values:
            continue
        kind, _, rest = name.partition(".")
        for bound, what in (("min", "greater"), ("max", "less")):
            limit_name = f"group.{kind}.{bound}.{rest}"
            value, limit = _integer(group_key, name, values), broker_value(limit_name)
            assert value is not None
            if value < limit if bound == "min" else value > limit:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be {what} than or equal to {limit_name}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        in_force = [_integer(group_key, name, values) or broker_value(f"group.{name}") for name in (session, heartbeat)]
        if in_force[0] <= in_force[1]:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")


_CLIENT_PROPERTIES = frozenset(
    f"client_{name}"
    for name in ("id", "instance_id", "software_name", "software_version", "source_address", "source_port")
)


def _check_subscription(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        key = client_metrics_key(name)
        if key is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        try:
            if name == "interval.ms":
                _check_interval(key, value)
            parse_value(key, value)
        except ConfigValueError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if name == "match":
            _check_client_patterns(value)


def _check_interval(key: ConfigKey, text: str) -> None:
    """A number out of bounds is refused in other words than what is no number."""
    value = parse_value(replace(key, allowed=Allowed()), text)
    low, high = key.allowed.minimum, key.allowed.maximum
    assert isinstance(value, int) and low is not None and high is not None
    if not low <= value <= high:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {value} for interval.ms, interval must be between {low} and {high} (1 hour)",
        )


def _check_client_patterns(text: str) -> None:
    for pattern in filter(None, (part.strip() for part in text.split(","))):
        name, equals, expression = pattern.partition("=")
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError):
            equals = ""
        if not equals or name.strip() not in _CLIENT_PROPERTIES:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


# Of the security keys, these change at run time only for one listener: listener.name.<listener>.<key>
_PER_LISTENER = re.compile(r"ssl\.(key\.password|keystore\..+|truststore\..+)")


def _check_broker_changes(changes: Changes, *, is_default: bool) -> None:
    per_listener = sorted(name for name in changes if _PER_LISTENER.fullmatch(name))
    if per_listener:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "These security configs can be dynamically updated only per-listener using the listener prefix:"
            f" [{', '.join(per_listener)}]",
        )
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


_FIND_KEY: Mapping[int, Callable[[str], ConfigKey | None]] = {
    ConfigKind.TOPIC: topic_key,
    ConfigKind.BROKER: broker_key,
    ConfigKind.GROUP: group_key,
}


def _incremental_changes(image: MetadataImage, resource: ConfigResource, request: Any) -> Changes:
    now = image.config(*resource)
    find = _FIND_KEY.get(resource.kind)
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
            key = None if find is None else find(config.name)
            if key is None or key.kind is not Kind.LIST:
                raise KafkaError(ErrorCode.INVALID_CONFIG, _not_a_list(resource.kind, operation, config.name))
            changes[config.name] = _edited_list(now.get(config.name, key.default), config.value, operation)
    return changes


def _not_a_list(kind: int, operation: int, name: str) -> str:
    verb = _OPERATIONS[operation]
    if kind == ConfigKind.BROKER:
        return f"Config value {verb.lower()} is not allowed for config key: {name}"
    return f"Can't {verb} to key {name} because its type is not LIST."


def _edited_list(now: str | None, operand: str, operation: int) -> str:
    items = dict.fromkeys(item.strip() for item in (now or "").split(",") if item.strip())
    named = dict.fromkeys(item.strip() for item in operand.split(",") if item.strip())
    if operation == APPEND:
        items |= named
        return ",".join(items)
    return ",".join(item for item in items if item not in named)
