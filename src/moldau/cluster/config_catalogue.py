"""What is known about every configuration key: its type, default, allowed values, how it may change, what it does.

The facts are those of Apache Kafka 4.3.1 (`catalogue_broker`, `catalogue_topic`), so that a server.properties written
for Kafka starts Moldau and DescribeConfigs answers as Kafka does. A key that Moldau does not act on is known all the
same, and its documentation says why. Rows become ConfigKeys, and patterns are compiled, when somebody needs them: a
starting broker pays only for what it uses.

This room does not know which values are in force, nor rules that join several keys; that is the configuration's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from moldau.cluster.catalogue_broker import BROKER_ROWS, MOLDAU_ROWS, UNLISTED
from moldau.cluster.catalogue_topic import (
    CLIENT_METRICS_ROWS,
    GROUP_ROWS,
    GROUP_SYNONYMS,
    TOPIC_ROWS,
    TOPIC_SYNONYMS,
    TOPIC_UNLISTED,
)

__all__ = [
    "Allowed",
    "ConfigKey",
    "ConfigValue",
    "ConfigValueError",
    "Effect",
    "Kind",
    "Synonym",
    "UpdateMode",
    "broker_key",
    "broker_keys",
    "broker_synonyms",
    "client_metrics_key",
    "client_metrics_keys",
    "format_value",
    "group_key",
    "group_keys",
    "group_synonym",
    "nearest_key",
    "parse_value",
    "topic_default",
    "topic_default_problem",
    "topic_key",
    "topic_keys",
    "topic_synonyms",
]

ConfigValue = bool | int | float | str | tuple[str, ...]


class Kind(IntEnum):
    """A key's type, with the number that DescribeConfigs gives it."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(StrEnum):
    """Whether a key may change at run time, and for whom."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Effect(StrEnum):
    """Whether setting the key changes anything in Moldau."""

    FULL = "full"
    LATER = "later"  # the feature that the key belongs to is not built yet
    NONE = "none"  # the key has nothing to act on in Moldau


# Why a key has no effect. The sentence closes the key's documentation.
REASONS = {
    "": "",
    "later": " Not acted on yet.",
    "held": " Without effect: Moldau holds such a request back instead of asking again.",
    "jmx": " Without effect: Moldau shows its metrics to Prometheus.",
    "jvm": " Without effect: it belongs to the Java runtime.",
    "kerberos": " Without effect: Moldau does not speak Kerberos.",
    "on time": " Without effect: Moldau ends a transaction at the moment when its time is up.",
    "pieces": " Without effect: Moldau loads in pieces so small that others are served meanwhile.",
    "plugin": " Without effect: Moldau loads no Java classes.",
    "purgatory": " Without effect: Moldau forgets a request as soon as it is answered.",
    "telemetry": " Without effect: Moldau does not collect clients' metrics.",
    "threads": " Without effect: a broker is one event loop, and more cores mean more brokers.",
    "tiered": " Without effect: Moldau keeps every segment on local disks.",
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """The values that a key takes, read from the short notation of the tables.

    Numbers: `1..` at least, `1..9` between, `1..9|-1` between or exactly that. Strings: `=a|b` one of, `~A|B` one of in
    any case, `filled` not empty. Lists: `any`, or `some` if it may not be empty, and `any:a|b` with the items to choose
    from. Everything else names a form of its own, such as `voters`.
    """

    minimum: float | None = None
    maximum: float | None = None
    also: int | None = None
    choices: tuple[str, ...] = ()
    ignores_case: bool = False
    empty: bool = True
    form: str = ""

    @classmethod
    def read(cls, notation: str) -> Allowed:
        if not notation or notation == "any":
            return _ANYTHING
        if ".." in notation:
            low, _, rest = notation.partition("..")
            high, _, also = rest.partition("|")
            return cls(_number(low), _number(high) if high else None, int(also) if also else None)
        if notation[0] in "=~":
            return cls(choices=tuple(notation[1:].split("|")), ignores_case=notation[0] == "~")
        head, _, items = notation.partition(":")
        if head in ("any", "some", "filled"):
            return cls(choices=tuple(items.split("|")) if items else (), empty=head == "any")
        return cls(form=notation)


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `default` is None where Kafka has none, or where it follows from another key."""

    name: str
    kind: Kind
    default: str | None
    doc: str
    update_mode: UpdateMode
    importance: str
    allowed: Allowed
    effect: Effect
    listed: bool  # DescribeConfigs names it even if nobody has set it

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    @property
    def read_only(self) -> bool:
        return self.update_mode is UpdateMode.READ_ONLY

    @property
    def unit(self) -> str:
        """The unit that the name ends with, or nothing."""
        if self.name.endswith(".bytes.per.second"):
            return "bytes/s"
        last = self.name.rpartition(".")[2]
        return _UNITS.get(last, "")


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that gives a topic key its default: the broker's value times `scale`."""

    name: str
    scale: int


