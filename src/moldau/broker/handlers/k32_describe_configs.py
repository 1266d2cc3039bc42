"""DescribeConfigs (key 32), versions 1 to 4: every key of a topic, broker, group or client-metrics subscription.

Each with its value, source, synonyms (the layers that it comes from, the one in force first), type and, from version 3
on, documentation in our own words (trap 36). Null or no keys means all. Passwords are never shown. A broker describes
itself; the empty broker name stands for what is set for all brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moldau.broker.dispatch import Context
from moldau.broker.settings import Setting, Settings, Source
from moldau.cluster import ConfigKind, topic_name_problem
from moldau.cluster.config_catalogue import (
    ConfigKey,
    ConfigValueError,
    Kind,
    broker_key,
    broker_keys,
    client_metrics_keys,
    format_value,
    group_keys,
    group_synonym,
    parse_value,
    topic_keys,
    topic_synonyms,
)
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.create_topics import CreateTopicsResponse
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse

Entry = DescribeConfigsResponse.DescribeConfigsResourceResult
SOURCE_CLIENT_METRICS = 7


async def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    results = []
    for resource in request.resources:
        result = DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            entries = _describe(resource.resource_type, resource.resource_name, request, context)
        except KafkaError as refusal:
            result.error_code, result.error_message = refusal.code, refusal.message
        else:
            wanted = frozenset(resource.configuration_keys or ())
            result.configs = [entry for entry in entries if not wanted or entry.name in wanted]
            result.error_message = ""
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _describe(kind: int, name: str, request: DescribeConfigsRequest, context: Context) -> Iterable[Entry]:
    if kind == ConfigKind.TOPIC:
        return _topic_entries(name, request, context)
    if kind == ConfigKind.BROKER:
        return _broker_entries(name, request, context)
    if kind == ConfigKind.GROUP:
        return _group_entries(name, request, context)
    if kind == ConfigKind.CLIENT_METRICS:
        return _client_metrics_entries(name, request, context)
    if kind == ConfigKind.BROKER_LOGGER:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_broker_name(name, context, or_empty=False)
        return []  # nothing here logs by Java's loggers
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


# -- topics ------------------------------------------------------------------------------------------------------------


def _topic_entries(name: str, request: DescribeConfigsRequest, context: Context) -> Iterable[Entry]:
    problem = topic_name_problem(name)
    if problem:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in context.node.image.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    overrides = context.node.image.config(ConfigKind.TOPIC, name)
    keys = [key for key in topic_keys() if key.listed or key.name in overrides]
    return [topic_entry(key, overrides, request, context.node.settings) for key in keys]


def topic_entry(
    key: ConfigKey, overrides: Mapping[str, str], request: DescribeConfigsRequest, settings: Settings
) -> Entry:
    synonyms = []
    if key.name in overrides:
        synonyms.append(Setting(key.name, overrides[key.name], Source.TOPIC))
    for synonym in topic_synonyms(key.name)[:1]:
        synonyms += settings.layers(synonym.name)
    value = settings.topic_setting(key.name, overrides).value
    return _entry(key, value, synonyms, request, read_only=False)


def topic_configs_of_new_topic(
    settings: Settings, overrides: Mapping[str, str]
) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    """The same entries in the form in which CreateTopics answers them (KIP-525): own values as they were sent."""
    nothing_more = DescribeConfigsRequest()
    entries = [
        topic_entry(key, overrides, nothing_more, settings)
        for key in topic_keys()
        if key.listed or key.name in overrides
    ]
    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            entry.name,
            overrides.get(entry.name, entry.value),
            entry.read_only,
            entry.config_source,
            entry.is_sensitive,
        )
        for entry in entries
    ]


# -- brokers -----------------------------------------------------------------------------------------------------------


def _check_broker_name(name: str, context: Context, *, or_empty: bool) -> None:
    own = context.node.settings.node_id
    if name == "" and or_empty:
        return
    try:
        number = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if number != own:
        hint = " or empty string," if or_empty else ""
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own}{hint} but received {name}")


def _broker_entries(name: str, request: DescribeConfigsRequest, context: Context) -> Iterable[Entry]:
    _check_broker_name(name, context, or_empty=True)
    settings, image = context.node.settings, context.node.image
    if name == "":
        values = image.config(ConfigKind.BROKER, "")
        return [
            _entry(
                broker_key(key) or _unknown_key(key),
                value,
                [Setting(key, value, Source.DYNAMIC_DEFAULT_BROKER)],
                request,
                read_only=False,
            )
            for key, value in values.items()
        ]
    entries = []
    named = {key.name: key for key in broker_keys() if key.listed or settings.is_set(key.name)}
    for other in (*settings.static, *image.config(ConfigKind.BROKER, name)):
        if other not in named:
            named[other] = broker_key(other) or _unknown_key(other)
    for key in named.values():
        layers = list(settings.layers(key.name))
        value = layers[0].value if layers else key.default
        entries.append(_entry(key, value, layers, request, read_only=key.read_only))
    return entries


def _unknown_key(name: str) -> ConfigKey:
    """A key that nobody knows may hold a secret, so it is treated as one."""
    key = broker_key("node.id")
    assert key is not None
    from dataclasses import replace

    return replace(key, name=name, kind=Kind.UNKNOWN, default=None, doc="", listed=False)


# -- groups and client metrics -----------------------------------------------------------------------------------------


def _group_entries(name: str, request: DescribeConfigsRequest, context: Context) -> Iterable[Entry]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    values = context.node.image.config(ConfigKind.GROUP, name)
    entries = []
    for key in group_keys():
        layers = [Setting(key.name, values[key.name], Source.GROUP)] if key.name in values else []
        synonym = group_synonym(key.name)
        if synonym is not None:
            layers += context.node.settings.layers(synonym)
        else:
            layers.append(Setting(key.name, key.default, Source.DEFAULT))
        value = layers[0].value if layers else key.default
        entries.append(_entry(key, value, layers, request, read_only=False))
    return entries


def _client_metrics_entries(name: str, request: DescribeConfigsRequest, context: Context) -> Iterable[Entry]:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    values = context.node.image.config(ConfigKind.CLIENT_METRICS, name)
    return [
        _entry(
            key,
            values.get(key.name, key.default),
            [Setting(key.name, values[key.name], SOURCE_CLIENT_METRICS)] if key.name in values else [],
            request,
            read_only=False,
        )
        for key in client_metrics_keys()
    ]


# -- entries -----------------------------------------------------------------------------------------------------------


def _entry(
    key: ConfigKey, value: str | None, layers: list[Setting], request: DescribeConfigsRequest, *, read_only: bool
) -> Entry:
    hidden = key.sensitive or key.kind is Kind.UNKNOWN
    return Entry(
        name=key.name,
        value=None if hidden else _shown(key, value),
        read_only=read_only,
        config_source=layers[0].source if layers else Source.DEFAULT,
        is_sensitive=hidden,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(
                layer.name, None if hidden else _shown_layer(key, layer), layer.source
            )
            for layer in layers
        ]
        if request.include_synonyms
        else [],
        config_type=key.kind,
        documentation=key.doc if request.include_documentation else None,
    )


def _shown_layer(key: ConfigKey, layer: Setting) -> str | None:
    """A broker's layers are shown as they were written."""
    of_broker = layer.source in (Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT_BROKER, Source.STATIC)
    return layer.value if of_broker else _shown(key, layer.value)


def _shown(key: ConfigKey, value: str | None) -> str | None:
    """As Kafka prints it: parsed and written again. A value that its key does not take is shown as it is."""
    if value is None or key.kind is Kind.UNKNOWN:
        return value
    try:
        return format_value(key, parse_value(key, value))
    except ConfigValueError:
        return value
