"""The options of a query on topics, under the names that Spark's own `kafka` format gives them: parsed and checked.

What that format refuses is refused here too, in one line that says what to do. An option that nobody knows is left
alone, as there, unless it is one letter off a known one.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from moldau.client import ConsumerSettings, SettingsError, consumer_settings
from moldau.kernel import TopicPartition
from moldau.spark.errors import OptionError
from moldau.spark.offsets import EARLIEST, LATEST, Offsets, OffsetsFormatError, offsets_from_json

# A stream reads no more than this at once unless maxOffsetsPerTrigger says otherwise: the first batch of a query on an
# old topic would else hold all of it. Trigger once reads everything, as it says.
OFFSETS_PER_TRIGGER_MAX = 2_000_000
# How long an idle stream waits at the broker for the next record, at most: Spark cannot stop a query that waits.
LONG_POLL_MS_MAX = 250
TRIGGER_DELAY_MS_MAX = 15 * 60_000
FETCH_BYTES_MAX = 8 << 20
# Spark's network timeout, which its own connector waits for records.
POLL_TIMEOUT_MS = 120_000
FETCH_OFFSET_RETRIES = 3
FETCH_OFFSET_RETRY_INTERVAL_MS = 10

S = TypeVar("S")

logger = logging.getLogger(__name__)

SOURCE_OPTIONS = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "groupId",
    "groupIdPrefix",
    "longPollMs",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)

_REFUSED_SETTINGS = {
    "auto.offset.reset": "where a query starts is said by startingOffsets",
    "key.deserializer": "keys come as bytes: convert them in the query",
    "value.deserializer": "values come as bytes: convert them in the query",
    "enable.auto.commit": "the query's checkpoint holds its place; groupId publishes it",
    "interceptor.classes": "records must reach the query unchanged",
}
# Settings of Java's clients that mean nothing here: memory, class names, group membership, telemetry.
_SETTINGS_WITHOUT_EFFECT = frozenset(
    {
        "auto.include.jmx.reporter",
        "check.crcs",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
    }
)
_SECURITY_SETTINGS = ("sasl.", "ssl.")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: the given ones, all of given topics, or of topics whose name has the pattern in it."""

    topics: tuple[str, ...] = ()
    partitions: frozenset[TopicPartition] = frozenset()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: an offset or a time for all partitions (`offset`, `timestamp_ms`) or for each."""

    offset: int = LATEST
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    timestamps_ms: Offsets | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    bootstrap: str
    subscription: Subscription
    start: Bound
    end: Bound
    late_start: Literal["error", "latest"]
    offsets_per_trigger_min: int | None
    offsets_per_trigger_max: int | None
    trigger_delay_ms_max: int
    partitions_min: int | None
    records_per_partition_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group_id: str | None
    long_poll_ms_max: int
    poll_timeout_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    fetch_bytes_max: int
    consumer: ConsumerSettings


def stream_options(given: Mapping[str, str]) -> SourceOptions:
    options = _lowered(given)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name.lower() in options:
            raise OptionError(f"{name} is for batch reads: a stream has no end")
    return _parse(options, Bound(LATEST))


def batch_options(given: Mapping[str, str]) -> SourceOptions:
    options = _lowered(given)
    parsed = _parse(options, Bound(EARLIEST))
    _check_batch_bounds(parsed.start, parsed.end)
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"):
        if name.lower() in options:
            logger.warning("option_ignored name=%s reason=%r", name, "it is for streams")
    return parsed


def check_options(given: Mapping[str, str]) -> None:
    """What can be said before it is known whether a batch or a stream is read."""
    _parse(_lowered(given), Bound(LATEST))


def wants_headers(given: Mapping[str, str]) -> bool:
    return _boolean("includeHeaders", _lowered(given), False)


# -- the whole ---------------------------------------------------------------------------------------------------------


def _parse(options: Mapping[str, str], default_start: Bound) -> SourceOptions:
    check_spelling(options, SOURCE_OPTIONS)
    subscription = _subscription(options)
    consumer = _consumer(options)
    offsets_min = _positive("minOffsetsPerTrigger", options)
    offsets_max = _positive("maxOffsetsPerTrigger", options)
    if offsets_min is not None and offsets_max is not None and offsets_min > offsets_max:
        raise OptionError(f"minOffsetsPerTrigger={offsets_min} is more than maxOffsetsPerTrigger={offsets_max}")
    fetch_bytes_max = FETCH_BYTES_MAX
    if not options.keys().isdisjoint(("kafka.max.partition.fetch.bytes", "kafka.fetch.max.bytes")):
        fetch_bytes_max = min(consumer.max_partition_fetch_bytes, consumer.fetch_max_bytes)
    return SourceOptions(
        bootstrap=str(consumer.bootstrap_servers),
        subscription=subscription,
        start=_bound("starting", options, default_start),
        end=_bound("ending", options, Bound(LATEST)),
        late_start=_late_start(options),
        offsets_per_trigger_min=offsets_min,
        offsets_per_trigger_max=offsets_max,
        trigger_delay_ms_max=_duration_ms("maxTriggerDelay", options, TRIGGER_DELAY_MS_MAX),
        partitions_min=_positive("minPartitions", options),
        records_per_partition_max=_positive("maxRecordsPerPartition", options),
        fail_on_data_loss=_boolean("failOnDataLoss", options, True),
        include_headers=_boolean("includeHeaders", options, False),
        group_id=options.get("groupid", "").strip() or None,
        long_poll_ms_max=_whole("longPollMs", options, LONG_POLL_MS_MAX, number_max=LONG_POLL_MS_MAX),
        poll_timeout_ms=_whole("kafkaConsumer.pollTimeoutMs", options, POLL_TIMEOUT_MS),
        fetch_offset_retries=_whole("fetchOffset.numRetries", options, FETCH_OFFSET_RETRIES),
        fetch_offset_retry_interval_ms=_whole("fetchOffset.retryIntervalMs", options, FETCH_OFFSET_RETRY_INTERVAL_MS),
        fetch_bytes_max=fetch_bytes_max,
        consumer=consumer,
    )


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    """Spark's options have no case."""
    return {name.lower(): value for name, value in given.items()}


