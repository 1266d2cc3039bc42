"""Decisions about configs: each resource on its own, values right as a whole, and no record for what changes nothing.

Refusals and their words are compared with Apache Kafka in `tests/differential/test_configs.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.cluster import ConfigKind, MetadataImage, decide_alter_configs, decide_incremental_alter_configs
from moldau.cluster.config_catalogue import broker_key
from moldau.kernel import ErrorCode
from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tests.cluster.kit import NODE, cluster, created, replayed, topic

SET, DELETE, APPEND, SUBTRACT = range(4)
Change = tuple[str, int, str | None]


def _default(name: str) -> int:
    key = broker_key(name)
    assert key is not None and key.default is not None
    return int(key.default)


def _alter(image: MetadataImage, *resources: tuple[int, str, list[Change]], validate_only: bool = False) -> Any:
    kinds = IncrementalAlterConfigsRequest
    request = kinds(
        resources=[
            kinds.AlterConfigsResource(kind, name, [kinds.AlterableConfig(*change) for change in changes])
            for kind, name, changes in resources
        ],
        validate_only=validate_only,
    )
    return decide_incremental_alter_configs(image, request, NODE, _default)


def _replace(image: MetadataImage, *resources: tuple[int, str, dict[str, str | None]]) -> Any:
    kinds = AlterConfigsRequest
    request = kinds(
        resources=[
            kinds.AlterConfigsResource(kind, name, [kinds.AlterableConfig(*each) for each in configs.items()])
            for kind, name, configs in resources
        ]
    )
    return decide_alter_configs(image, request, NODE, _default)


@pytest.fixture
def image() -> MetadataImage:
    return created(cluster(), topic("orders", configs={"retention.ms": "5", "cleanup.policy": "compact"}), topic("b"))


def test_incremental_changes_touch_only_what_they_name(image: MetadataImage) -> None:
    changes: list[Change] = [
        ("segment.ms", SET, "9"),
        ("retention.ms", DELETE, None),
        ("cleanup.policy", APPEND, "delete"),
    ]
    decision = _alter(image, (ConfigKind.TOPIC, "orders", changes))
    assert decision.response.responses[0].error_code == 0
    after = replayed(image, decision.records)
    assert after.config(ConfigKind.TOPIC, "orders") == {"cleanup.policy": "compact,delete", "segment.ms": "9"}


def test_the_legacy_form_replaces_everything(image: MetadataImage) -> None:
    decision = _replace(image, (ConfigKind.TOPIC, "orders", {"segment.ms": "9"}))
    assert replayed(image, decision.records).config(ConfigKind.TOPIC, "orders") == {"segment.ms": "9"}


def test_what_changes_nothing_makes_no_record(image: MetadataImage) -> None:
    same: list[Change] = [
        ("retention.ms", SET, "5"),
        ("segment.ms", DELETE, None),
        ("cleanup.policy", APPEND, "compact"),
    ]
    assert not _alter(image, (ConfigKind.TOPIC, "orders", same)).records
    assert not _replace(image, (ConfigKind.TOPIC, "orders", {"retention.ms": "5", "cleanup.policy": "compact"})).records


def test_validate_only_makes_no_record(image: MetadataImage) -> None:
    decision = _alter(image, (ConfigKind.TOPIC, "orders", [("retention.ms", SET, "6")]), validate_only=True)
    assert decision.response.responses[0].error_code == 0
    assert not decision.records


def test_one_refused_resource_does_not_touch_the_others(image: MetadataImage) -> None:
    decision = _alter(
        image,
        (ConfigKind.TOPIC, "orders", [("retention.ms", SET, "6"), ("no.such.key", SET, "x")]),
        (ConfigKind.TOPIC, "b", [("retention.ms", SET, "7")]),
    )
    assert [each.error_code for each in decision.response.responses] == [ErrorCode.INVALID_CONFIG, 0]
    after = replayed(image, decision.records)
    assert after.config(ConfigKind.TOPIC, "orders") == image.config(ConfigKind.TOPIC, "orders")
    assert after.config(ConfigKind.TOPIC, "b") == {"retention.ms": "7"}


def test_values_must_be_right_together_with_the_ones_that_are_there(image: MetadataImage) -> None:
    image = replayed(image, _alter(image, (ConfigKind.TOPIC, "b", [("min.compaction.lag.ms", SET, "100")])).records)
    decision = _alter(image, (ConfigKind.TOPIC, "b", [("max.compaction.lag.ms", SET, "50")]))
    assert decision.response.responses[0].error_code == ErrorCode.INVALID_CONFIG
    session: list[Change] = [
        ("consumer.session.timeout.ms", SET, "45000"),
        ("consumer.heartbeat.interval.ms", SET, "15000"),
    ]
    assert _alter(image, (ConfigKind.GROUP, "g", session)).response.responses[0].error_code == 0
    beyond: list[Change] = [("consumer.session.timeout.ms", SET, "60001")]
    assert _alter(image, (ConfigKind.GROUP, "g", beyond)).response.responses[0].error_code == ErrorCode.INVALID_CONFIG


def test_what_kafka_cannot_be_asked_is_an_invalid_request(image: MetadataImage) -> None:
    """tests/differential/deliberate.py says why."""
    for operation in (4, -1):
        decision = _alter(image, (ConfigKind.TOPIC, "orders", [("retention.ms", operation, "6")]))
        assert decision.response.responses[0].error_code == ErrorCode.INVALID_REQUEST
        assert not decision.records
    twice = _replace(image, (ConfigKind.TOPIC, "orders", {}), (ConfigKind.TOPIC, "orders", {}))
    assert [each.error_code for each in twice.response.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert not twice.records


@pytest.mark.parametrize(
    ("name", "changes", "code"),
    [
        ("1", [("node.id", SET, "2")], ErrorCode.INVALID_REQUEST),
        ("", [("listeners", SET, "PLAINTEXT://:1")], ErrorCode.INVALID_REQUEST),
        ("1", [("listener.name.x.ssl.keystore.location", SET, "/k")], 0),
        ("1", [("ssl.keystore.location", SET, "/k")], ErrorCode.INVALID_REQUEST),
        ("1", [("log.retention.ms", SET, "soon")], ErrorCode.INVALID_REQUEST),
        ("", [("log.retention.ms", SET, "5")], 0),
        ("2", [("log.retention.ms", SET, "5")], ErrorCode.INVALID_REQUEST),
        ("1", [("a.plugins.own.key", SET, "x")], 0),
    ],
)
def test_broker_configs(image: MetadataImage, name: str, changes: list[Change], code: int) -> None:
    assert _alter(image, (ConfigKind.BROKER, name, changes)).response.responses[0].error_code == code


@pytest.mark.parametrize(("count", "size"), [(10_001, 1), (300, 30_000)])
def test_too_many_records_or_bytes_refuse_every_resource_that_was_right(
    image: MetadataImage, count: int, size: int
) -> None:
    many: list[Change] = [(f"my.key.{number}", SET, "x" * size) for number in range(count)]
    right: list[Change] = [("retention.ms", SET, "6")]
    decision = _alter(
        image,
        (ConfigKind.BROKER, "", many),
        (ConfigKind.TOPIC, "orders", right),
        (ConfigKind.TOPIC, "b", [("no.such.key", SET, "1")]),
    )
    codes = [ErrorCode(answer.error_code) for answer in decision.response.responses]
    assert codes == [ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_CONFIG]
    assert not decision.records


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("log.roll.ms", "0", "log.roll.ms must be greater than or equal to 1"),
        ("log.roll.jitter.ms", "-1", "log.roll.jitter.ms must be greater than or equal to 0"),
        ("log.retention.ms", "0", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ("log.flush.interval.ms", "-1", "log.flush.interval.ms must be greater than or equal to 0"),
    ],
)
def test_a_default_that_no_topic_takes_is_refused(image: MetadataImage, key: str, value: str, why: str) -> None:
    """In the words of Apache Kafka, which lets only the last one pass (and then cannot describe a topic any more)."""
    for name in ("", str(NODE)):
        decision = _alter(image, (ConfigKind.BROKER, name, [(key, SET, value)]))
        answer = decision.response.responses[0]
        assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, f"requirement failed: {why}")
        assert not decision.records


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        (ConfigKind.BROKER, "1" * 5000, "log.retention.ms", "1"),
        (ConfigKind.CLIENT_METRICS, "s", "interval.ms", "1" * 5000),
        (ConfigKind.CLIENT_METRICS, "s", "match", "client_id=a{99999999999999999999}"),
    ],
)
def test_numbers_without_end_are_refused(image: MetadataImage, kind: int, name: str, key: str, value: str) -> None:
    assert _alter(image, (kind, name, [(key, SET, value)])).response.responses[0].error_code != 0


def test_numbers_between_blanks_of_java_are_compared(image: MetadataImage) -> None:
    changes: list[Change] = [("min.compaction.lag.ms", SET, "\x019"), ("max.compaction.lag.ms", SET, "8\x00")]
    answer = _alter(image, (ConfigKind.TOPIC, "orders", changes)).response.responses[0]
    assert answer.error_code == ErrorCode.INVALID_CONFIG
