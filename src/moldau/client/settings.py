"""The producer's and the consumer's settings under Kafka's names: parsed, checked together, frozen.

Values may be what Python has (`5`, `True`) or what a command line gives (`"5"`, `"true"`). A name that does not exist
is an error that says which one was probably meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from moldau.client.admin import IsolationLevel
from moldau.client.assignors import ASSIGNORS, Assignor
from moldau.client.deserializers import Deserializer, deserializer_of
from moldau.client.durations import parse_duration_ms
from moldau.client.errors import SettingsError
from moldau.client.partitioner import Partitioner, RoundRobin
from moldau.client.serializers import Serializer, serializer_of
from moldau.client.starts import LastOf
from moldau.protocol.compression import COMPRESSION_BY_NAME, Compression

INT32_MAX = 2**31 - 1
IDEMPOTENT_IN_FLIGHT_MAX = 5
ACKS_ALL = -1


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Every field is the Kafka key with underscores; durations in ms, sizes in bytes."""

    bootstrap_servers: str | Sequence[str] | None = None
    client_id: str = "moldau"
    acks: int = ACKS_ALL
    batch_size: int = 16_384
    linger_ms: int = 5
    buffer_memory: int = 32 << 20
    max_block_ms: int = 60_000
    max_request_size: int = 1 << 20
    compression_type: Compression = Compression.NONE
    compression_gzip_level: int | None = None
    compression_lz4_level: int | None = None
    compression_zstd_level: int | None = None
    retries: int = INT32_MAX
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    socket_connection_setup_timeout_ms: int = 10_000
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    max_in_flight_requests_per_connection: int = 5
    metadata_max_age_ms: int = 300_000
    partitioner: Partitioner | None = None  # None: murmur2 of the key, sticky without one
    key_serializer: Serializer | None = None  # None: bytes as they are
    value_serializer: Serializer | None = None

    @property
    def batch_bytes_max(self) -> int:
        return min(self.batch_size, self.max_request_size)

    @property
    def compression_level(self) -> int | None:
        levels = {
            Compression.GZIP: self.compression_gzip_level,
            Compression.LZ4: self.compression_lz4_level,
            Compression.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.compression_type)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Every field is the Kafka key with underscores; durations in ms, sizes in bytes."""

    bootstrap_servers: str | Sequence[str] | None = None
    client_id: str = "moldau"
    client_rack: str = ""
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: Literal["classic", "consumer"] = "classic"
    group_remote_assignor: str | None = None  # None: the coordinator chooses
    partition_assignment_strategy: tuple[Assignor, ...] = (ASSIGNORS["range"], ASSIGNORS["cooperative-sticky"])
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: Literal["earliest", "latest", "none"] | LastOf = "latest"
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1 << 20
    allow_auto_create_topics: bool = True
    exclude_internal_topics: bool = True
    default_api_timeout_ms: int = 60_000
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    key_deserializer: Deserializer | None = None  # None: bytes as they are
    value_deserializer: Deserializer | None = None


def producer_settings(given: Mapping[str, object]) -> ProducerSettings:
    """Parse and check; SettingsError names the key and what it takes."""
    fields = _parse(given, _PARSERS)
    _check_transactions(given, fields)
    _check_idempotence(given, fields)
    _check_times(given, fields)
    settings = ProducerSettings(**fields)
    if settings.buffer_memory < settings.batch_size:
        raise SettingsError(
            f"buffer.memory={settings.buffer_memory} cannot hold one batch of batch.size={settings.batch_size}"
        )
    return settings


def consumer_settings(given: Mapping[str, object]) -> ConsumerSettings:
    """Parse and check; SettingsError names the key and what it takes."""
    fields = _parse(given, CONSUMER_PARSERS)
    settings = ConsumerSettings(**fields)
    _check_group(given, settings)
    if settings.group_id is None:
        return replace(settings, enable_auto_commit=False)
    return settings


def _parse(given: Mapping[str, object], parsers: Mapping[str, Callable[[object], object]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in given.items():
        parse = parsers.get(name)
        if parse is None:
            raise SettingsError(unknown_setting_text(name, parsers))
        try:
            fields[name.replace(".", "_")] = parse(value)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    return fields


def unknown_setting_text(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name.replace("_", ".").lower(), known, n=1, cutoff=0.5)
    return f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _check_transactions(given: Mapping[str, object], fields: dict[str, Any]) -> None:
    if fields.get("transactional_id") is None:
        if "transaction_timeout_ms" in fields:
            raise SettingsError("transaction.timeout.ms is for transactions: set transactional.id")
        return
    if not fields.get("enable_idempotence", True):
        raise SettingsError(
            "transactional.id needs enable.idempotence=true: leave enable.idempotence out, or do without transactions"
        )
    # What contradicts idempotence then is an error, and not a wish to do without it.
    fields["enable_idempotence"] = True


def _check_idempotence(given: Mapping[str, object], fields: dict[str, Any]) -> None:
    conflicts = []
    if fields.get("acks", ACKS_ALL) != ACKS_ALL:
        conflicts.append(f"acks={given['acks']} (it needs all)")
    if fields.get("retries", 1) == 0:
        conflicts.append("retries=0 (it needs at least 1)")
    in_flight = fields.get("max_in_flight_requests_per_connection", 1)
    if in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
        # As in Kafka, this one is never resolved silently.
        conflicts.append(f"max.in.flight.requests.per.connection={in_flight} (at most {IDEMPOTENT_IN_FLIGHT_MAX})")
        explicit = fields.get("enable_idempotence", True)
    else:
        explicit = fields.get("enable_idempotence", False)
    if not conflicts:
        return
    if explicit:
        if fields.get("transactional_id") is not None:
            raise SettingsError(f"transactional.id conflicts with {' and '.join(conflicts)}: change that")
        raise SettingsError(
            f"enable.idempotence=true conflicts with {' and '.join(conflicts)}: "
            "change that, or set enable.idempotence=false"
        )
    fields["enable_idempotence"] = False


def _check_times(given: Mapping[str, object], fields: dict[str, Any]) -> None:
    linger = fields.get("linger_ms", ProducerSettings.__dataclass_fields__["linger_ms"].default)
    request = fields.get("request_timeout_ms", ProducerSettings.__dataclass_fields__["request_timeout_ms"].default)
    if "delivery.timeout.ms" not in given:
        default = ProducerSettings.__dataclass_fields__["delivery_timeout_ms"].default
        fields["delivery_timeout_ms"] = min(max(default, linger + request), INT32_MAX)
    elif fields["delivery_timeout_ms"] < linger + request:
        raise SettingsError(
            f"delivery.timeout.ms={fields['delivery_timeout_ms']} must be at least linger.ms + request.timeout.ms "
            f"= {linger + request}: lower request.timeout.ms too"
        )


def _check_group(given: Mapping[str, object], settings: ConsumerSettings) -> None:
    if settings.group_id is None and given.get("enable.auto.commit") is not None and settings.enable_auto_commit:
        raise SettingsError("enable.auto.commit=true needs a group to commit for: set group.id")
    if settings.group_id is None and settings.group_instance_id is not None:
        raise SettingsError("group.instance.id names a member of a group: set group.id")
    if settings.group_protocol == "consumer":
        # KIP-848: these are the group's, and set at the broker.
        misplaced = {"partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"} & set(given)
        if misplaced:
            raise SettingsError(
                f"{', '.join(sorted(misplaced))} cannot be set with group.protocol=consumer: the coordinator decides "
                "(group.remote.assignor, or the group's configs consumer.session.timeout.ms and "
                "consumer.heartbeat.interval.ms)"
            )
    elif settings.group_remote_assignor is not None:
        raise SettingsError("group.remote.assignor needs group.protocol=consumer; see partition.assignment.strategy")
    elif settings.heartbeat_interval_ms >= settings.session_timeout_ms:
        raise SettingsError(
            f"heartbeat.interval.ms={settings.heartbeat_interval_ms} must be below "
            f"session.timeout.ms={settings.session_timeout_ms}; a third of it is usual"
        )


# -- parsers -----------------------------------------------------------------------------------------------------------


def _whole(low: int, high: int = INT32_MAX) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, float) and value.is_integer():
            number = int(value)
        elif isinstance(value, str):
            try:
                number = int(value.strip())
            except ValueError:
                number = None
        if number is None:
            raise SettingsError(f"{value!r} is not a whole number")
        if not low <= number <= high:
            raise SettingsError(f"{number} is not between {low} and {high}")
        return number

    return parse


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise SettingsError(f"{value!r} is not true or false")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{value!r} is not a text")
    return value


def _servers(value: object) -> str | list[str]:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
        return list(cast("Sequence[str]", value))
    raise SettingsError(f"{value!r} is not host:port, nor a list of them")


def _acks(value: object) -> int:
    by_name = {"all": ACKS_ALL, "-1": ACKS_ALL, "0": 0, "1": 1}
    acks = by_name.get(str(value).strip().lower())
    if acks is None or isinstance(value, bool):
        raise SettingsError(f"{value!r} is not 0, 1 or all")
    return acks


def _compression(value: object) -> Compression:
    codec = COMPRESSION_BY_NAME.get(str(value).strip().lower())
    if codec is None:
        raise SettingsError(f"{value!r} is not one of {', '.join(COMPRESSION_BY_NAME)}")
    return codec


def _partitioner(value: object) -> Partitioner | None:
    if callable(value):
        return value
    if value == "default":
        return None
    if value == "round_robin":
        return RoundRobin()
    raise SettingsError(f"{value!r} is not default, round_robin or a callable")


def _one_of(*choices: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.strip().lower() not in choices:
            raise SettingsError(f"{value!r} is not one of {', '.join(choices)}")
        return value.strip().lower()

    return parse


def _offset_reset(value: object) -> str | LastOf:
    kind, _, duration = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
    if kind.lower() == "by_duration":
        duration_ms = parse_duration_ms(duration)
        if duration_ms is None:
            raise SettingsError(f"{value!r} has no duration: write by_duration:PT1H30M or by_duration:P2D")
        return LastOf(duration_ms)
    if kind.lower() in ("earliest", "latest", "none") and not duration:
        return kind.lower()
    raise SettingsError(f"{value!r} is not one of earliest, latest, none, by_duration:PT1H")


def _group_id(value: object) -> str | None:
    if value is None:
        return None
    group_id = _text(value)
    if not group_id:
        raise SettingsError("an empty name is no group")
    return group_id


def _transactional_id(value: object) -> str | None:
    if value is None:
        return None
    transactional_id = _text(value)
    if not transactional_id:
        raise SettingsError("an empty name is no transactional id")
    return transactional_id


def _isolation_level(value: object) -> IsolationLevel:
    if isinstance(value, IsolationLevel):
        return value
    return IsolationLevel[_one_of("read_uncommitted", "read_committed")(value).upper()]


def _assignors(value: object) -> tuple[Assignor, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names:
        raise SettingsError(f"{value!r} is not a list of {', '.join(ASSIGNORS)}")
    found = []
    for name in names:
        assignor = name if isinstance(name, Assignor) else ASSIGNORS.get(str(name).strip().lower())
        if assignor is None:
            raise SettingsError(f"{name!r} is not one of {', '.join(ASSIGNORS)}")
        found.append(assignor)
    return tuple(found)


CONSUMER_PARSERS: dict[str, Callable[[object], object]] = {
    "bootstrap.servers": _servers,
    "client.id": _text,
    "client.rack": _text,
    "group.id": _group_id,
    "group.instance.id": _group_id,
    "group.protocol": _one_of("classic", "consumer"),
    "group.remote.assignor": _text,
    "partition.assignment.strategy": _assignors,
    "session.timeout.ms": _whole(1),
    "heartbeat.interval.ms": _whole(1),
    "max.poll.interval.ms": _whole(1),
    "max.poll.records": _whole(1),
    "enable.auto.commit": _boolean,
    "auto.commit.interval.ms": _whole(0),
    "auto.offset.reset": _offset_reset,
    "isolation.level": _isolation_level,
    "fetch.min.bytes": _whole(0),
    "fetch.max.bytes": _whole(0),
    "fetch.max.wait.ms": _whole(0),
    "max.partition.fetch.bytes": _whole(0),
    "allow.auto.create.topics": _boolean,
    "exclude.internal.topics": _boolean,
    "default.api.timeout.ms": _whole(1),
    "request.timeout.ms": _whole(1),
    "retry.backoff.ms": _whole(0),
    "retry.backoff.max.ms": _whole(0),
    "reconnect.backoff.ms": _whole(0),
    "reconnect.backoff.max.ms": _whole(0),
    "socket.connection.setup.timeout.ms": _whole(1),
    "metadata.max.age.ms": _whole(1),
    "key.deserializer": deserializer_of,
    "value.deserializer": deserializer_of,
}
_PARSERS: dict[str, Callable[[object], object]] = {
    "bootstrap.servers": _servers,
    "client.id": _text,
    "acks": _acks,
    "batch.size": _whole(0),
    "linger.ms": _whole(0),
    "buffer.memory": _whole(1, 2**62),
    "max.block.ms": _whole(0),
    "max.request.size": _whole(1),
    "compression.type": _compression,
    "compression.gzip.level": _whole(-1, 9),
    "compression.lz4.level": _whole(1, 17),
    "compression.zstd.level": _whole(-131072, 22),
    "retries": _whole(0),
    "retry.backoff.ms": _whole(0),
    "retry.backoff.max.ms": _whole(0),
    "reconnect.backoff.ms": _whole(0),
    "reconnect.backoff.max.ms": _whole(0),
    "delivery.timeout.ms": _whole(0),
    "request.timeout.ms": _whole(1),
    "socket.connection.setup.timeout.ms": _whole(1),
    "enable.idempotence": _boolean,
    "transactional.id": _transactional_id,
    "transaction.timeout.ms": _whole(1),
    "max.in.flight.requests.per.connection": _whole(1),
    "metadata.max.age.ms": _whole(1),
    "partitioner": _partitioner,
    "key.serializer": serializer_of,
    "value.serializer": serializer_of,
}
