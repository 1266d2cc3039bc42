"""The options of the sink: Spark's own names where its `kafka` format has them, Kafka's behind `kafka.`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moldau.client import ProducerSettings, SettingsError, producer_settings
from moldau.spark.errors import OptionError
from moldau.spark.options import check_spelling, client_settings, settings_with_effect

# What a task encodes at once makes large batches for free; Kafka's own 16 KiB would be a request for 150 rows.
BATCH_BYTES_DEFAULT = 256 << 10
# A micro-batch takes longer than the transactions that Kafka's minute was made for; brokers allow 15 minutes.
TRANSACTION_TIMEOUT_MS_DEFAULT = 300_000
BATCH_ATTEMPTS_DEFAULT = 3

SINK_OPTIONS = ("topic", "exactlyOnce", "transactionalId", "checkpointLocation", "tasks", "batchAttempts")
# Kafka's keys that the sink decides itself.
_NOT_HERE = {
    "transactional.id": "use the option transactionalId with exactlyOnce",
    "key.serializer": "key and value are columns of strings or binary",
    "value.serializer": "key and value are columns of strings or binary",
    "partitioner": "give a partition column",
    "partitioner.class": "give a partition column",
}


class SinkOptionError(ValueError):
    """An option that does not exist, does not parse or contradicts another. One line, with the remedy."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a query asked for, checked; small and picklable, for it goes to every task."""

    bootstrap: str
    topic: str | None
    producer: Mapping[str, str] = field(default_factory=dict)  # Kafka's keys, without the prefix
    exactly_once: bool = False
    transactional_id: str | None = None
    checkpoint: str | None = None
    tasks: int | None = None
    batch_attempts: int = BATCH_ATTEMPTS_DEFAULT

    def producer_settings(self, transactional_id: str | None = None) -> ProducerSettings:
        return producer_settings(self.producer_config(transactional_id))

    def producer_config(self, transactional_id: str | None = None) -> dict[str, object]:
        config: dict[str, object] = {"batch.size": BATCH_BYTES_DEFAULT, "linger.ms": 0, **self.producer}
        if transactional_id is not None:
            config.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS_DEFAULT)
            config["transactional.id"] = transactional_id
        return config


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check; options that belong to others (Spark's `path`, `checkpointLocation`) are left alone."""
    options = {name.lower(): value for name, value in given.items()}
    try:
        check_spelling(options, SINK_OPTIONS)
        producer = settings_with_effect(client_settings(options))
    except OptionError as error:
        raise SinkOptionError(str(error)) from None
    bootstrap = producer.pop("bootstrap.servers")
    for name, remedy in _NOT_HERE.items():
        if name in producer:
            raise SinkOptionError(f"option kafka.{name} cannot be set for a sink: {remedy}")
    parsed = SinkOptions(
        bootstrap=bootstrap,
        topic=options.get("topic", "").strip() or None,
        producer=producer,
        exactly_once=_boolean("exactlyOnce", options.get("exactlyonce", "false")),
        transactional_id=options.get("transactionalid"),
        checkpoint=options.get("checkpointlocation"),
        tasks=_whole("tasks", options["tasks"]) if "tasks" in options else None,
        batch_attempts=_whole("batchAttempts", options.get("batchattempts", BATCH_ATTEMPTS_DEFAULT)),
    )
    try:
        settings = parsed.producer_settings("checked-only" if parsed.exactly_once else None)
    except SettingsError as error:
        is_unknown = str(error).startswith("unknown")
        raise SinkOptionError(f"option kafka.{'*: ' if is_unknown else ''}{error}") from error
    if settings.acks == 0:
        raise SinkOptionError("option kafka.acks=0 cannot be used: no one would hear of records that were lost")
    return parsed


def _boolean(name: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise SinkOptionError(f"option {name}={value!r} is not true or false")
    return text == "true"


def _whole(name: str, value: object) -> int:
    text = str(value).strip()
    if not text.isdecimal() or int(text) < 1:
        raise SinkOptionError(f"option {name}={value!r} is not a whole number from 1 on")
    return int(text)
