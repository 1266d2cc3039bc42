"""A pipeline's folder: what it says, what is wrong with it, how its queries are and begin again. No Spark here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moldau.spark.pipelines import PipelineError
from moldau.spark.pipelines.loading import check_files
from moldau.spark.pipelines.project import read_project, write_project
from moldau.spark.pipelines.running import Running, read_running
from moldau.spark.pipelines.status import BACKOFF_SECONDS_MAX, STEADY_SECONDS, Run, after_failure, status_of


def folder(path: Path, text: str, code: str = "def queries(pipeline): return []\n") -> Path:
    (path / "pipeline.toml").write_text(text)
    (path / "orders.py").write_text(code)
    return path


def test_what_init_writes_can_be_read(tmp_path: Path) -> None:
    write_project(tmp_path / "shop")
    project = read_project(tmp_path / "shop")
    assert (project.name, project.master, project.bootstrap) == ("shop", "local[*]", "127.0.0.1:9092")
    assert project.spark == {"spark.sql.shuffle.partitions": "4"}
    assert project.checkpoints == str(tmp_path / "shop" / ".moldau" / "checkpoints")
    check_files(project)
    with pytest.raises(PipelineError, match="there already"):
        write_project(tmp_path / "shop")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name = "a"\nfiels = ["orders.py"]\n', r"pipeline\.toml:2: there is no key fiels; did you mean files\?"),
        ('name = "a"\nfiles = ["other.py"]\n', r"pipeline\.toml:2: there is no file .*other\.py"),
        ('name = "a"\n', r"pipeline\.toml:1: files must name Python files"),
        ('files = ["orders.py"]\n\nname = 3\n', r"pipeline\.toml:3: name must be a text"),
        ('files = ["orders.py"]\n[spark]\nspark.sql.x = 3\n', r"pipeline\.toml:2: write names in \[spark\] in quotes"),
        ('name = "a\n', r"pipeline\.toml: .*line 1"),
        ('files = ["orders.py"]\nname = "my shop"\n', r"pipeline\.toml:2: a pipeline cannot be named 'my shop'"),
        ('files = ["orders.py"]\nmaster = "loca[2]"\n', r"pipeline\.toml:2: master 'loca\[2\]' is none: write local"),
        (
            'files = ["orders.py"]\nevery = "10 parsecs"\n',
            r"pipeline\.toml:2: every '10 parsecs' is none: write a time",
        ),
    ],
)
def test_what_is_wrong_in_the_toml_is_told_with_its_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=told):
        read_project(folder(tmp_path, text))


@pytest.mark.parametrize("every", ["2 seconds", "1 minute 30 seconds", "500 milliseconds", "1 hour"])
@pytest.mark.parametrize("master", ["local", "local[2,4]", "spark://host:7077", "k8s://https://host", "yarn"])
def test_times_and_masters_that_spark_knows_are_taken(every: str, master: str, tmp_path: Path) -> None:
    project = read_project(folder(tmp_path, f'files = ["orders.py"]\nevery = "{every}"\nmaster = "{master}"\n'))
    assert (project.every, project.master) == (every, master)


def test_a_folder_of_any_name_has_a_pipeline_that_can_run(tmp_path: Path) -> None:
    write_project(tmp_path / 'my "own" shop')
    assert read_project(tmp_path / 'my "own" shop').name == 'my-"own"-shop'


def test_a_folder_without_a_pipeline_is_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="`moldau pipeline init"):
        read_project(tmp_path)


def test_a_syntax_error_is_found_before_spark_is_started(tmp_path: Path) -> None:
    project = read_project(folder(tmp_path, 'files = ["orders.py"]\n', "def queries(pipeline):\n    return [\n"))
    with pytest.raises(PipelineError, match=r"orders\.py:2: '\[' was never closed"):
        check_files(project)


def test_a_status_is_read_from_what_spark_reports() -> None:
    progress = {
        "batchId": 7,
        "inputRowsPerSecond": 12.34,
        "processedRowsPerSecond": float("nan"),
        "durationMs": {"triggerExecution": 250},
        "eventTime": {"watermark": "2026-11-18T10:00:00.000Z"},
        "stateOperators": [{"numRowsTotal": 3}, {"numRowsTotal": 4}],
        "sources": [
            {"endOffset": '{"orders":{"0":10,"1":5}}', "latestOffset": '{"orders":{"0":12,"1":5,"2":9}}'},
            {"endOffset": "17", "latestOffset": None},
        ],
    }
    status = status_of("counts", "running", progress)
    assert (status.batch, status.input_rows_per_second, status.processed_rows_per_second) == (7, 12.3, None)
    assert (status.batch_ms, status.lag, status.state_rows) == (250, 2, 7)
    assert status.watermark == "2026-11-18T10:00:00.000Z"
    assert status_of("counts", "running", None).lag is None


def test_a_query_that_fails_waits_longer_each_time_until_it_ran_steadily() -> None:
    run = Run(began_at=0.0)
    waits = []
    for _ in range(9):
        run = after_failure(run, now=run.began_at + 1)
        assert run.begin_at is not None
        waits.append(run.begin_at - (run.began_at + 1))
    assert waits[:4] == [1, 2, 4, 8] and waits[-1] == BACKOFF_SECONDS_MAX
    steady = after_failure(run, now=run.began_at + STEADY_SECONDS)
    assert steady.failures == 1


def test_a_folder_has_one_run_and_what_a_killed_one_left_is_nobody_s(tmp_path: Path) -> None:
    run = Running(tmp_path, "shop")
    run.begin()
    run.tell([{"name": "orders", "state": "running"}])
    told = read_running(tmp_path)
    assert told is not None and (told["pid"], told["name"], len(told["queries"])) == (os.getpid(), "shop", 1)
    with pytest.raises(PipelineError, match="shop runs already"):
        Running(tmp_path, "shop").begin()
    left = (tmp_path / ".moldau" / "running.json").read_text()
    run.end()
    assert read_running(tmp_path) is None
    # As a kill leaves it: the pid is that of a living process, which is no pipeline.
    (tmp_path / ".moldau" / "running.json").write_text(left)
    assert read_running(tmp_path) is None
    Running(tmp_path, "shop").begin()
