"""The command tree. A command's module is imported when the command runs, or when help lists them all."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from moldau.cli.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, CommandError, explain

# Name -> the module that holds it and the Typer in it, in the order of the help.
COMMANDS = {
    "up": ("moldau.cli.serve", "up_app"),
    "broker": ("moldau.cli.serve", "broker_app"),
    "storage": ("moldau.cli.serve", "storage_app"),
    "topic": ("moldau.cli.topic", "app"),
    "produce": ("moldau.cli.produce", "app"),
    "consume": ("moldau.cli.consume", "consume_app"),
    "tail": ("moldau.cli.consume", "tail_app"),
    "group": ("moldau.cli.group", "app"),
    "txn": ("moldau.cli.txn", "app"),
    "pipeline": ("moldau.cli.pipeline", "app"),
    "dlq": ("moldau.cli.dlq", "app"),
    "table": ("moldau.cli.table", "app"),
    "demo": ("moldau.cli.demo", "app"),
    "config": ("moldau.cli.config", "app"),
    "feature": ("moldau.cli.feature", "app"),
    "cluster": ("moldau.cli.cluster", "app"),
    "partition": ("moldau.cli.partition", "app"),
    "node": ("moldau.cli.node", "node_app"),
    "quorum": ("moldau.cli.node", "quorum_app"),
    "reassign": ("moldau.cli.reassign", "reassign_app"),
    "leader": ("moldau.cli.reassign", "leader_app"),
    "doctor": ("moldau.cli.doctor", "app"),
    "log": ("moldau.cli.log", "app"),
    "simulate": ("moldau.cli.simulate", "app"),
}
# typer brings click along, as its own copy or as a package: the classes are found through the one that it shows.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


class CommandTree(TyperGroup):
    """Finds commands by name without importing the others, and ends every command in one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = typer.main.get_command(getattr(importlib.import_module(module), name))
        command.name = cmd_name
        self.commands[cmd_name] = command
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`moldau --help` lists them"
            raise CommandError(f"there is no command {args[0]!r}; {hint}", EXIT_USAGE)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        standalone_mode = extra.pop("standalone_mode", True)
        code = self._run(*args, **extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(self, *args: Any, **extra: Any) -> int:
        try:
            result = super().main(*args, **extra | {"standalone_mode": False})
            sys.stdout.flush()
            return result if isinstance(result, int) else EXIT_OK
        except BrokenPipeError:
            return self._nobody_reads()
        except _ClickException as error:
            return _show_usage_error(error)
        except typer.Abort:
            return EXIT_ERROR
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except Exception as error:
            if sys.flags.dev_mode:
                raise
            line, code = explain(error)
            print(f"error: {line}", file=sys.stderr)
            return code

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Here, because click would make an error of it.
            return self._nobody_reads()

    def _nobody_reads(self) -> int:
        from moldau.cli.output import close_stdout_quietly

        close_stdout_quietly()
        return EXIT_OK


def _show_usage_error(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return EXIT_USAGE
    text = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "moldau"
    print(f"error: {text[:1].lower()}{text[1:]}; see `{path} --help`", file=sys.stderr)
    return int(error.exit_code)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"moldau {version('moldau')}")
        raise typer.Exit


app = typer.Typer(
    name="moldau",
    cls=CommandTree,
    help="The event-streaming platform in Python: it speaks Kafka's protocol and writes Kafka's files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass
