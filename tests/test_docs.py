"""The documentation is true: its examples run, its tables are the code's, its paths and links exist.

Each page gets a broker of its own, with its data in `./.moldau`. How a code block is run depends on its language:

- `python`: as a program; with pytest when it defines tests.
- `console`: lines after `$ ` are commands, run by the shell one after the other. The lines below a command are what it
  prints, where `...` stands for anything. A command that starts a broker is stopped again once it is ready. What makes
  environments or installs packages is left out.
  A table server and a cluster run until the page ends, and are what later commands ask.
- `properties`: read as a server.properties; every key must exist and every value fit.

README.md shows a piece of the program of docs/spark.md, which is run there: a Spark session costs seconds.

`127.0.0.1:9092` and `127.0.0.1:9644` stand for the addresses of the page's broker. docs/cli.md has a test of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from moldau.broker import load_settings
from moldau.cluster.config_catalogue import broker_key
from moldau.testing import Broker
from tests.java import TOOLS, java_command
from tests.oracle import missing, require_oracle

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path.name != "cli.md")])
COMMAND_SECONDS_MAX = 60.0
# Commands that prepare a machine; `make` targets are looked up instead.
_NOT_RUN = ("make", "pip", "npm")
_SERVERS = ("moldau up", "moldau broker --config")
_TABLES = "moldau table serve"
_CLUSTER = "moldau up --brokers"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class World:
    """What a page's examples run in."""

    directory: Path
    addresses: dict[str, str]
    environment: dict[str, str]
    running: list[subprocess.Popen[str]]

    def here(self, text: str) -> str:
        for written, real in self.addresses.items():
            text = text.replace(written, real)
        return text


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, match.start()) + 1, match.group(1), match.group(2)) for match in _BLOCK.finditer(text)
    ]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    programs = tmp_path / "bin"
    programs.mkdir()
    if missing() is None:
        for name, main in TOOLS.items():
            script = programs / f"kafka-{name}.sh"
            quoted = " ".join(f"'{part}'" for part in java_command(main))
            script.write_text(f'#!/bin/sh\nexec {quoted} "$@"\n')
            script.chmod(0o755)
    directory = tmp_path / "page"
    directory.mkdir()
    with Broker({"moldau.http.listener": "127.0.0.1:0"}, data=str(directory / ".moldau")) as broker:
        assert broker.node is not None and broker.node.http is not None
        there = World(
            directory,
            {"127.0.0.1:9092": broker.bootstrap, "127.0.0.1:9644": f"127.0.0.1:{broker.node.http.port}"},
            {
                **os.environ,
                "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "MOLDAU_BOOTSTRAP": broker.bootstrap,
                "PYTHONWARNINGS": "ignore::DeprecationWarning",
            },
            [],
        )
        yield there
        for process in there.running:
            process.terminate()
            process.communicate(timeout=COMMAND_SECONDS_MAX)


@pytest.mark.clients
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=page_id)
def test_the_examples_of_a_page_run(page: Path, world: World) -> None:
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.language == "python":
            run_python(block, world, where)
        elif block.language == "console":
            run_console(block, world, where)
        elif block.language == "properties":
            _, warnings = load_settings(block.text, (), {})
            assert not warnings, f"{where}: {warnings}"
        else:
            assert block.language in ("text", "yaml"), f"{where}: nobody runs {block.language!r}"


def run_python(block: Block, world: World, where: str) -> None:
    if "moldau.spark" in block.text and where.startswith("README.md"):
        assert any(block.text in other.text for other in blocks(ROOT / "docs" / "spark.md")), (
            f"{where}: not in spark.md"
        )
        return
    program = world.directory / f"test_line_{block.line}.py"
    program.write_text(world.here(block.text))
    runner = ["-m", "pytest", "-p", "no:cacheprovider"] if "def test_" in block.text else []
    done = _run([sys.executable, *runner, str(program)], world)
    assert done.returncode == 0, f"{where}:\n{done.stdout}"