def check_spelling(options: Iterable[str], names: Iterable[str]) -> None:
    """Refuse what is almost one of `names`: an option that is silently left alone would be missed."""
    known = {name.lower(): name for name in names}
    for name in options:
        if name in known or name.startswith("kafka."):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.9)
        if near:
            raise OptionError(f"unknown option {name!r}: did you mean {known[near[0]]!r}?")


# -- what is read ------------------------------------------------------------------------------------------------------


def _subscription(options: Mapping[str, str]) -> Subscription:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if name.lower() in options]
    if not given:
        raise OptionError(f"no topic is named: set one of the options {', '.join(names)}")
    if len(given) > 1:
        raise OptionError(f"the options {' and '.join(given)} exclude each other: leave one")
    name = given[0]
    text = options[name.lower()].strip()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise OptionError(f"subscribe={text!r} names no topic: write topics with commas between them")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        if not text:
            raise OptionError("subscribePattern is empty: write a regular expression")
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern={text!r} is no regular expression: {error}") from None
        return Subscription(pattern=text)
    return Subscription(partitions=_partitions(text))


def _partitions(text: str) -> frozenset[TopicPartition]:
    try:
        found = frozenset(
            TopicPartition(topic, _int(partition)) for topic, listed in json.loads(text).items() for partition in listed
        )
    except (ValueError, AttributeError, TypeError):
        found = frozenset()
    if not found:
        raise OptionError(f'assign={text!r} names no partition: write {{"topic": [0, 1]}}')
    return found


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


def _bound(side: Literal["starting", "ending"], options: Mapping[str, str], default: Bound) -> Bound:
    """A time for all goes before times for each, and those before offsets."""
    everywhere, each, place = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if everywhere.lower() in options:
        text = options[everywhere.lower()].strip()
        if not text.isdecimal():
            raise OptionError(f"{everywhere}={text!r} is no number of milliseconds since 1970")
        return Bound(timestamp_ms=int(text))
    if each.lower() in options:
        return Bound(timestamps_ms=_offsets(each, options[each.lower()], number_min=0))
    text = options.get(place.lower(), "").strip()
    if not text:
        return default
    if text.lower() in ("latest", "earliest"):
        return Bound(LATEST if text.lower() == "latest" else EARLIEST)
    return Bound(offsets=_offsets(place, text, number_min=EARLIEST))


def _offsets(name: str, text: str, number_min: int) -> Offsets:
    try:
        offsets = offsets_from_json(json.loads(text))
    except (OffsetsFormatError, ValueError):
        raise OptionError(f'{name}={text.strip()!r} is not like {{"topic": {{"0": 23, "1": -1}}}}') from None
    for where, number in offsets.items():
        if number < number_min:
            raise OptionError(
                f"{name} of {where} is {number}, which is neither offset nor time: {number_min} is the least"
            )
    return offsets