class ConfigValueError(ValueError):
    """A value that its key does not take. The message is one line in Kafka's words."""

    def __init__(self, message: str, key: ConfigKey) -> None:
        super().__init__(message)
        self.key = key


_ANYTHING = Allowed()
_UNITS = {
    "ms": "ms",
    "millis": "ms",
    "secs": "s",
    "seconds": "s",
    "minutes": "min",
    "hours": "h",
    "bytes": "bytes",
}
_LISTENER_PREFIX = "listener.name."
# Of SASL's keys, these are given per listener and mechanism: listener.name.<listener>.<mechanism>.<key>
_PER_MECHANISM = frozenset(
    (
        "connections.max.reauth.ms",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.server.callback.handler.class",
    )
)


class _Table:
    """Rows by name, made into ConfigKeys one by one."""

    __slots__ = ("_keys", "_rows", "_unlisted")

    def __init__(self, rows: tuple[tuple[str | None, ...], ...], unlisted: frozenset[str]) -> None:
        self._rows: tuple[tuple[str | None, ...], ...] | dict[str | None, tuple[str | None, ...]] = rows
        self._unlisted = unlisted
        self._keys: dict[str, ConfigKey] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self._by_name() if name is not None)

    def get(self, name: str) -> ConfigKey | None:
        key = self._keys.get(name)
        if key is None:
            row = self._by_name().get(name)
            if row is None:
                return None
            key = self._keys[name] = _make_key(row, listed=name not in self._unlisted)
        return key

    def __iter__(self) -> Iterator[ConfigKey]:
        for name in self.names():
            key = self.get(name)
            assert key is not None
            yield key

    def _by_name(self) -> dict[str | None, tuple[str | None, ...]]:
        if isinstance(self._rows, tuple):
            self._rows = {row[0]: row for row in self._rows}
        return self._rows


def _make_key(row: tuple[str | None, ...], *, listed: bool) -> ConfigKey:
    if len(row) == 8:
        name, kind, default, mode, importance, allowed, why, doc = row
    else:
        name, kind, default, importance, allowed, why, doc = row
        mode = "cluster-wide"
    assert name and kind and mode and importance and doc
    assert allowed is not None
    assert why is not None
    return ConfigKey(
        name=name,
        kind=Kind[kind],
        default=default,
        doc=doc + REASONS[why],
        update_mode=UpdateMode(mode),
        importance=importance,
        allowed=Allowed.read(allowed),
        effect=Effect.FULL if not why else Effect.LATER if why == "later" else Effect.NONE,
        listed=listed,
    )


_BROKER = _Table(BROKER_ROWS + MOLDAU_ROWS, UNLISTED)
_TOPIC = _Table(TOPIC_ROWS, TOPIC_UNLISTED)
_GROUP = _Table(GROUP_ROWS, frozenset())
_CLIENT_METRICS = _Table(CLIENT_METRICS_ROWS, frozenset())


def broker_key(name: str) -> ConfigKey | None:
    """Look up a broker's key, also under `listener.name.<listener>.` and `listener.name.<listener>.<mechanism>.`."""
    if not name.startswith(_LISTENER_PREFIX):
        return _BROKER.get(name)
    _, _, rest = name.removeprefix(_LISTENER_PREFIX).partition(".")
    key = _BROKER.get(rest)
    if key is None:
        _, _, rest = rest.partition(".")
        key = _BROKER.get(rest) if rest in _PER_MECHANISM else None
    return None if key is None else replace(key, name=name, listed=False)


def topic_key(name: str) -> ConfigKey | None:
    """Look up a topic's key."""
    return _TOPIC.get(name)


def group_key(name: str) -> ConfigKey | None:
    """Look up a group's key."""
    return _GROUP.get(name)


def client_metrics_key(name: str) -> ConfigKey | None:
    """Look up a key of a client-metrics subscription."""
    return _CLIENT_METRICS.get(name)


def broker_keys() -> Iterator[ConfigKey]:
    """List the broker's keys: Kafka's, then Moldau's own, which begin with `moldau.`."""
    return iter(_BROKER)


def topic_keys() -> Iterator[ConfigKey]:
    """List the keys of topics."""
    return iter(_TOPIC)


