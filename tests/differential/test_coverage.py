"""Whoever serves a new key compares it with Kafka too."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.broker.api_table import SERVED
from moldau.protocol.messages.registry import API_MESSAGES, request_class

SCENARIOS = "\n".join(path.read_text() for path in sorted(Path(__file__).parent.glob("*.py")))
# Asked version by version without a parameter: DescribeProducers, ListConfigResources, DescribeTopicPartitions.
FEW_VERSIONS = {61: 0, 74: 1, 75: 0}


@pytest.mark.parametrize("key", SERVED, ids=lambda key: API_MESSAGES[key].name)
def test_every_version_of_a_served_key_is_compared(key: int) -> None:
    assert f"{request_class(key).__name__}(" in SCENARIOS
    assert f"versions_of({key})" in SCENARIOS or SERVED[key].version_max == FEW_VERSIONS[key]
