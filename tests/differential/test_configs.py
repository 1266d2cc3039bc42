"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: values, sources and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moldau.protocol.messages.alter_configs import AlterConfigsRequest
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.differential.deliberate import OTHER_DEFAULTS, UNKNOWN_KIND, without_configs_set_elsewhere
from tests.differential.pair import Pair, versions_of
from tests.differential.plain import only

pytestmark = pytest.mark.oracle

UNKNOWN, TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
# Documentation is in our own words. Kafka lists configs in the order of hash maps.
DOCUMENTATION = ("results.*.configs.*.documentation",)
UNORDERED = ("results", "results.*.configs")


def _describe(
    *resources: tuple[int, str] | tuple[int, str, list[str] | None], synonyms: bool = True, documentation: bool = False
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(each[0], each[1], each[2] if len(each) > 2 else None)
            for each in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def _same(pair: Pair, request: DescribeConfigsRequest, version: int, say: str, **more: Any) -> tuple[Any, Any]:
    more.setdefault("edit", without_configs_set_elsewhere("results"))
    return pair.ask(request, version, masks=DOCUMENTATION, unordered=UNORDERED, say=say, **more)


def _value_is(name: str, value: str | None, layers: int | None = None) -> Callable[[Any], bool]:
    """Whether the first resource has this value, which Kafka's broker may learn a little later."""

    def check(answer: Any) -> bool:
        return any(
            each.name == name and each.value == value and layers in (None, len(each.synonyms))
            for each in answer.results[0].configs
        )

    return check


@pytest.mark.parametrize("version", versions_of(32))
def test_configs_of_topics(pair: Pair, version: int) -> None:
    plain = pair.create("plain")
    own = {"cleanup.policy": "compact , delete", "retention.ms": " 1000 "}
    tuned = pair.create("tuned", 1, own)
    _same(pair, _describe((TOPIC, plain)), version, "defaults")
    _same(pair, _describe((TOPIC, tuned)), version, "own values", until=_value_is("retention.ms", "1000"))
    _same(pair, _describe((TOPIC, tuned), synonyms=False), version, "without synonyms")
    _same(pair, _describe((TOPIC, tuned, ["retention.ms", "no.such.key"])), version, "two keys")
    _same(pair, _describe((TOPIC, tuned, [])), version, "an empty list of keys")
    _same(pair, _describe((TOPIC, plain, ["segment.bytes"]), (TOPIC, tuned, ["segment.ms"])), version, "two topics")
    _same(pair, _describe((TOPIC, plain), (TOPIC, plain)), version, "twice the same")
    if version >= 3:
        _same(pair, _describe((TOPIC, plain), documentation=True), version, "with documentation")


@pytest.mark.parametrize("version", versions_of(32))
def test_configs_of_what_does_not_exist(pair: Pair, version: int) -> None:
    for resource in (
        (TOPIC, pair.topic("missing")),
        (TOPIC, "bad name"),
        (TOPIC, ""),
        (BROKER, "7"),
        (BROKER, "x"),
        (BROKER, "-1"),
        (LOGGER, ""),
        (LOGGER, "7"),
        (LOGGER, "x"),
        (GROUP, ""),
        (CLIENT_METRICS, ""),
        (CLIENT_METRICS, "none"),
    ):
        _same(pair, _describe(resource), version, f"resource {resource}")
    for kind in (UNKNOWN, 3, 99):
        _same(pair, _describe((kind, "x")), version, f"kind {kind}", deliberate=(UNKNOWN_KIND,))
    _same(pair, _describe(), version, "nothing")


@pytest.mark.parametrize("version", versions_of(32))
def test_configs_of_groups(pair: Pair, version: int) -> None:
    _same(pair, _describe((GROUP, pair.topic("any"))), version, "a group that nobody made")
    _same(pair, _describe((GROUP, pair.topic("any"), ["consumer.session.timeout.ms"])), version, "one key")


# Where the two brokers really are set up differently.
BROKER_SET_UP = (
    "advertised.listeners",
    "controller.quorum.bootstrap.servers",
    "listeners",
    "log.dirs",
    "log.segment.delete.delay.ms",  # the test kit's
    "group.coordinator.rebalance.protocols",
)


def _broker_entries(tree: Any) -> Any:
    for result in tree["results"]:
        result["configs"] = [
            each
            for each in result["configs"] or ()
            if each["name"] not in (*BROKER_SET_UP, *OTHER_DEFAULTS) and not each["name"].startswith("moldau.")
        ]
    return tree


@pytest.mark.parametrize("version", versions_of(32))
def test_configs_of_brokers(pair: Pair, version: int) -> None:
    _same(pair, _describe((BROKER, "1")), version, "the broker", edit=_broker_entries)
    _same(pair, _describe((BROKER, "1"), synonyms=False), version, "without synonyms", edit=_broker_entries)
    _same(pair, _describe((BROKER, "1", ["num.partitions", "x"])), version, "one key")
    _same(pair, _describe((BROKER, "")), version, "all brokers", edit=_broker_entries)


# -- incremental -------------------------------------------------------------------------------------------------------

Config = tuple[str, int, str | None]


def _alter(*resources: tuple[int, str, list[Config]], validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                kind, name, [IncrementalAlterConfigsRequest.AlterableConfig(*config) for config in configs]
            )
            for kind, name, configs in resources
        ],
        validate_only=validate_only,
    )


