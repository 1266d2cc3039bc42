"""A pipeline's Python files: compiled, run, asked for their queries. What goes wrong in one names file, line, cause."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.spark.errors import reason
from moldau.spark.pipelines.errors import PipelineError

if TYPE_CHECKING:
    from moldau.spark.pipelines.pipeline import Pipeline
    from moldau.spark.pipelines.project import Project
    from moldau.spark.pipelines.queries import Query

FUNCTION = "queries"


def check_files(project: Project) -> None:
    """What can be found before a Spark session is paid for."""
    for path in project.files:
        with _blamed(path):
            compile(path.read_text(encoding="utf-8"), str(path), "exec")


def load_queries(project: Project, pipeline: Pipeline) -> list[Query]:
    """Run the files of a pipeline; their folder is where they import from."""
    found: list[Query] = []
    folder = str(project.directory.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for path in project.files:
        with _blamed(path):
            found += _queries_of(path, project.name, pipeline)
    names = [one.name for one in (*found, *pipeline.dead_letter_queries)]
    for name in names:
        if names.count(name) > 1:
            raise PipelineError(
                f"{project.directory} has two queries {name}, which would share one checkpoint: give name='...' to one"
            )
    if not found:
        raise PipelineError(f"{project.directory} has no query: none of its files returns or yields one")
    return found


def _queries_of(path: Path, name: str, pipeline: Pipeline) -> list[Query]:
    from moldau.spark.pipelines.queries import Query

    spec = importlib.util.spec_from_file_location(f"moldau_pipeline_{name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Any = getattr(module, FUNCTION, None)
    if not callable(function):
        raise PipelineError(f"{path}:1: there is no function {FUNCTION}(pipeline)")
    returned = function(pipeline)
    queries = [returned] if isinstance(returned, Query) else list(returned or ())
    code = getattr(function, "__code__", None)
    line = 1 if code is None else code.co_firstlineno
    for one in queries:
        if not isinstance(one, Query):
            raise PipelineError(
                f"{path}:{line}: {FUNCTION} gave a {type(one).__name__}: end it with to_topic(...), to_table(...) or "
                "to_function(...)"
            )
    return queries


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    try:
        yield
    except SyntaxError as error:
        raise PipelineError(f"{path}:{error.lineno or 1}: {error.msg}") from error
    except Exception as error:
        line = _line_in(path, error)
        if isinstance(error, PipelineError):
            if line is None or str(path) in str(error):
                raise
            raise PipelineError(f"{path}:{line}: {error}") from error
        told = reason(error)
        cause = told if told.startswith(type(error).__name__) else f"{type(error).__name__}: {told}"
        raise PipelineError(f"{path}:{line or 1}: {cause}") from error


def _line_in(path: Path, error: BaseException) -> int | None:
    """The deepest line of the file that the error went through."""
    where = path.resolve()
    same = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() == where
    ]
    return same[-1] if same else None