def _late_start(options: Mapping[str, str]) -> Literal["error", "latest"]:
    text = options.get("startingoffsetsbytimestampstrategy", "error").strip().lower()
    if text == "error":
        return "error"
    if text == "latest":
        return "latest"
    raise OptionError(f"startingOffsetsByTimestampStrategy={text!r} is not error or latest")


def _check_batch_bounds(start: Bound, end: Bound) -> None:
    if start == Bound(LATEST):
        raise OptionError("startingOffsets=latest leaves nothing to a batch read: set earliest, offsets or a time")
    if end == Bound(EARLIEST):
        raise OptionError("endingOffsets=earliest leaves nothing to a batch read: set latest, offsets or a time")
    for where, offset in (start.offsets or {}).items():
        if offset == LATEST:
            raise OptionError(f"startingOffsets of {where} is -1 (latest), which leaves nothing to a batch read")
    for where, offset in (end.offsets or {}).items():
        if offset == EARLIEST:
            raise OptionError(f"endingOffsets of {where} is -2 (earliest), which leaves nothing to a batch read")
    for starts, ends, noun in (
        (start.offsets, end.offsets, "Offsets"),
        (start.timestamps_ms, end.timestamps_ms, "OffsetsByTimestamp"),
    ):
        if starts is None or ends is None:
            continue
        if starts.keys() != ends.keys():
            raise OptionError(f"starting{noun} and ending{noun} name different partitions")
        for where in sorted(starts):
            if 0 <= ends[where] < starts[where]:
                raise OptionError(f"{where} starts at {starts[where]}, after its end {ends[where]}")


# -- values ------------------------------------------------------------------------------------------------------------


def _whole(name: str, options: Mapping[str, str], default: int, *, number_max: int | None = None) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text.strip())
    except ValueError:
        raise OptionError(f"{name}={text!r} is no whole number") from None
    if number < 0:
        raise OptionError(f"{name}={number} is negative")
    if number_max is not None and number > number_max:
        raise OptionError(f"{name}={number} is more than {number_max}")
    return number


def _positive(name: str, options: Mapping[str, str]) -> int | None:
    if name.lower() not in options:
        return None
    number = _whole(name, options, 0)
    if number == 0:
        raise OptionError(f"{name} must be positive")
    return number


def _boolean(name: str, options: Mapping[str, str], default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}={text!r} is not true or false")
    return text.strip().lower() == "true"


_UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(name: str, options: Mapping[str, str], default: int) -> int:
    """Spark's way to write times: 15m, 30s, 100ms."""
    text = options.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNIT_MS:
        raise OptionError(f"{name}={text!r} is no duration: write 30s or 15m")
    return int(match[1]) * _UNIT_MS[match[2]]


# -- the client --------------------------------------------------------------------------------------------------------


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """What stands behind `kafka.`, without the prefix."""
    return {name[len("kafka.") :]: value for name, value in options.items() if name.startswith("kafka.")}


def _consumer(options: Mapping[str, str]) -> ConsumerSettings:
    settings = client_settings(options)
    for name, reason in _REFUSED_SETTINGS.items():
        if name in settings:
            raise OptionError(f"kafka.{name} cannot be set: {reason}")
    return parse_client_settings(settings, consumer_settings)


def parse_client_settings(settings: Mapping[str, str], parse: Callable[[Mapping[str, object]], S]) -> S:
    """The settings of our client that `parse` makes of Java's."""
    try:
        return parse(settings_with_effect(settings))
    except SettingsError as error:
        raise OptionError(f"option kafka.*: {error}") from None


def settings_with_effect(settings: Mapping[str, str]) -> dict[str, str]:
    """Java's settings without those that have no meaning here; what cannot be done is refused."""
    if not settings.get("bootstrap.servers", "").strip():
        raise OptionError("kafka.bootstrap.servers is missing: set the option to host:port of a broker")
    protocol = settings.get("security.protocol", "PLAINTEXT").strip()
    secure = next((name for name in settings if name.startswith(_SECURITY_SETTINGS)), None)
    if protocol.upper() != "PLAINTEXT" or secure is not None:
        asked = f"security.protocol={protocol}" if secure is None else secure
        raise OptionError(f"kafka.{asked}: only PLAINTEXT is spoken here so far")
    return {
        name: value
        for name, value in settings.items()
        if name not in _SETTINGS_WITHOUT_EFFECT and name != "security.protocol"
    }