@pytest.mark.parametrize("version", versions_of(44))
def test_topic_configs_are_altered(pair: Pair, version: int) -> None:
    topic = pair.create("t")

    def step(configs: list[Config], key: str, value: str | None) -> None:
        pair.ask(_alter((TOPIC, topic, configs)), version, say=str(configs))
        _same(pair, _describe((TOPIC, topic)), 4, f"after {configs}", until=_value_is(key, value))

    step([("retention.ms", SET, "5")], "retention.ms", "5")
    step([("retention.ms", SET, "6"), ("segment.ms", SET, " 7 ")], "segment.ms", "7")
    step([("cleanup.policy", APPEND, "compact")], "cleanup.policy", "delete,compact")
    step([("cleanup.policy", APPEND, "compact")], "cleanup.policy", "delete,compact")
    step([("cleanup.policy", SUBTRACT, "delete")], "cleanup.policy", "compact")
    step([("cleanup.policy", SUBTRACT, "delete")], "cleanup.policy", "compact")
    step([("follower.replication.throttled.replicas", APPEND, "0:1")], "follower.replication.throttled.replicas", "0:1")
    step(
        [("follower.replication.throttled.replicas", APPEND, "0:1,1:1")],
        "follower.replication.throttled.replicas",
        "0:1,1:1",
    )
    step([("retention.ms", DELETE, None)], "retention.ms", "604800000")
    step([("retention.ms", DELETE, "ignored")], "retention.ms", "604800000")
    step([("segment.ms", DELETE, None), ("cleanup.policy", DELETE, None)], "cleanup.policy", "delete")


@pytest.mark.parametrize("version", versions_of(44))
def test_topic_configs_are_refused(pair: Pair, version: int) -> None:
    topic, missing = pair.create("t"), pair.topic("missing")
    for validate_only in (True, False):
        for configs in (
            [("no.such.key", SET, "1")],
            [("no.such.key", DELETE, None)],
            [("no.such.key", APPEND, "1")],
            [("retention.ms", SET, "abc")],
            [("retention.ms", SET, "-2")],
            [("retention.ms", SET, None)],
            [("retention.ms", SET, "")],
            [("retention.ms", APPEND, "5")],
            [("retention.ms", SUBTRACT, "5")],
            [("cleanup.policy", APPEND, "shred")],
            [("cleanup.policy", APPEND, None)],
            [("retention.ms", SET, "5"), ("retention.ms", SET, "6")],
            [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)],
            [("retention.ms", SET, None), ("segment.ms", SET, None)],
            [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
            [("remote.storage.enable", SET, "true")],
            [("", SET, "x")],
            [],
        ):
            request = _alter((TOPIC, topic, configs), validate_only=validate_only)  # type: ignore[arg-type]
            pair.ask(request, version, say=f"{configs} validate_only={validate_only}")
    good: list[Config] = [("retention.ms", SET, "5")]
    for resources, say in (
        ([(TOPIC, missing, good)], "unknown topic"),
        ([(TOPIC, "bad name", good)], "invalid topic"),
        ([(TOPIC, "", good)], "empty topic"),
        ([(UNKNOWN, "x", good)], "unknown kind"),
        ([(99, "x", good)], "a kind that nobody knows"),
        ([(LOGGER, "7", good)], "a logger of another broker"),
        ([(LOGGER, "x", good)], "a logger of no broker"),
        ([(LOGGER, "", good)], "a logger of all brokers"),
        ([(LOGGER, "1", [("no.such.Logger", DELETE, None)])], "a logger that does not exist"),
        ([(TOPIC, topic, good), (TOPIC, topic, good)], "a resource twice"),
        ([(TOPIC, topic, good), (TOPIC, missing, good)], "one good, one bad"),
        ([], "nothing"),
    ):
        request = _alter(*resources, validate_only=True)
        pair.ask(request, version, unordered=("responses",), say=say)


