"""Every API key of Kafka 4.3.1 is served or refused with a reason; what is advertised is what the table says."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from moldau.broker import handlers
from moldau.broker.api_table import REFUSED, SERVED, advertised_range
from moldau.protocol.messages.registry import API_MESSAGES, ApiKey

KEYS = range(93)


def test_every_key_is_served_or_refused_with_a_reason() -> None:
    assert sorted([*SERVED, *REFUSED]) == list(KEYS)
    assert all(refused.reason for refused in REFUSED.values())


def test_served_versions_are_kafkas_without_the_unstable_ones() -> None:
    for key, served in SERVED.items():
        messages = API_MESSAGES[key]
        unstable = messages.latest_version_unstable
        assert (served.version_min, served.version_max) == (messages.version_min, messages.version_max - unstable)
    assert advertised_range(SERVED[ApiKey.PRODUCE]) == (0, 13)
    assert advertised_range(SERVED[ApiKey.INIT_PRODUCER_ID]) == (0, 5)


def test_every_handler_file_opens_with_its_specification() -> None:
    folder = Path(handlers.__file__).parent
    files = sorted(path.stem for path in folder.glob("k*.py"))
    assert files == sorted(served.handler for served in SERVED.values())
    for key, served in SERVED.items():
        module = import_module(f"moldau.broker.handlers.{served.handler}")
        assert served.handler.startswith(f"k{key:02d}_")
        assert module.__doc__ is not None
        assert module.__doc__.startswith(f"{API_MESSAGES[key].name} (key {key}), version")
