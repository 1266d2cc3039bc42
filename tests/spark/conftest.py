"""A Spark session for the tests of this folder, one per worker of the run, and the two brokers that they read from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.spark.spark_session import CHEAP_CHECKPOINTS, WORKERS, choose_python
from moldau.testing import Broker
from tests.oracle import ROOT, RunningKafka
from tests.postgres import Postgres
from tests.spark.clusters import Cluster
from tests.spark.pipeline import Pipeline

CONNECTOR_JARS = ROOT / ".cache" / "spark-connector" / "libs"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two slots, no web page, few shuffle partitions: as small as a real Spark gets."""
    choose_python(master := "local[2,2]")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    home = tmp_path_factory.mktemp("spark")
    jars = sorted(str(jar) for jar in CONNECTOR_JARS.glob("*.jar"))
    session = (
        # A task that fails is tried once more, as on a cluster.
        SparkSession.builder.master(master)
        .appName("moldau-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={Path(home)}")
        .config(map={**WORKERS, **CHEAP_CHECKPOINTS})
        .config("spark.jars", ",".join(jars))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def moldau_cluster() -> Iterator[Cluster]:
    with Broker() as broker:
        yield Cluster("moldau", broker.bootstrap, broker.data)


@pytest.fixture
def kafka_cluster(apache_kafka: RunningKafka) -> Cluster:
    return Cluster("kafka", apache_kafka.bootstrap, apache_kafka.log_dir)


@pytest.fixture(params=["moldau", "kafka"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Once Moldau, once Apache Kafka."""
    found: Cluster = request.getfixturevalue(f"{request.param}_cluster")
    return found


@pytest.fixture(scope="session")
def connector() -> None:
    """Spark's own connector for Kafka, whose jars the session has loaded."""
    if not any(CONNECTOR_JARS.glob("spark-sql-kafka*.jar")):
        complain = pytest.fail if os.environ.get("MOLDAU_TEST_STRICT") == "1" else pytest.skip
        complain("no jars of Spark's connector: run tools/install-test-tools")


@pytest.fixture
def pipeline(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, cluster, tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A server for all tests of a worker: each has tables of its own."""
    with Postgres() as server:
        yield server
