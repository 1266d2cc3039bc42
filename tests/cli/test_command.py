"""The command as a whole: its tree, its errors, its exit codes, its start."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from moldau.cli.app import COMMANDS, app
from tests.cli.conftest import Moldau

REMOTE = [
    ("topic", "list"),
    ("topic", "create", "x"),
    ("topic", "describe", "x"),
    ("topic", "alter", "x", "--partitions", "2"),
    ("topic", "delete", "x"),
    ("topic", "trim", "x", "--all"),
    ("consume", "x"),
    ("tail", "x"),
    ("config", "get", "topic/x"),
    ("config", "set", "topic/x", "retention.ms=1"),
    ("feature", "list"),
    ("feature", "set", "metadata.version=4.3"),
    ("cluster", "describe"),
]


def test_help_lists_every_command_and_starts_fast() -> None:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    costs = []
    for _ in range(4):
        before = spent()
        done = subprocess.run([sys.executable, "-m", "moldau", "--help"], capture_output=True, text=True, check=True)
        costs.append(spent() - before)
    for name in COMMANDS:
        assert f" {name} " in done.stdout
    assert min(costs) < 0.25  # of processor time: the machine may be busy with other things


def test_starting_a_broker_imports_nothing_of_the_other_commands() -> None:
    program = (
        "import sys; sys.argv = ['moldau', 'up', '--brokers', '1000']\n"
        "from moldau.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 2\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('moldau.', 'rich', 'asyncio'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {"moldau.cli", "moldau.cli.app", "moldau.cli.serve", "moldau.cli.errors", "moldau.cli.options"}
    assert {name for name in loaded if name.startswith(("moldau.cli", "moldau.client"))} == ours
    assert not any(name.startswith(("rich", "asyncio")) for name in loaded)


def test_every_remote_command_has_the_shared_options() -> None:
    root = typer.main.get_command(app)
    remote = {path[:2] if path[0] not in ("consume", "tail") else path[:1] for path in REMOTE} | {
        ("produce",),
        ("doctor",),
    }
    for path in remote:
        command = root
        for name in path:
            command = command.get_command(None, name)  # type: ignore[attr-defined]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"-b", "--bootstrap", "--bootstrap-server", "--broker-list", "-o", "--output", "-X"} <= options, path


@pytest.mark.parametrize("arguments", REMOTE, ids=lambda arguments: "-".join(arguments[:2]))
def test_no_broker_is_one_line_that_names_cause_and_next_step(arguments: tuple[str, ...]) -> None:
    done = Moldau("127.0.0.1:1")(*arguments, code=1)
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("error: nothing listens on 127.0.0.1:1: is a broker running?")
    assert "`moldau up`" in done.err


def test_no_broker_for_produce_either() -> None:
    done = Moldau("127.0.0.1:1").run("produce", "x", stdin=b"a\n", code=1)
    assert done.err.startswith("error: nothing listens on 127.0.0.1:1") and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("topci",), "did you mean 'topic'?"),
        (("topic", "lst"), "list"),
        (("topic", "create"), "missing argument"),
        (("topic", "list", "--nonsense"), "no such option: --nonsense"),
        (("topic", "list", "-o", "yaml"), "yaml"),
        (("topic", "list", "-X", "reqest.timeout.ms=1"), "did you mean request.timeout.ms?"),
        (("topic", "list", "-X", "request.timeout.ms=soon"), "give a whole number"),
        (("topic", "list", "-X", "a"), "write it as -X key=value"),
        (("topic", "list", "-b", "somewhere"), "the port is missing"),
        (("topic", "create", "x", "-c", "a"), "write it as --config key=value"),
        (("topic", "alter", "x"), "nothing to alter"),
        (("topic", "trim", "x"), "choose one of"),
        (("topic", "trim", "x", "--before", "yesterday"), "is no time"),
        (("consume", "x", "-g", "group", "-p", "0"), "members of a group are given their partitions"),
        (("tail", "x", "-g", "group", "-s", "-5"), "a group goes on where it left off"),
        (("consume", "x", "-s", "middle"), "write start, end"),
        (("consume", "x", "-f", "%q"), "%q is nothing"),
        (("consume", "x", "-f", "%v", "-o", "json"), "exclude each other"),
        (("consume", "x", "-X", "fetch.max.byte=1"), "fetch.max.bytes'?"),
        (("config", "get", "x"), "write topic/NAME"),
        (("config", "get", "broker/one"), "a broker's id is a number"),
        (("config", "set", "topic/x"), "nothing to change"),
        (("config", "set", "topic/x", "a"), "write it as key=value"),
        (("feature", "set", "metadata.version=ninety"), "is no level"),
        (("produce", "x", "-H", "a"), "write it as -H name=value"),
        (("produce", "x", "--format", "jsonl", "-K", ":"), "--key-separator is for --format lines"),
        (("produce", "x", "-z", "rar"), "rar"),
        (("log", "dump"), "missing argument"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(moldau: Moldau, arguments: tuple[str, ...], says: str) -> None:
    done = moldau(*arguments, code=2)
    assert done.out == ""
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert says in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "describe", "nope"),
        ("topic", "alter", "nope", "--partitions", "3"),
        ("topic", "delete", "nope"),
        ("topic", "trim", "nope", "--all"),
        ("consume", "nope", "-e"),
        ("config", "get", "topic/nope"),
        ("config", "get", "broker/77"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_what_does_not_exist_is_exit_3(moldau: Moldau, arguments: tuple[str, ...]) -> None:
    done = moldau(*arguments, code=3)
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert "nope" in done.err or "77" in done.err


def test_the_aliases_of_bootstrap_are_the_same_option(moldau: Moldau) -> None:
    nowhere = Moldau("127.0.0.1:1")
    for option in ("-b", "--bootstrap", "--bootstrap-server", "--broker-list"):
        assert "NAME" in nowhere("topic", "list", option, f"127.0.0.1:1,{moldau.bootstrap}").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_and_completions(shell: str) -> None:
    def ask(**environment: str) -> str:
        program = "import sys; sys.argv[0] = 'moldau'; from moldau.cli import main; main()"
        plain = Moldau("127.0.0.1:1").environment(**environment)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=plain).stdout

    assert "_MOLDAU_COMPLETE" in ask(_MOLDAU_COMPLETE=f"source_{shell}")
    words = {"COMP_WORDS": "moldau topic de", "COMP_CWORD": "2"}
    if shell != "bash":
        words = {"_TYPER_COMPLETE_ARGS": "moldau topic de", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = ask(_MOLDAU_COMPLETE=f"complete_{shell}", **words)
    assert "describe" in found and "delete" in found and "create" not in found


def test_show_completion_is_an_option_of_the_root() -> None:
    done = Moldau("127.0.0.1:1").run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete -o default" in done.out


def test_storage_commands_print_rows(moldau: Moldau, tmp_path: Path) -> None:
    flags = ("-X", f"log.dirs={tmp_path}/data", "-X", "node.id=7")
    (made,) = moldau("storage", "format", *flags, "-o", "json").json
    assert moldau("storage", "format", *flags, code=1).err.startswith("error: ")
    (row,) = moldau("storage", "info", *flags, "-o", "jsonl").lines
    assert row["cluster_id"] == made["cluster_id"] and row["node_id"] == 7
    assert moldau("storage", "info", *flags).out.splitlines()[0].split()[0] == "DIRECTORY"
