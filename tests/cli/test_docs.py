"""docs/cli.md is true: every command in a console block runs and prints what stands below it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from moldau.cli.app import COMMANDS, app
from moldau.testing import Broker
from tests.cli.conftest import SECONDS_MAX
from tests.test_docs import ROOT, blocks, commands, matches

PAGE = ROOT / "docs" / "cli.md"
_NEEDS_SHELL = re.compile(r"[|<>$*;&']")


def test_the_examples_run_and_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker(data=str(tmp_path / "data")) as broker:
        monkeypatch.setenv("MOLDAU_BOOTSTRAP", broker.bootstrap)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for block in blocks(PAGE):
            assert block.language == "console", f"line {block.line}: nobody runs {block.language!r}"
            for command, expected in commands(block.text):
                code, printed = run(command)
                assert code == 0, f"{command}\n{printed}"
                assert matches(expected, printed), f"line {block.line}: {command}\n{printed}"


def run(command: str) -> tuple[int, str]:
    """Through a shell where one is needed; inside this process otherwise, which is faster."""
    if _NEEDS_SHELL.search(command) is None:
        program, *arguments = shlex.split(command)
        assert program == "moldau"
        result = CliRunner().invoke(app, arguments, prog_name="moldau")
        return result.exit_code, result.output
    done = subprocess.run(
        ["sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )
    return done.returncode, done.stdout


def test_the_page_has_an_example_of_every_command() -> None:
    text = "".join(block.text for block in blocks(PAGE))
    root = typer.main.get_command(app)
    for name in COMMANDS:
        if name in ("up", "broker", "table", "demo"):
            continue  # docs/broker.md, docs/tables.md and docs/demo.md run them
        command = root.get_command(None, name)  # type: ignore[attr-defined]
        verbs = getattr(command, "commands", {})
        for verb in verbs or [""]:
            assert f"moldau {name} {verb}".rstrip() in text, (name, verb)


def test_links_resolve() -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target.partition("#")[0]).exists(), target