def group_keys() -> Iterator[ConfigKey]:
    """List the keys of groups."""
    return iter(_GROUP)


def client_metrics_keys() -> Iterator[ConfigKey]:
    """List the keys of client-metrics subscriptions."""
    return iter(_CLIENT_METRICS)


def topic_synonyms(name: str) -> tuple[Synonym, ...]:
    """List the broker keys that give a topic key its default, the strongest first.

    DescribeConfigs names only the first of them, and that one only where it has a value.
    """
    return tuple(Synonym(broker_name, scale) for broker_name, scale in TOPIC_SYNONYMS.get(name, ()))


def topic_default(name: str, synonym: Synonym, text: str) -> str:
    """The topic key's value that a broker key's value stands for; ConfigValueError for one that stands for nothing."""
    if synonym.scale == 1 and name != _RETENTION:
        return text
    key = broker_key(synonym.name)
    assert key is not None
    value = parse_value(key, text)
    assert isinstance(value, int)
    if name == _RETENTION and value < 0:
        return "-1"  # for ever, in whatever unit
    return str(value * synonym.scale)


def topic_default_problem(name: str, text: str) -> str | None:
    """Say in Kafka's words why a broker key's value, right in itself, cannot be a default of topics.

    Kafka lets a negative log.flush.interval.ms pass and then fails to describe or make topics; here it is refused.
    """
    if name not in _DEFAULT_OF:
        return None
    topic_name, scale = _DEFAULT_OF[name]
    key = topic_key(topic_name)
    assert key is not None
    value = topic_default(topic_name, Synonym(name, scale), text)
    if topic_name == _RETENTION and value == "0":
        return f"{name} must be unlimited (-1) or, greater than or equal to 1"
    try:
        parse_value(key, value)
    except ConfigValueError as error:
        if key.allowed.minimum is None:
            return str(error)
        return f"{name} must be greater than or equal to {key.allowed.minimum}"
    return None


_RETENTION = "retention.ms"
_DEFAULT_OF = {
    broker_name: (topic_name, scale)
    for topic_name, synonyms in TOPIC_SYNONYMS.items()
    for broker_name, scale in synonyms
}


def broker_synonyms(name: str) -> tuple[Synonym, ...]:
    """List the broker keys that stand for a broker key, itself first: log.retention.ms, then minutes, then hours."""
    for synonyms in TOPIC_SYNONYMS.values():
        if synonyms[0][0] == name:
            return tuple(Synonym(broker_name, scale) for broker_name, scale in synonyms)
    return (Synonym(name, 1),)


def group_synonym(name: str) -> str | None:
    """Name the broker key that gives a group key its default."""
    return GROUP_SYNONYMS.get(name)


def nearest_key(name: str) -> str | None:
    """Guess which broker key was meant by a name that is none."""
    import difflib

    guesses = difflib.get_close_matches(name, _BROKER.names(), n=1, cutoff=0.75)
    return guesses[0] if guesses else None


# Java trims control characters and blanks, and nothing else.
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
_DECIMAL = r"([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}


