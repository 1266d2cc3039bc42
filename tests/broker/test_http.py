"""Metrics and health over HTTP."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.testing import Broker

SECONDS_MAX = 20


def get(broker: Broker, path: str) -> str:
    assert broker.node is not None and broker.node.http is not None
    url = f"http://127.0.0.1:{broker.node.http.port}{path}"
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
        return str(answer.read().decode())


def test_metrics_have_the_names_that_dashboards_know() -> None:
    with Broker({"moldau.http.listener": "127.0.0.1:0"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _ in range(3):
            producer.produce("orders", b"x" * 100, partition=0)
            producer.flush(SECONDS_MAX)
        metrics = {}
        for line in get(broker, "/metrics").splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                metrics[name] = float(value)
        where = '{partition="0",topic="orders"}'
        assert metrics["kafka_brokers"] == 1
        assert metrics[f"kafka_topic_partition_current_offset{where}"] == 3
        assert metrics[f"kafka_topic_partition_oldest_offset{where}"] == 0
        assert metrics[f"kafka_topic_partition_in_sync_replica{where}"] == 1
        assert metrics[f"kafka_topic_partition_under_replicated_partition{where}"] == 0
        assert metrics[f"kafka_log_log_size{where}"] > 300
        assert metrics['kafka_server_brokertopicmetrics_messagesin_total{topic="orders"}'] == 3
        assert metrics['kafka_server_brokertopicmetrics_bytesin_total{topic="orders"}'] > 300
        assert metrics["kafka_server_brokertopicmetrics_totalproducerequests_total"] == 3
        assert metrics["kafka_server_replicamanager_leadercount"] == 1
        assert metrics["kafka_controller_kafkacontroller_activecontrollercount"] == 1
        controller = "kafka_controller_kafkacontroller"
        assert metrics[f"{controller}_activebrokercount"] == metrics[f"{controller}_globaltopiccount"] == 1
        assert metrics[f"{controller}_fencedbrokercount"] == metrics[f"{controller}_offlinepartitionscount"] == 0
        assert metrics[f"{controller}_globalpartitioncount"] == 1
        assert metrics["kafka_controller_controllerstats_uncleanleaderelections_total"] == 0
        raft = "kafka_server_raftmetrics"
        assert metrics[f"{raft}_current_leader"] == metrics[f"{raft}_number_of_voters"] == 1
        assert metrics[f'{raft}_current_state{{current_state="leader"}}'] == 1
        assert metrics[f"{raft}_high_watermark"] == metrics[f"{raft}_log_end_offset"] > 0
        assert metrics["kafka_server_socket_server_metrics_connection_count"] >= 1
        assert metrics["process_open_fds"] > 0
        assert 0 <= metrics["kafka_network_socketserver_networkprocessoravgidle_percent"] <= 1


def test_health_is_ok_and_other_paths_are_not_found() -> None:
    with Broker({"moldau.http.listener": "127.0.0.1:0"}) as broker:
        assert get(broker, "/healthz") == "ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(broker, "/other")


def test_an_empty_listener_serves_nothing_and_a_taken_port_costs_a_line_only() -> None:
    with Broker({"moldau.http.listener": ""}) as broker:
        assert broker.node is not None and broker.node.http is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Broker({"moldau.http.listener": f"127.0.0.1:{port}"}) as broker:
            assert any(line.startswith("http_unavailable") for line in broker.log)


def test_groups_show_their_offsets_lag_and_rebalances() -> None:
    with Broker({"moldau.http.listener": "127.0.0.1:0", "num.partitions": "2"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(10):
            producer.produce("orders", b"x", partition=number % 2)
        producer.flush(SECONDS_MAX)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing", "enable.auto.commit": False})
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.05)
        offsets = [TopicPartition("orders", 0, 2), TopicPartition("orders", 1, 4)]
        consumer.commit(offsets=offsets, asynchronous=False)
        lines = get(broker, "/metrics").splitlines()
        assert broker.node is not None
        (group,) = (each for machine in broker.node.groups.coordinator.machines() for each in machine.groups.values())
        total_ms = group.history.total_ms
        consumer.close()
    metrics = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    where = '{consumergroup="billing",partition="0",topic="orders"}'
    assert metrics[f"kafka_consumergroup_current_offset{where}"] == 2
    assert metrics[f"kafka_consumergroup_lag{where}"] == 3
    assert metrics['kafka_consumergroup_lag_sum{consumergroup="billing",topic="orders"}'] == 3 + 1
    assert metrics['kafka_consumergroup_current_offset_sum{consumergroup="billing",topic="orders"}'] == 2 + 4
    assert metrics['kafka_consumergroup_members{consumergroup="billing"}'] == 1
    assert metrics['moldau_consumergroup_state{consumergroup="billing",state="Stable"}'] == 1
    assert metrics['moldau_consumergroup_rebalances_total{consumergroup="billing"}'] == 1
    seconds = metrics['moldau_consumergroup_rebalance_seconds_total{consumergroup="billing"}']
    assert 0 < seconds == total_ms / 1000


def test_metrics_tell_of_open_transactions_and_of_how_they_ended() -> None:
    with Broker({"moldau.http.listener": "127.0.0.1:0"}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "one"}
        producer = Producer(settings)
        producer.init_transactions(SECONDS_MAX)
        for end in (producer.commit_transaction, producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.produce("orders", b"x", partition=0)
            producer.flush(SECONDS_MAX)
            end(SECONDS_MAX)
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("orders", b"x", partition=0)
        assert producer.flush(SECONDS_MAX) == 0
        metrics = dict(line.rsplit(" ", 1) for line in get(broker, "/metrics").splitlines() if line[0] != "#")
        assert float(metrics["moldau_transactions_open"]) == 1
        assert float(metrics["moldau_transaction_oldest_age_seconds"]) >= 0
        assert float(metrics["moldau_transactions_committed_total"]) == 2
        assert float(metrics["moldau_transactions_aborted_total"]) == 1
        lag = 'kafka_cluster_partition_laststableoffsetlag{partition="0",topic="orders"}'
        assert float(metrics[lag]) == 3
        producer.abort_transaction(SECONDS_MAX)
        metrics = dict(line.rsplit(" ", 1) for line in get(broker, "/metrics").splitlines() if line[0] != "#")
        assert (float(metrics["moldau_transactions_open"]), float(metrics[lag])) == (0, 0)
