"""The configuration that is in force: defaults, server.properties, environment, flags, and what was set at run time.

One place reads files and the environment (`load_settings`); everyone else asks a `Settings` object. Precedence as in
Kafka: set for this broker at run time, set for all brokers at run time, static (flag > environment > file), default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from moldau.broker.properties import parse_properties
from moldau.cluster import ConfigKind, MetadataImage
from moldau.cluster.config_catalogue import (
    ConfigKey,
    ConfigValue,
    ConfigValueError,
    broker_key,
    broker_keys,
    broker_synonyms,
    nearest_key,
    parse_value,
    topic_default,
    topic_default_problem,
    topic_key,
    topic_keys,
    topic_synonyms,
)
from moldau.storage import LogConfig

GROUP_PROTOCOLS_KEY = "group.coordinator.rebalance.protocols"
ENVIRONMENT_PREFIX = "MOLDAU_"
# Names with our prefix that are not configuration keys.
_ENVIRONMENT_OTHERS = ("MOLDAU_TEST_", "MOLDAU_BOOTSTRAP", "MOLDAU_BENCH_")


class Source:
    """Where a value comes from, by DescribeConfigs' numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


class Setting(NamedTuple):
    """A value under one name and where it comes from."""

    name: str
    value: str | None
    source: int


class ConfigError(ValueError):
    """A configuration that cannot start a broker; one clear line."""


class Settings:
    def __init__(self, static: Mapping[str, str]) -> None:
        self.static = dict(static)
        # Where lines for the person who runs the broker go; the node sets it.
        self.say: Callable[[str], None] = _say_nothing
        self._said: set[tuple[str, str]] = set()
        self._own: Mapping[str, str] = {}
        self._cluster: Mapping[str, str] = {}
        self._parsed: dict[str, Any] = {}
        self.node_id = int(self.value("node.id"))  # type: ignore[arg-type]

    def apply_dynamic(self, image: MetadataImage) -> None:
        """Take over what was set at run time."""
        self._own = image.config(ConfigKind.BROKER, str(self.node_id))
        self._cluster = image.config(ConfigKind.BROKER, "")
        self._parsed.clear()

    # -- values --------------------------------------------------------------------------------------------------------

    def layers(self, name: str) -> Iterator[Setting]:
        """Every layer that gives this very key a value, the one in force first."""
        if name in self._own:
            yield Setting(name, self._own[name], Source.DYNAMIC_BROKER)
        if name in self._cluster:
            yield Setting(name, self._cluster[name], Source.DYNAMIC_DEFAULT_BROKER)
        if name in self.static:
            yield Setting(name, self.static[name], Source.STATIC)
        key = broker_key(name)
        if key is not None and key.default is not None:
            yield Setting(name, key.default, Source.DEFAULT)

    def value(self, name: str) -> ConfigValue | None:
        """The typed value in force, None where there is none."""
        if name in self._parsed:
            return self._parsed[name]  # type: ignore[no-any-return]
        key = broker_key(name)
        assert key is not None, f"{name} is not in the catalogue"
        value = None
        for setting in self.layers(name):
            if setting.value is None:
                break
            try:
                value = parse_value(key, setting.value)
                break
            except ConfigValueError as error:
                self._pass_over(name, setting.value, error)
        self._parsed[name] = value
        return value

    def _pass_over(self, name: str, value: str, error: ConfigValueError) -> None:
        """A committed value that cannot be used (Kafka's log may hold one) must not keep the broker from running."""
        if (name, value) not in self._said:
            self._said.add((name, value))
            self.say(f"config_not_usable key={name} value={value!r} reason={str(error)!r}")

    def integer(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def number(self, name: str) -> float:
        value = self.value(name)
        assert isinstance(value, int | float), name
        return float(value)

    def text(self, name: str) -> str:
        value = self.value(name)
        return "" if value is None else str(value)

    def flag(self, name: str) -> bool:
        return bool(self.value(name))

    def items(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        return value if isinstance(value, tuple) else ()

    def is_set(self, name: str) -> bool:
        """Whether anyone chose a value, as opposed to the default."""
        return name in self.static or name in self._own or name in self._cluster

    @property
    def auto_create_topics(self) -> bool:
        return self.flag("auto.create.topics.enable")

    @property
    def delete_topics(self) -> bool:
        return self.flag("delete.topic.enable")

    @property
    def log_directories(self) -> tuple[str, ...]:
        paths = self.items("log.dirs") or self.items("log.dir")
        return tuple(dict.fromkeys(_plain_path(path) for path in paths))

    @property
    def metadata_directory(self) -> str:
        """Where the metadata log is: one of `log.dirs`, or a directory of its own."""
        return _plain_path(self.text("metadata.log.dir") or self.log_directories[0])

    @property
    def all_directories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.log_directories, self.metadata_directory)))

    # -- topics --------------------------------------------------------------------------------------------------------

    def topic_setting(self, name: str, overrides: Mapping[str, str]) -> Setting:
        """The value of a topic's key: its own, else the broker's under the topic key's synonyms, else the default."""
        return self._topic_choice(name, overrides)[0]

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> Any:
        return self._topic_choice(name, overrides)[1]

    def _topic_choice(self, name: str, overrides: Mapping[str, str]) -> tuple[Setting, ConfigValue | None]:
        """The first layer whose value can be used, and that value."""
        key = topic_key(name)
        assert key is not None, name
        if name in overrides:
            try:
                return Setting(name, overrides[name], Source.TOPIC), parse_value(key, overrides[name])
            except ConfigValueError as error:
                self._pass_over(name, overrides[name], error)
        for synonym in topic_synonyms(name):
            for setting in self.layers(synonym.name):
                if setting.value is None or setting.source == Source.DEFAULT:
                    continue
                try:
                    text = topic_default(name, synonym, setting.value)
                    return Setting(name, text, setting.source), parse_value(key, text)
                except ConfigValueError as error:
                    self._pass_over(synonym.name, setting.value, error)
        value = None if key.default is None else parse_value(key, key.default)
        return Setting(name, key.default, Source.DEFAULT), value

    def log_config(self, overrides: Mapping[str, str]) -> LogConfig:
        """What a topic's logs obey."""

        def value(name: str) -> Any:
            return self.topic_value(name, overrides)

        policy = value("cleanup.policy")
        return LogConfig(
            segment_bytes=value("internal.segment.bytes") or value("segment.bytes"),
            segment_ms=value("segment.ms"),
            segment_jitter_ms=value("segment.jitter.ms"),
            segment_index_bytes=value("segment.index.bytes"),
            index_interval_bytes=value("index.interval.bytes"),
            max_message_bytes=value("max.message.bytes"),
            message_timestamp_type=value("message.timestamp.type"),
            message_timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
            compression_type=value("compression.type"),
            compression_gzip_level=value("compression.gzip.level"),
            compression_lz4_level=value("compression.lz4.level"),
            compression_zstd_level=value("compression.zstd.level"),
            compact="compact" in policy,
            delete="delete" in policy,
            delete_retention_ms=value("delete.retention.ms"),
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            max_compaction_lag_ms=value("max.compaction.lag.ms"),
            flush_messages=value("flush.messages"),
            flush_ms=value("flush.ms"),
            file_delete_delay_ms=value("file.delete.delay.ms"),
            retention_ms=value("retention.ms"),
            retention_bytes=value("retention.bytes"),
            producer_id_expiration_ms=self.integer("producer.id.expiration.ms"),
        )


