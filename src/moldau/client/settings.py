"""The producer's settings under Kafka's names: parsed, checked together, frozen.

Values may be what Python has (`5`, `True`) or what a command line gives (`"5"`, `"true"`). A name that does not exist
is an error that says which one was probably meant.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from moldau.client.errors import SettingsError
from moldau.client.partitioner import Partitioner, RoundRobin
from moldau.client.serializers import Serializer, serializer_of
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
    max_in_flight_requests_per_connection: int = 5
    metadata_max_age_ms: int = 300_000
    partitioner: Partitioner | None = None  # None: murmur2 of the key, sticky without one
    key_serializer: Serializer | None = None  # None: bytes as they are
    value_serializer: Serializer | None = None

    @property
    def compression_level(self) -> int | None:
        levels = {
            Compression.GZIP: self.compression_gzip_level,
            Compression.LZ4: self.compression_lz4_level,
            Compression.ZSTD: self.compression_zstd_level,
        }
        return levels.get(self.compression_type)


def producer_settings(given: Mapping[str, object]) -> ProducerSettings:
    """Parse and check; SettingsError names the key and what it takes."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        parse = _PARSERS.get(name)
        if parse is None:
            raise SettingsError(unknown_setting_text(name, _PARSERS))
        try:
            fields[name.replace(".", "_")] = parse(value)
        except SettingsError as error:
            raise SettingsError(f"{name}: {error}") from None
    _check_idempotence(given, fields)
    _check_times(given, fields)
    settings = ProducerSettings(**fields)
    if settings.buffer_memory < settings.batch_size:
        raise SettingsError(
            f"buffer.memory={settings.buffer_memory} cannot hold one batch of batch.size={settings.batch_size}"
        )
    return settings


def unknown_setting_text(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name.replace("_", ".").lower(), known, n=1, cutoff=0.5)
    return f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


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
    "max.in.flight.requests.per.connection": _whole(1),
    "metadata.max.age.ms": _whole(1),
    "partitioner": _partitioner,
    "key.serializer": serializer_of,
    "value.serializer": serializer_of,
}
