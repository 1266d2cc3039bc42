"""The generator: its output is current, its facts are Kafka's, and the registry lists every key."""

import os
import shutil
import subprocess
import sys

import pytest

from moldau.protocol.messages.registry import API_MESSAGES, ApiKey, request_class, response_class
from tools.generator.__main__ import differences, generate, main
from tools.generator.facts import FACTS_DIR, collect, condense, render
from tools.generator.schema import VERSION_OPEN, Versions, snake_case


def test_generated_code_is_current():
    assert differences(generate()) == []
    assert main(["--check"]) == 0


def test_a_stale_a_missing_and_a_foreign_file_are_noticed():
    files = generate()
    files["produce.py"] += "# changed\n"
    files["new_api.py"] = ""
    del files["fetch.py"]
    assert differences(files) == ["fetch.py", "new_api.py", "produce.py"]


def test_generating_twice_gives_the_same_files():
    assert generate() == generate()


@pytest.mark.oracle
def test_facts_are_those_of_kafkas_jars():
    if not shutil.which("mvn"):
        if os.environ.get("MOLDAU_TEST_STRICT") == "1":
            pytest.fail("needs Maven to fetch Kafka's jars")
        pytest.skip("needs Maven to fetch Kafka's jars")
    for group, facts in collect().items():
        assert render(facts) == (FACTS_DIR / f"{group}.json").read_text(), group


def test_facts_carry_no_sentences():
    definition = {
        "name": "X",
        "type": "data",
        "validVersions": "0-1",
        "flexibleVersions": "1+",
        "fields": [
            {"name": "A", "type": "int8", "versions": "0+", "about": "A sentence.", "tag": 0, "taggedVersions": "1+"},
            {
                "name": "B",
                "type": "string",
                "taggedVersions": "1+",
                "tag": 1,
                "nullableVersions": "1+",
                "default": "null",
            },
            {"name": "C", "type": "[]int32", "versions": "0+", "nullableVersions": "0+", "default": None},
            {"name": "D", "type": "int32", "versions": "0+", "default": "0x7fffffff", "ignorable": False},
        ],
    }
    assert condense(definition, "jar")["fields"] == [
        {"name": "A", "type": "int8", "versions": "0+", "taggedVersions": "1+", "tag": 0},
        {
            "name": "B",
            "type": "string",
            "versions": "1+",
            "nullableVersions": "1+",
            "taggedVersions": "1+",
            "tag": 1,
            "default": None,
        },
        {"name": "C", "type": "[]int32", "versions": "0+", "nullableVersions": "0+"},
        {"name": "D", "type": "int32", "versions": "0+", "default": 2147483647},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0, 0)), ("3-13", (3, 13)), ("9+", (9, VERSION_OPEN)), ("none", (1, 0)), (None, (1, 0))],
)
def test_version_ranges_are_read(text, expected):
    versions = Versions.parse(text)
    assert (versions.low, versions.high) == expected
    assert bool(versions) == (expected[0] <= expected[1])


def test_names_become_snake_case():
    assert snake_case("ThrottleTimeMs") == "throttle_time_ms"
    assert snake_case("KRaftVersionFeature") == "kraft_version_feature"
    assert snake_case("IsrNodes") == "isr_nodes"
    assert snake_case("Is") == "is_"


def test_the_registry_has_every_key_and_reserves_the_removed_ones():
    assert [int(key) for key in ApiKey] == list(range(93)) == list(API_MESSAGES)
    for api_key, api in API_MESSAGES.items():
        if api_key in (4, 5, 6, 7):
            assert (api.version_min, api.version_max) == (0, -1)
            with pytest.raises(KeyError):
                request_class(api_key)
            continue
        request, response = request_class(api_key), response_class(api_key)
        assert (request.__name__, response.__name__) == (f"{api.name}Request", f"{api.name}Response")
        assert request.API_KEY == response.API_KEY == api_key
        assert (api.version_min, api.version_max) == (request.VERSION_MIN, request.VERSION_MAX)
        assert (api.version_min, api.version_max) == (response.VERSION_MIN, response.VERSION_MAX)
        assert request.FLEXIBLE_FROM == response.FLEXIBLE_FROM == api.flexible_from
        assert api.latest_version_unstable == request.LATEST_VERSION_UNSTABLE
        assert request.__module__ == f"moldau.protocol.messages.{api.module}"


def test_trap_12_the_unstable_version_is_marked():
    unstable = [api.name for api in API_MESSAGES.values() if api.latest_version_unstable]
    assert unstable == ["InitProducerId"]
    assert API_MESSAGES[ApiKey.INIT_PRODUCER_ID].version_max == 6


def test_importing_the_registry_loads_no_message():
    code = (
        "import sys, moldau.protocol.messages.registry; "
        "print(*sorted(name for name in sys.modules if name.startswith('moldau.protocol.messages.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["moldau.protocol.messages.registry"]