# -- loading -----------------------------------------------------------------------------------------------------------


def load_settings(
    file_text: str | None, flags: Iterable[tuple[str, str]], environment: Mapping[str, str]
) -> tuple[Settings, list[str]]:
    """Settings and warnings about keys that nobody knows; ConfigError in one line for a value that no key takes."""
    static: dict[str, str] = {}
    if file_text is not None:
        try:
            static.update(parse_properties(file_text))
        except ValueError as error:
            raise ConfigError(f"the configuration file does not parse: {error}") from None
    warnings: list[str] = []
    static.update(_from_environment(environment, warnings))
    static.update(flags)
    if "broker.id" in static and "node.id" not in static:
        static["node.id"] = static["broker.id"]
    static.setdefault("node.id", "1")
    static.setdefault("broker.id", static["node.id"])
    for name, text in static.items():
        key = broker_key(name)
        if key is None:
            near = nearest_key(name)
            warnings.append(f"unknown key {name}" + (f"; did you mean {near}?" if near else ""))
            continue
        _check(key, name, text)
    settings = Settings(static)
    if "classic" not in settings.items(GROUP_PROTOCOLS_KEY):
        raise ConfigError(f"Disabling the 'classic' protocol is not supported. ({GROUP_PROTOCOLS_KEY})")
    return settings, warnings


def _check(key: ConfigKey, name: str, text: str) -> None:
    try:
        parse_value(key, text)
        problem = topic_default_problem(name, text)
    except ConfigValueError as error:
        raise ConfigError(str(error)) from None
    if problem is not None:
        raise ConfigError(f"Invalid value {text} for configuration {name}: {problem}")


def _plain_path(path: str) -> str:
    return path.rstrip("/") or "/"


def _say_nothing(_line: str) -> None:
    pass


def environment_name(key: str) -> str:
    """`log.retention.ms` -> MOLDAU_LOG_RETENTION_MS; '-' becomes '__' and '_' becomes '___', as Kafka's images do."""
    return ENVIRONMENT_PREFIX + key.replace("_", "___").replace("-", "__").replace(".", "_").upper()


def _from_environment(environment: Mapping[str, str], warnings: list[str]) -> Iterator[tuple[str, str]]:
    ours = [
        name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(_ENVIRONMENT_OTHERS)
    ]
    if not ours:
        return
    keys = {environment_name(key.name): key.name for key in broker_keys()}
    for name in ours:
        key = keys.get(name)
        if key is not None:
            yield key, environment[name]
            continue
        near = nearest_key(name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."))
        hint = f"; did you mean {environment_name(near)}?" if near else ""
        warnings.append(f"environment variable {name} names no key{hint}")


def listed_topic_keys() -> Iterator[ConfigKey]:
    return (key for key in topic_keys() if key.listed)


def listed_broker_keys() -> Iterator[ConfigKey]:
    return (key for key in broker_keys() if key.listed)


def strongest_synonym(name: str) -> str:
    return broker_synonyms(name)[0].name
