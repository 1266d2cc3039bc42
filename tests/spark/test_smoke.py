"""pyspark 4.3, in an environment of its own that `make test` makes."""

from __future__ import annotations

import subprocess

from tests.clients.needs import missing
from tests.oracle import ROOT

PYTHON = ROOT / ".cache" / "spark-4.3" / "bin" / "python"


def test_source_sink_and_exactly_once_work_on_pyspark_4_3() -> None:
    if not PYTHON.exists():
        missing("no environment with pyspark 4.3: run make test")
    command = [str(PYTHON), "-m", "tests.spark.smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "pyspark 4.3.0: source, sink and exactly once work" in done.stdout, done.stderr
