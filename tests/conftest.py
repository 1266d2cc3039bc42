"""What every test may ask for. Keep it small: fixtures of one package live in that package's own conftest."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# `from tests.oracle import ...` and `from tools... import ...` work whichever way pytest was started.
ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# No test depends on how fast the machine is.
settings.register_profile("moldau", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("moldau")

# A shell has what it starts in the background ignore Ctrl-C, and all that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.oracle import RunningKafka, require_oracle, shared_kafka  # noqa: E402
from tests.spark.quick_jvm import quick_jvm  # noqa: E402

# Also for what documents and commands start.
os.environ["SPARK_SUBMIT_OPTS"] = quick_jvm()


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKafka]:
    """The Apache Kafka that all tests of this run share, also over xdist workers: use topic names of your own."""
    require_oracle()
    base = tmp_path_factory.getbasetemp()
    run = base.parent if base.name.startswith("popen-") else base
    with shared_kafka(run / "apache-kafka") as kafka:
        yield kafka