@pytest.mark.parametrize("version", versions_of(44))
def test_broker_configs_are_altered_and_refused(pair: Pair, version: int) -> None:
    for name in ("1", ""):
        for configs in (
            [("no.such.key", SET, "1")],
            [("node.id", SET, "2")],
            [("log.dirs", SET, "/x")],
            [("num.network.threads", SET, "x")],
            [("num.io.threads", SET, "0")],
            [("log.retention.ms", SET, "-2")],
            [("log.cleanup.policy", SET, "shred")],
            [("log.cleanup.policy", APPEND, "compact")],
            [("advertised.listeners", SET, "x")],
            [("ssl.keystore.location", SET, "/none")],
            [("log.retention.ms", SET, "5"), ("log.retention.ms", DELETE, None)],
            [("log.retention.ms", SET, None)],
            [("compression.type", APPEND, "gzip")],
            [("min.insync.replicas", SET, "2")],
            [("min.insync.replicas", DELETE, None)],
        ):
            request = _alter((BROKER, name, configs), validate_only=True)  # type: ignore[arg-type]
            pair.ask(request, version, say=f"broker {name!r} {configs}")
    for name in ("7", "x", "-1"):
        pair.ask(_alter((BROKER, name, [("log.retention.ms", SET, "5")]), validate_only=True), version, say=name)


def test_broker_configs_take_effect_in_their_order(private_pair: Pair) -> None:
    pair = private_pair
    topic = pair.create("t")
    key = "log.message.timestamp.after.max.ms"

    def step(resource: str, operation: int, value: str | None, expected: str, layers: int) -> None:
        pair.ask(_alter((BROKER, resource, [(key, operation, value)])), 1)
        _same(pair, _describe((BROKER, "1", [key])), 4, f"broker after {value}", until=_value_is(key, expected, layers))
        _same(
            pair,
            _describe((TOPIC, topic, ["message.timestamp.after.max.ms"])),
            4,
            f"topic after {value}",
            until=_value_is("message.timestamp.after.max.ms", expected),
        )
        _same(pair, _describe((BROKER, "", [key])), 4, f"all brokers after {value}")

    step("", SET, "3600001", "3600001", 2)
    step("1", SET, " 3600002 ", "3600002", 3)
    step("", DELETE, None, "3600002", 2)
    step("1", DELETE, None, "3600000", 1)


@pytest.mark.parametrize("version", versions_of(44))
def test_group_and_subscription_configs(pair: Pair, version: int) -> None:
    group, subscription = pair.topic("g"), pair.topic("s")
    for kind, name, configs in (
        (GROUP, group, [("no.such.key", SET, "1")]),
        (GROUP, group, [("consumer.session.timeout.ms", SET, "x")]),
        (GROUP, group, [("consumer.session.timeout.ms", SET, "1")]),
        (GROUP, group, [("consumer.session.timeout.ms", SET, "99999999")]),
        (GROUP, group, [("consumer.heartbeat.interval.ms", SET, "50000")]),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")]),
        (GROUP, group, [("consumer.session.timeout.ms", SET, "50000")]),
        (CLIENT_METRICS, "", [("interval.ms", SET, "5000")]),
        (CLIENT_METRICS, subscription, [("no.such.key", SET, "1")]),
        (CLIENT_METRICS, subscription, [("interval.ms", SET, "5")]),
        (CLIENT_METRICS, subscription, [("interval.ms", SET, "x")]),
        (CLIENT_METRICS, subscription, [("match", SET, "nonsense")]),
        (CLIENT_METRICS, subscription, [("match", SET, "client_id=a.*,client_software_name=b")]),
        (CLIENT_METRICS, subscription, [("match", SET, "client_id=[")]),
        (CLIENT_METRICS, subscription, [("interval.ms", SET, "5000"), ("metrics", SET, "a.b,c")]),
        (CLIENT_METRICS, subscription, [("metrics", APPEND, "d")]),
    ):
        pair.ask(_alter((kind, name, configs)), version, say=f"{kind} {name!r} {configs}")  # type: ignore[arg-type]
    _same(pair, _describe((GROUP, group)), 4, "the group", until=_value_is("consumer.session.timeout.ms", "50000"))
    _same(
        pair, _describe((CLIENT_METRICS, subscription)), 4, "the subscription", until=_value_is("interval.ms", "5000")
    )
    for listed in (0, 1):
        request = ListConfigResourcesRequest(resource_types=[CLIENT_METRICS] if listed else [])
        pair.ask(
            request,
            listed,
            edit=only("config_resources", lambda each: each["resource_name"].startswith(pair.prefix)),
            until=lambda answer: any(each.resource_name == subscription for each in answer.config_resources),
        )
    for kind, name, key in (
        (GROUP, group, "consumer.session.timeout.ms"),
        (CLIENT_METRICS, subscription, "interval.ms"),
    ):
        pair.ask(_alter((kind, name, [(key, DELETE, None)])), version)