def parse_value(key: ConfigKey, text: str) -> ConfigValue:
    """Turn a value's text into the value, or say in Kafka's words what is wrong with it."""
    trimmed = text.strip(_JAVA_BLANKS)
    match key.kind:
        case Kind.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise _invalid(key, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case Kind.INT | Kind.SHORT | Kind.LONG:
            return _checked_number(key, _parse_integer(key, text, trimmed))
        case Kind.DOUBLE:
            decimal = re.fullmatch(_DECIMAL, trimmed)
            if decimal is None:
                raise _invalid(key, text, "Not a number of type DOUBLE")
            return _checked_number(key, float(decimal[1]))
        case Kind.LIST:
            items = trimmed.split(",") if trimmed else []
            return _checked_list(key, [item.strip(_JAVA_BLANKS) for item in items])
        case Kind.PASSWORD | Kind.CLASS:
            return trimmed
        case _:
            return _checked_string(key, trimmed)


def format_value(key: ConfigKey, value: ConfigValue) -> str:
    """Print a value as DescribeConfigs does: ` TRUE ` was read as True and becomes `true`, `a, b` becomes `a,b`."""
    match value:
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float():
            return _java_double(value)
        case _:
            return str(float(value)) if key.kind is Kind.DOUBLE else str(value)


def _parse_integer(key: ConfigKey, text: str, trimmed: str) -> int:
    digits = trimmed[1:] if trimmed[:1] in ("+", "-") else trimmed
    # The length check keeps a value of a million digits from becoming a number.
    if digits.isascii() and digits.isdigit() and len(digits.lstrip("0")) <= 19:
        value = int(trimmed)
        bound = 1 << (_BITS[key.kind] - 1)
        if -bound <= value < bound:
            return value
    raise _invalid(key, text, f"Not a number of type {key.kind.name}")


def _checked_number(key: ConfigKey, value: float) -> float:
    allowed = key.allowed
    if allowed.also is not None:
        assert allowed.minimum is not None and allowed.maximum is not None
        if value != allowed.also and not allowed.minimum <= value <= allowed.maximum:
            reach = f"between {allowed.minimum} and {allowed.maximum} or equal to {allowed.also}"
            raise _invalid(key, format_value(key, value), f"Value must be {reach}")
        return value
    # Written so that NaN passes both, as it does in Kafka.
    if allowed.minimum is not None and value < allowed.minimum:
        raise _invalid(key, format_value(key, value), f"Value must be at least {allowed.minimum}")
    if allowed.maximum is not None and value > allowed.maximum:
        raise _invalid(key, format_value(key, value), f"Value must be no more than {allowed.maximum}")
    return value


def _checked_string(key: ConfigKey, value: str) -> str:
    allowed = key.allowed
    if not allowed.empty and not value:
        raise _invalid(key, value, "String must be non-empty")
    if allowed.choices:
        known = {choice.upper() for choice in allowed.choices} if allowed.ignores_case else allowed.choices
        if (value.upper() if allowed.ignores_case else value) not in known:
            how = " (case insensitive)" if allowed.ignores_case else ""
            raise _invalid(key, value, f"String must be one of{how}: {', '.join(allowed.choices)}")
    if allowed.form == "offset-reset" and not re.fullmatch(_OFFSET_RESET, value):
        raise _invalid(
            key,
            value,
            f"Invalid value `{value}` for configuration {key.name}. The value must be either 'earliest', 'latest' "
            "or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )
    return value


_DURATION = r"P(?=[0-9T])([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?"
_OFFSET_RESET = rf"(?i:earliest|latest|by_duration:{_DURATION})"
_THROTTLED_REPLICA = "[0-9]+:[0-9]+"
_VOTER = "[0-9]+@.+:[0-9]+"
_SERVER = ".+:[0-9]+"


def _checked_list(key: ConfigKey, items: list[str]) -> tuple[str, ...]:
    name, allowed = key.name, key.allowed
    match allowed.form:
        case "throttled-replicas":
            if items != ["*"] and not all(re.fullmatch(_THROTTLED_REPLICA, item) for item in items):
                raise _invalid(
                    key,
                    f"[{', '.join(items)}]",
                    f"{name} must be the literal '*' or a list of replicas in the following format: "
                    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
                )
            return tuple(items)
        case "voters":
            if not all(re.fullmatch(_VOTER, item) for item in items):
                form = "Each entry should be in the form `{id}@{host}:{port}`."
                raise ConfigValueError(f"Invalid configuration value for {name}. {form}", key)
            return tuple(items)
        case "servers":
            for item in items:
                if not re.fullmatch(_SERVER, item):
                    form = 'Each entry should be in the form "{host}:{port}"'
                    raise ConfigValueError(
                        f"Failed to parse host name from {item} for the configuration {name}. {form}", key
                    )
            return tuple(items)
    if not items and not allowed.empty:
        known = f"[{', '.join(allowed.choices)}]" if allowed.choices else "any non-empty value"
        raise ConfigValueError(f"Configuration '{name}' must not be empty. Valid values include: {known}", key)
    for item in items:
        if not item:
            raise ConfigValueError(f"Configuration '{name}' values must not be empty.", key)
        if allowed.choices and item not in allowed.choices:
            raise _invalid(key, item, f"String must be one of: {', '.join(allowed.choices)}")
    # Kafka forgives an item that is named twice.
    return tuple(dict.fromkeys(items))


def _invalid(key: ConfigKey, value: str, why: str) -> ConfigValueError:
    return ConfigValueError(f"Invalid value {value} for configuration {key.name}: {why}", key)


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _java_double(value: float) -> str:
    """Print a double as Java does: from 1e-3 to 1e7 in plain digits, beyond with an exponent of its own kind."""
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        # Python's shortest digits are Java's, but Python writes an exponent only below 1e-4.
        return repr(value)
    from decimal import Decimal

    negative, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    fraction = "".join(map(str, digits[1:])).rstrip("0") or "0"
    return f"{'-' if negative else ''}{digits[0]}.{fraction}E{exponent + len(digits) - 1}"
