"""The command tree. Each command's work is in a module of its own, imported when the command runs."""

from __future__ import annotations

import typer

from moldau.cli import serve

app = typer.Typer(
    name="moldau",
    help="The event-streaming platform in Python: it speaks Kafka's protocol and writes Kafka's files.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(serve.up)
app.command("broker")(serve.broker)
storage = typer.Typer(no_args_is_help=True, help="Format and inspect data directories.")
storage.command("format")(serve.format_storage)
storage.command("info")(serve.storage_info)
app.add_typer(storage, name="storage")