# -- the legacy form ---------------------------------------------------------------------------------------------------


def _replace(*resources: tuple[int, str, dict[str, str | None]], validate_only: bool = False) -> AlterConfigsRequest:
    return AlterConfigsRequest(
        resources=[
            AlterConfigsRequest.AlterConfigsResource(
                kind, name, [AlterConfigsRequest.AlterableConfig(*config) for config in configs.items()]
            )
            for kind, name, configs in resources
        ],
        validate_only=validate_only,
    )


@pytest.mark.parametrize("version", versions_of(33))
def test_topic_configs_are_replaced(pair: Pair, version: int) -> None:
    topic, missing = pair.create("t"), pair.topic("missing")

    def step(configs: dict[str, str | None], key: str, value: str) -> None:
        pair.ask(_replace((TOPIC, topic, configs)), version, say=str(configs))
        _same(pair, _describe((TOPIC, topic)), 4, f"after {configs}", until=_value_is(key, value))

    step({"retention.ms": "5", "segment.ms": "6"}, "segment.ms", "6")
    step({"retention.ms": "7"}, "segment.ms", "604800000")
    for configs in (
        {"no.such.key": "1"},
        {"retention.ms": "abc"},
        {"retention.ms": None},
        {"cleanup.policy": "shred"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    ):
        pair.ask(_replace((TOPIC, topic, configs)), version, say=str(configs))  # type: ignore[arg-type]
    for resources, say in (
        ([(TOPIC, missing, {"retention.ms": "5"})], "unknown topic"),
        ([(UNKNOWN, "x", {})], "unknown kind"),
        ([(BROKER, "7", {"log.retention.ms": "5"})], "another broker"),
        ([(BROKER, "1", {"node.id": "5"})], "a read-only key"),
        ([(TOPIC, topic, {"segment.ms": "9"}), (TOPIC, missing, {})], "one good, one bad"),
        ([], "nothing"),
    ):
        request = _replace(*resources, validate_only=True)
        pair.ask(request, version, unordered=("responses",), say=say)
    twice = _replace((TOPIC, topic, {"retention.ms": "5"}))
    twice.resources[0].configs.append(AlterConfigsRequest.AlterableConfig("retention.ms", "6"))
    pair.ask(twice, version, say="a key twice")
    step({}, "retention.ms", "604800000")


# -- names -------------------------------------------------------------------------------------------------------------


def test_config_resources_are_listed(pair: Pair) -> None:
    pair.create("t")

    def own(tree: Any) -> Any:
        keep = [
            each
            for each in tree["config_resources"]
            if each["resource_type"] in (BROKER, LOGGER) or each["resource_name"].startswith(pair.prefix)
        ]
        return {**tree, "config_resources": keep}

    for kinds in (
        [],
        [TOPIC],
        [BROKER],
        [LOGGER],
        [GROUP],
        [TOPIC, BROKER],
        [TOPIC, TOPIC],
        [UNKNOWN],
        [99],
        [TOPIC, 3],
    ):
        request = ListConfigResourcesRequest(resource_types=kinds)
        pair.ask(request, 1, edit=own, unordered=("config_resources",), say=f"kinds {kinds}")
    pair.ask(ListConfigResourcesRequest(), 0, edit=own)
