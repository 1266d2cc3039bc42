"""What the metrics and `topic describe --sizes` say of logs and disks."""

from __future__ import annotations

import math
import urllib.request
from pathlib import Path

from moldau.broker.space_trend import SAMPLE_MS, SpaceTrend
from moldau.testing import Broker
from tests.broker.test_produce_and_fetch import batch_of, create, produce
from tests.cli.conftest import Moldau
from tests.differential.wire import Wire
from tests.robustness.kit import wait_until


def metrics_of(broker: Broker) -> dict[str, float]:
    assert broker.node is not None and broker.node.http is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.node.http.port}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_logs_and_disks_are_measured(tmp_path: Path) -> None:
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]
    settings = {"log.dirs": ",".join(paths), "moldau.http.listener": "127.0.0.1:0"}
    with Broker(settings) as broker:
        wire = Wire(broker.bootstrap)
        create(wire, "t", **{"cleanup.policy": "delete"})
        for second in range(3):
            wire.ask(produce("t", batch_of(b"x", timestamp=1_700_000_000_000 + 1000 * second)), 9)
        (topic,) = Moldau(broker.bootstrap)("topic", "describe", "t", "--sizes", "-o", "json").json
        (partition,) = topic["partitions"]
        assert partition["bytes"] == 3 * len(batch_of(b"x"))
        assert partition["directories"][0].removeprefix("1:") in paths

        found = metrics_of(broker)
        where = '{partition="0",topic="t"}'
        assert found[f"kafka_log_log_numlogsegments{where}"] == 1
        assert found[f"moldau_log_oldest_record_timestamp_seconds{where}"] == 1_700_000_000
        assert found[f"moldau_log_newest_record_timestamp_seconds{where}"] == 1_700_000_002
        assert found["kafka_log_logmanager_offlinelogdirectorycount"] == 0
        assert all(found[f'moldau_log_directory_free_bytes{{logdirectory="{path}"}}'] > 0 for path in paths)

        assert broker.node is not None
        failing = next(each for each in broker.node.replicas.directories if each.path == paths[1])
        broker.node.loop.call_soon_threadsafe(broker.node.replicas.disk_faults.take_offline, failing, "a test")
        assert wait_until(lambda: metrics_of(broker)["kafka_log_logmanager_offlinelogdirectorycount"] == 1)
        assert metrics_of(broker)[f'kafka_log_logmanager_logdirectoryoffline{{logdirectory="{paths[1]}"}}'] == 1


def test_a_disk_that_fills_lasts_as_long_as_its_rate_says() -> None:
    trend = SpaceTrend()
    assert trend.seconds_until_full(0, 1000) == math.inf
    for tick in range(100):
        trend.note(tick * SAMPLE_MS, 100_000 - 100 * tick)
    # 100 bytes in ten seconds.
    assert trend.seconds_until_full(99 * SAMPLE_MS, 100_000 - 9_900) == (100_000 - 9_900) / 10
    assert trend.seconds_until_full(99 * SAMPLE_MS, 10**9) == math.inf, "there is more room than before"
