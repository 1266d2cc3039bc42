"""What these tests need beside Python's standard library, and one way to say that it is not there.

A test that misses its client skips with a line that says how to get it; under `MOLDAU_TEST_STRICT=1` it fails instead.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import java, oracle

ROOT = Path(__file__).resolve().parents[2]
JS_DIR = ROOT / ".cache" / "js"


def missing(reason: str) -> None:
    """Skip the running test, or fail it when the run is strict."""
    if os.environ.get("MOLDAU_TEST_STRICT") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_module(name: str) -> Any:
    """A Python client, which `make test` installs with the other development packages."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return missing(f"no Python module {name}: run make test, or pip install --group dev")


def require_program(name: str) -> str:
    """A program on PATH, which `tools/install-test-tools` installs."""
    return shutil.which(name) or missing(f"no {name} on PATH: run tools/install-test-tools") or ""


def require_kafkajs() -> str:
    """Node.js with kafkajs; returns the path of node."""
    node = require_program("node")
    if not (JS_DIR / ".complete").exists():
        missing("no kafkajs in .cache/js: run tools/install-test-tools")
    return node


def require_java() -> None:
    """A JDK with the jars of Apache Kafka: our Java sources are compiled, which a JRE cannot."""
    oracle.require_oracle()
    if java.javac() is None:
        missing("no javac beside java: install a JDK, a JRE compiles no sources")
