"""`moldau log`: what is in the files of a data directory, read from the disk; no broker is asked. Also: `log_check`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli import log_check
from moldau.cli.errors import EXIT_ERROR, CommandError
from moldau.cli.options import Output, OutputFormat

if TYPE_CHECKING:
    from moldau.cli.log_files import Entry

_FILES_WITHOUT_CONTENT = (".lock", ".moldau-reserve")

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Look into log files, check and repair them.")
app.command()(log_check.verify)
app.command()(log_check.repair)


@app.callback()
def _group() -> None:
    """Look into log files, check and repair them."""


@app.command()
def dump(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files of a data directory, or directories.", show_default=False),
    ],
    records: Annotated[bool, typer.Option("--records", "-r", help="Show the records of .log files.")] = False,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Decode records as cluster metadata, wherever the file is.")
    ] = False,
    output: OutputFormat = Output.TABLE,
) -> None:
    """Print segments, indexes, producer snapshots, checkpoints and cluster metadata; exit 1 when data is corrupt.

    The metadata log and its .checkpoint files are shown with their records decoded.
    """
    from moldau.cli.log_files import dump_file
    from moldau.cli.output import say

    troubles = 0
    printer = _Printer(output)
    for path in _expand(files):
        printer.begin(path)
        for entry in dump_file(path, with_records=records, as_metadata=metadata):
            printer.show(path, entry)
            if entry.kind == "corrupt":
                troubles += 1
                place = f" at byte {entry.fields['position']}" if "position" in entry.fields else ""
                say(f"error: {path}{place}: {entry.fields['reason']}")
    printer.end()
    if troubles:
        raise typer.Exit(EXIT_ERROR)


def _expand(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            if not os.path.exists(path):
                raise CommandError(f"{path}: there is no such file")
            yield path
            continue
        for name in sorted(os.listdir(path)):
            inner = os.path.join(path, name)
            if os.path.isfile(inner) and name not in _FILES_WITHOUT_CONTENT:
                yield inner


class _Printer:
    """Entries as they are found: text by file, or JSON with the file in every object."""

    def __init__(self, output: Output) -> None:
        from moldau.cli.output import JsonEntries

        self._json = None if output is Output.TABLE else JsonEntries(output)
        self._is_first = True

    def begin(self, path: str) -> None:
        if self._json is not None:
            return
        print(path if self._is_first else f"\n{path}")
        self._is_first = False

    def show(self, path: str, entry: Entry) -> None:
        from moldau.cli.output import json_line, write

        if self._json is not None:
            write(self._json.encode([json_line({"file": path, "kind": entry.kind, **entry.fields})]))
            return
        indent = "    " if entry.kind in ("record", "metadata", "control") else "  "
        fields = " ".join(f"{name}={_text(value)}" for name, value in entry.fields.items() if value is not None)
        print(f"{indent}{entry.kind} {fields}".rstrip())

    def end(self) -> None:
        from moldau.cli.output import write

        if self._json is not None:
            write(self._json.end())


def _text(value: Any) -> str:
    from moldau.cli.output import json_line

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # Quoted where it could be misread.
        return value if value and value.isprintable() and " " not in value and '"' not in value else json_line(value)
    return json_line(value)
