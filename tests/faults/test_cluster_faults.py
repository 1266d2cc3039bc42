"""A few of `make faults`: three brokers on hosts of their own lose nothing, whatever happens to one of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.faults.hosts import why_not
from tests.oracle import ROOT

FAULTS = ("kill", "pause", "stop", "isolate")


def test_three_brokers_lose_nothing_whatever_happens_to_one_of_them() -> None:
    if reason := why_not():
        (pytest.fail if os.environ.get("MOLDAU_TEST_STRICT") == "1" else pytest.skip)(reason)
    chosen = [word for name in FAULTS for word in ("--fault", name)]
    command = [sys.executable, "-m", "tests.faults.cluster_faults", "--rounds", "1", *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and "no anomalies in" in done.stdout
