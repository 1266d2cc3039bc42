"""Every file in `examples/` runs, with the broker's address as its argument or in the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.clients.needs import JS_DIR, ROOT, require_java, require_kafkajs, require_module, require_program
from tests.java import java_command

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
EXAMPLES = ROOT / "examples"
SECONDS_MAX = 60.0


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=EXAMPLES,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("confluent_kafka_example.py", "confluent_kafka"),
        ("aiokafka_example.py", "aiokafka"),
        ("kafka_python_example.py", "kafka"),
        ("moldau_client_example.py", "moldau.client"),
    ],
)
def test_python(bootstrap: str, name: str, module: str) -> None:
    require_module(module)
    printed = run(sys.executable, name, bootstrap)
    assert "delivered to offset 9" in printed or "delivered key-9 to offset 9" in printed
    assert "read 9: " in printed
    # A second run finds the topic there; the address may come from the environment.
    assert "hello 9" in run(sys.executable, name, MOLDAU_BOOTSTRAP=bootstrap)


def test_embedded_broker() -> None:
    require_module("confluent_kafka")
    printed = run(
        sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "test_with_embedded_broker.py"
    )
    assert "2 passed" in printed


def test_kcat(bootstrap: str) -> None:
    require_program("kcat")
    printed = run("sh", "kcat_example.sh", bootstrap)
    assert "read 0: one=hello 1\nread 1: two=hello 2\nread 2: three=hello 3\n" in printed
    assert '"key":"three","payload":"hello 3"' in printed and "kcat-example [0] offset 0" in printed


def test_kafkajs(bootstrap: str) -> None:
    node = require_kafkajs()
    settings = {"NODE_PATH": str(JS_DIR / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    assert "partition 0: offsets 0 to 10" in run(node, "kafkajs_example.js", bootstrap, **settings)


@pytest.mark.oracle
def test_java(bootstrap: str) -> None:
    require_java()
    printed = run(*java_command("JavaExample.java", bootstrap))
    assert "delivered to offset 9" in printed and "read 9: hello 9" in printed


def test_every_example_is_listed() -> None:
    listing = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".js", ".sh", ".java")}
    assert all(f"`{name}`" in listing for name in names), names
