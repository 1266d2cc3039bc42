"""A pipeline as a folder: `pipeline.toml` says what it is called and where it runs, Python files what it does.

    name = "shop"
    bootstrap = "127.0.0.1:9092"
    files = ["orders.py"]

Each file has a function `queries(pipeline)` that returns or yields queries. What is wrong with a folder is one line
with the file, the line and the cause. Nothing here needs Spark; `loading` runs the files.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moldau.spark.pipelines.errors import PipelineError

FILE = "pipeline.toml"
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_KEYS = ("name", "bootstrap", "files", "checkpoints", "master", "every", "spark", "options")
_MASTER = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")
_TIME = re.compile(r"(\d+ *(millisecond|second|minute|hour|day)s? *)+")
_NAME_NEVER = re.compile(r"[/\\\s]")


@dataclass(frozen=True, slots=True)
class Project:
    """What `pipeline.toml` says, checked."""

    directory: Path
    name: str
    files: tuple[Path, ...]
    bootstrap: str = DEFAULT_BOOTSTRAP
    checkpoints: str = ""
    master: str | None = None
    every: str | None = None  # how often a batch; None: as soon as there is something
    spark: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)


def read_project(directory: str | Path) -> Project:
    folder = Path(directory)
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineError(
            f"{folder} is no pipeline: it has no {FILE}; `moldau pipeline init {folder}` makes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} cannot be read: {error}") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(f"{path}: {error}") from error
    for key in found:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(_KEYS)}"
            raise PipelineError(f"{path}:{_line_of(text, key)}: there is no key {key}; {hint}")

    def text_of(key: str, default: str | None = None) -> str | None:
        value = found.get(key, default)
        if value is not None and (not isinstance(value, str) or not value):
            raise PipelineError(f"{path}:{_line_of(text, key)}: {key} must be a text")
        return value

    def pairs_of(key: str) -> dict[str, str]:
        value = found.get(key, {})
        if not isinstance(value, dict) or any(isinstance(one, dict | list) for one in value.values()):
            raise PipelineError(
                f'{path}:{_line_of(text, key)}: write names in [{key}] in quotes, as "spark.sql.shuffle.partitions" = 4'
            )
        return {name: _setting(one) for name, one in value.items()}

    def checked(key: str, rule: re.Pattern[str], wanted: str) -> str | None:
        value = text_of(key)
        if value is not None and not rule.fullmatch(value):
            raise PipelineError(f"{path}:{_line_of(text, key)}: {key} {value!r} is none: {wanted}")
        return value

    files = found.get("files", [])
    if not isinstance(files, list) or not files or not all(isinstance(one, str) for one in files):
        raise PipelineError(f'{path}:{_line_of(text, "files")}: files must name Python files, as ["orders.py"]')
    for one in files:
        if not (folder / one).is_file():
            raise PipelineError(f"{path}:{_line_of(text, 'files')}: there is no file {folder / one}")
    name = text_of("name", folder.resolve().name) or ""
    if _NAME_NEVER.search(name):
        raise PipelineError(f"{path}:{_line_of(text, 'name')}: {_name_error(name)}")
    return Project(
        folder,
        name,
        tuple(folder / one for one in files),
        text_of("bootstrap", DEFAULT_BOOTSTRAP) or "",
        text_of("checkpoints") or str((folder / ".moldau" / "checkpoints").resolve()),
        checked("master", _MASTER, MASTERS),
        checked("every", _TIME, "write a time, such as 10 seconds"),
        pairs_of("spark"),
        pairs_of("options"),
    )


MASTERS = "write local[*], local[4], spark://host:7077, k8s://... or yarn"


def is_master(text: str) -> bool:
    """Whether Spark may know where that is."""
    return _MASTER.fullmatch(text) is not None


def check_name(name: str) -> None:
    """PipelineError when it cannot be a pipeline's."""
    if not name or _NAME_NEVER.search(name):
        raise PipelineError(_name_error(name))


def _name_error(name: str) -> str:
    return f"a pipeline cannot be named {name!r}: it names directories and transactions"


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _line_of(text: str, key: str) -> int:
    """Where a key stands, for people; the first line when it is written in a way of its own."""
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf'\s*\[?"?{re.escape(key)}\b', line):
            return number
    return 1


TEMPLATE = """\
name = {name}
bootstrap = "127.0.0.1:9092"
files = ["orders.py"]
# Where Spark runs; a cluster's URL here, or with --master.
master = "local[*]"
# checkpoints = "s3a://bucket/checkpoints"   # else below .moldau; on a cluster, where every machine sees it
# every = "10 seconds"                       # else a batch as soon as there is something

[spark]
"spark.sql.shuffle.partitions" = 4
"""

EXAMPLE = '''\
"""Orders by user and minute, into a table that `moldau table serve orders_by_user` answers from."""

from pyspark.sql import functions as F

from moldau.spark.pipelines import Pipeline

ORDER = "id BIGINT, user STRING NOT NULL, amount DOUBLE, at TIMESTAMP"


def queries(pipeline: Pipeline):
    orders = pipeline.stream("orders", ORDER, dead_letters="orders-dead-letters")
    by_user = orders.watermark("at", "1 minute").tumbling("1 minute", by="user")
    yield by_user.agg(count=F.count("*"), total=F.sum("amount")).to_table("orders_by_user")
'''


def write_project(directory: Path) -> list[Path]:
    """A pipeline to begin with."""
    name = _NAME_NEVER.sub("-", directory.resolve().name)
    written = {FILE: TEMPLATE.format(name=json.dumps(name)), "orders.py": EXAMPLE, ".gitignore": ".moldau/\n"}
    there = [name for name in written if (directory / name).exists()]
    if there:
        raise PipelineError(f"{directory / there[0]} is there already: choose another folder")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in written]
