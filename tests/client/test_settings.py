"""Settings under Kafka's names; mistakes are named with what was probably meant."""

from __future__ import annotations

import pytest

from moldau.client import SettingsError, parse_bootstrap, producer_settings
from moldau.protocol.compression import Compression


def test_defaults_are_kafkas() -> None:
    settings = producer_settings({})
    assert settings.acks == -1
    assert settings.enable_idempotence
    assert settings.linger_ms == 5
    assert settings.batch_size == 16384
    assert settings.delivery_timeout_ms == 120_000
    assert settings.compression_type is Compression.NONE


def test_values_may_be_texts_as_a_command_line_gives_them() -> None:
    settings = producer_settings(
        {"linger.ms": "7", "acks": "1", "enable.idempotence": "false", "compression.type": "zstd", "retries": "3"}
    )
    assert (settings.linger_ms, settings.acks, settings.retries) == (7, 1, 3)
    assert not settings.enable_idempotence
    assert settings.compression_type is Compression.ZSTD


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"linger": 5}, "unknown setting 'linger'; did you mean 'linger.ms'?"),
        ({"batch_size": 5}, "unknown setting 'batch_size'; did you mean 'batch.size'?"),
        ({"bootstrap.server": "x:1"}, "did you mean 'bootstrap.servers'?"),
        ({"zzzzqqqq": 1}, "unknown setting 'zzzzqqqq'"),
        ({"linger.ms": "soon"}, "linger.ms: 'soon' is not a whole number"),
        ({"linger.ms": -1}, "linger.ms: -1 is not between 0 and"),
        ({"acks": 2}, "acks: 2 is not 0, 1 or all"),
        ({"compression.type": "rar"}, "compression.type: 'rar' is not one of none, gzip, snappy, lz4, zstd"),
        ({"enable.idempotence": "yes"}, "enable.idempotence: 'yes' is not true or false"),
        ({"partitioner": "random"}, "partitioner: 'random' is not default, round_robin or a callable"),
        ({"value.serializer": "xml"}, "value.serializer: 'xml' is no serializer"),
        ({"enable.idempotence": True, "acks": 1}, "enable.idempotence=true conflicts with acks=1 (it needs all)"),
        ({"enable.idempotence": True, "retries": 0}, "conflicts with retries=0"),
        ({"max.in.flight.requests.per.connection": 6}, "conflicts with max.in.flight.requests.per.connection=6"),
        ({"delivery.timeout.ms": 1000}, "must be at least linger.ms + request.timeout.ms = 30005"),
        ({"buffer.memory": 1000}, "buffer.memory=1000 cannot hold one batch of batch.size=16384"),
    ],
)
def test_mistakes_are_refused_in_words(given: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        producer_settings(given)
    assert message in str(refused.value)


def test_idempotence_steps_back_when_acks_alone_forbid_it() -> None:
    assert not producer_settings({"acks": 1}).enable_idempotence
    assert not producer_settings({"retries": 0}).enable_idempotence
    assert producer_settings({"acks": "all"}).enable_idempotence


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        (" a:1 , b:2,", [("a", 1), ("b", 2)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("PLAINTEXT://host:9092", [("host", 9092)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
    ],
)
def test_addresses_are_read(text: str | list[str], addresses: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == addresses


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bootstrap.servers is empty"),
        ("localhost", "the port is missing, write localhost:9092"),
        ("localhost:", "'' is no port"),
        ("localhost:kafka", "'kafka' is no port"),
        ("localhost:70000", "'70000' is no port"),
        ("::1", "write an IPv6 address as [::1]:9092"),
        ("[::1]", "write an IPv6 address as [host]:port"),
        (":9092", "the host is missing"),
    ],
)
def test_bad_addresses_are_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_bootstrap(text)
    assert message in str(refused.value)
