"""What the demo's tests share."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Moldau


@pytest.fixture
def moldau() -> Moldau:
    """Commands that need no broker."""
    return Moldau("127.0.0.1:1")
