"""A fault and a SIGKILL under load: each input is in every sink of a pipeline exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import pipeline_kills
from tests.postgres import Postgres


@pytest.mark.timeout(600)
def test_each_input_is_in_every_sink_once_whatever_breaks_under_the_pipeline(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with Postgres() as postgres:
        # `make faults-pipelines` does it twenty times.
        pipeline_kills.run(tmp_path, postgres, [(dice.choice(pipeline_kills.FAULTS), "driver")], dice)
