"""SIGKILL under load, of an executor of two and of two drivers: each input is in the output exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from moldau.testing import Broker
from tests.faults import spark_kills
from tests.oracle import RunningKafka
from tests.spark.clusters import Cluster

# Two workers of a standalone cluster, with a process each: source, shuffle and sink are in different ones.
TWO_WORKERS = "local-cluster[2,1,1024]"


@pytest.mark.timeout(600)
def test_each_input_is_in_the_output_once_though_executor_and_drivers_are_killed(
    tmp_path: Path, apache_kafka: RunningKafka
) -> None:
    with Broker() as broker:
        moldau = Cluster("moldau", broker.bootstrap, broker.data)
        kafka = Cluster("kafka", apache_kafka.bootstrap, apache_kafka.log_dir)
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        dice = random.Random(seed)
        # `make faults-spark` runs both kinds on both, and kills twenty times.
        kinds = dice.sample(spark_kills.KINDS, 2)
        drivers = spark_kills.Drivers(tmp_path, list(zip((moldau, kafka), kinds, strict=True)))
        drivers.feed()
        trap = tmp_path / "trap"
        trap.touch()
        try:
            # A task ends its executor after it has produced. Spark tries it again elsewhere, which may not write what
            # is written already: the batch is aborted and done again as a whole.
            drivers.start(TWO_WORKERS)
            drivers.wait_under_load(lambda: not trap.exists() and min(drivers.batches()) > 0)
            assert "batch_aborted" in drivers.said()
            drivers.kill_under_load(dice)
            drivers.start()
            drivers.kill_under_load(dice)
            drivers.start()
            drivers.wait(drivers.is_all_read)
        finally:
            drivers.kill()
        spark_kills.check(drivers)