def run_console(block: Block, world: World, where: str) -> None:
    for command, expected in commands(block.text):
        words = command.split()
        if words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), f"{where}: no target {words[1]}"
        elif words[0] in _NOT_RUN:
            continue
        elif command.startswith(_CLUSTER):
            assert matches(expected, start_cluster(command, world)), f"{where}: {command}"
        elif command.startswith(_SERVERS):
            printed = start_and_stop(command, world)
            assert matches(expected, printed), f"{where}: {command}\n{printed}"
        elif command.startswith(_TABLES):
            assert matches(expected, start_tables(command, world)), f"{where}: {command}"
        else:
            require_programs(command)
            done = _run(["sh", "-c", world.here(command)], world)
            assert done.returncode == 0, f"{where}: {command}\n{done.stdout}"
            assert matches(world.here(expected), done.stdout), f"{where}: {command}\n{done.stdout}"


def commands(text: str) -> list[tuple[str, str]]:
    """Pairs of a command and what it prints."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:].partition("  #")[0].strip(), ""))
        else:
            command, printed = found[-1]
            found[-1] = (command, f"{printed}{line}\n")
    return found


def matches(expected: str, printed: str) -> bool:
    """Spaces are compared as one, for columns are as wide as what stands in them."""
    if not expected.strip():
        return True
    expected, printed = (re.sub(" +", " ", text.strip()) for text in (expected, printed))
    wanted = ".*".join(re.escape(part) for part in re.split(r"[ \n]*\.\.\.[ \n]*", expected))
    return re.fullmatch(wanted, printed, re.DOTALL) is not None


def require_programs(command: str) -> None:
    strict = os.environ.get("MOLDAU_TEST_STRICT") == "1"
    if "kafka-" in command and ".sh" in command:
        require_oracle()
    for name in ("kcat", "curl"):
        if re.search(rf"\b{name}\b", command) and shutil.which(name) is None:
            (pytest.fail if strict else pytest.skip)(f"no {name} on PATH: run tools/install-test-tools")


def start_and_stop(command: str, world: World) -> str:
    """Run a command that serves on ports of its own until it says that it is ready; what it printed up to there."""
    flags = " --port 0 --data ./started" if command.startswith("moldau up") else ""
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command}{flags} -X moldau.http.listener="],
        cwd=world.directory,
        env=world.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(COMMAND_SECONDS_MAX) == 0
    process.stdout.close()
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", "9092", line)


def start_cluster(command: str, world: World) -> str:
    """Start a cluster on ports of its own; what it printed, with the ports that are the default."""
    process = _start(f"{command} --port 0", world)
    assert process.stdout is not None
    line = process.stdout.readline()
    addresses = re.findall(r"127\.0\.0\.1:\d+", line)
    world.environment["MOLDAU_BOOTSTRAP"] = ",".join(addresses)
    for index, address in enumerate(addresses):
        written = f"127.0.0.1:{9092 + index}"
        world.addresses[written] = address
        line = line.replace(address, written)
    return line


def start_tables(command: str, world: World) -> str:
    """Start a table server on a port of its own; what it printed, with the port that is the default."""
    process = _start(f"{command} --port 0", world)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found is not None, line
    world.environment["MOLDAU_TABLES"] = world.addresses["http://127.0.0.1:8090"] = found[0]
    return line.replace(found[0], "http://127.0.0.1:8090")


def _start(command: str, world: World) -> subprocess.Popen[str]:
    """Until the page ends."""
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        cwd=world.directory,
        env=world.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    world.running.append(process)
    return process


def _run(command: list[str], world: World) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=world.directory,
        env=world.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )


# -- tables ------------------------------------------------------------------------------------------------------------


def rows(page: str) -> Iterator[list[str]]:
    """The cells of every table row of a page."""
    for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_table_of_api_keys_is_current() -> None:
    spec = importlib.util.spec_from_file_location("protocol_page", ROOT / "docs" / "protocol_page.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGE.read_text(encoding="utf-8")
    assert page == module.with_table(page), "run: python docs/protocol_page.py"
    assert page.count("\n| ") == 93 + 1


def test_the_limits_of_the_broker_are_the_codes() -> None:
    checked = 0
    for name, value, *_ in [cells for cells in rows("broker.md") if len(cells) == 3]:
        dotted = name.strip("`")
        if dotted.startswith("moldau."):
            module, _, constant = dotted.rpartition(".")
            assert str(getattr(importlib.import_module(module), constant)) == value, dotted
            checked += 1
        elif name.startswith("`"):
            key = broker_key(dotted)
            assert key is not None and key.default == value, dotted
            checked += 1
    assert checked > 12


def test_the_producers_settings_are_all_listed_with_their_defaults() -> None:
    from moldau.client import producer_settings
    from moldau.client.settings import _PARSERS

    defaults = producer_settings({})
    shown = {"acks": "all", "compression.type": "none", "partitioner": "default"}
    shown |= {"key.serializer": "bytes", "value.serializer": "bytes"}
    listed = {}
    for cells in rows("producer.md"):
        for name in re.findall(r"`([a-z0-9.]+)`", cells[0]):
            listed[name] = cells[1]
    assert set(listed) == set(_PARSERS)
    for name, value in listed.items():
        default = getattr(defaults, name.replace(".", "_"))
        wanted = str(default).lower() if isinstance(default, bool) else str(default)
        assert value == shown.get(name, wanted), name


def test_the_metrics_and_events_of_operations_are_the_brokers() -> None:
    listed = {cells[0].strip("`"): cells[1] if len(cells) > 1 else "" for cells in rows("operations.md")}
    with Broker({"moldau.http.listener": "127.0.0.1:0"}) as broker:
        from moldau.client import BlockingProducer
        from moldau.kernel import TopicPartition

        with BlockingProducer(broker.bootstrap, {"transactional.id": "measured"}) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("measured", b"v")
                producer.send_offsets_to_transaction({TopicPartition("measured", 0): 1}, "measuring")
        assert broker.node is not None and broker.node.http is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.node.http.port}/metrics") as answer:
            lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    exposed: dict[str, set[str]] = {}
    for line in lines:
        name, _, rest = line.partition(" ")[0].partition("{")
        exposed[name] = set(re.findall(r"(\w+)=", rest))
    metrics = {name: labels for name, labels in listed.items() if re.match("kafka_|moldau_|process_", name)}
    assert {name: set(re.findall(r"\w+", labels)) for name, labels in metrics.items()} == exposed
    source = "".join(
        path.read_text() for path in (ROOT / "src" / "moldau").rglob("*.py") if "messages" not in path.parts
    )
    page = (ROOT / "docs" / "operations.md").read_text()
    events = re.findall(r"`(\w+_\w+)`", page.partition("| event |")[2].partition("## ")[0])
    assert len(events) > 10
    for event in events:
        assert f'"{event} ' in source, event


# -- paths and links ---------------------------------------------------------------------------------------------------


def test_every_path_in_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./-]*\w+(?:/[\w.-]*)+|\w+\.\w*py)`", text))
    named |= set(re.findall(r"^(?:src/)?[a-z]+(?:/[a-z]+)*/(?= |$)", text, re.MULTILINE))
    named |= set(re.findall(r"^ {2,4}([a-z]+/)", text, re.MULTILINE)) | set(re.findall(r"\| ([a-z]+/) ", text))
    bases = [ROOT, ROOT / "src" / "moldau", ROOT / "src" / "moldau" / "broker", ROOT / "tests"]
    lost = [path for path in named if not any((base / path).exists() for base in bases)]
    assert len(named) > 30 and not lost, lost


def test_every_package_is_in_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "src" / "moldau").glob("*/__init__.py")}
    assert {name for name in packages if f"{name}/" not in text} == set()


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"], ids=page_id
)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in _anchors(there), f"{page.name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name
