"""`/metrics` for Prometheus and `/healthz`, on `moldau.http.listener`, off the hot path.

Nothing is measured here: counters are plain integers that the broker keeps anyway, read when somebody asks. Names are
those of kafka_exporter and of Kafka's JMX exporters, so that existing dashboards work.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.broker.node import Node

REQUEST_BYTES_MAX = 8 << 10
REQUEST_SECONDS_MAX = 10.0
RENDER_TRIES_MAX = 5
_BROKER_TOPIC = "kafka_server_brokertopicmetrics"


class HttpListener:
    """A server for two paths. HTTP/1.1, one request per connection."""

    def __init__(self, node: Node, host: str, port: int) -> None:
        self._node = node
        self._host = host
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, self._wanted_port, limit=REQUEST_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._answer(head)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # whoever does not finish its request gets no answer
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return "405 Method Not Allowed", "text/plain", b"only GET is served\n"
        if path == b"/healthz":
            if self._node.is_stopping:
                return "503 Service Unavailable", "text/plain", b"stopping\n"
            return "200 OK", "text/plain", b"ok\n"
        if path == b"/metrics":
            # In a thread: a broker with thousands of partitions has many lines, and the loop has clients.
            kind, body = await asyncio.get_running_loop().run_in_executor(None, _render, self._node)
            return "200 OK", kind, body
        return "404 Not Found", "text/plain", b"try /metrics or /healthz\n"


def _render(node: Node) -> tuple[str, bytes]:
    """Read from another thread: numbers may be a moment apart, and a map that changes meanwhile is read again."""
    import prometheus_client

    for _ in range(RENDER_TRIES_MAX):
        try:
            return prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(_Collector(node))
        except RuntimeError:
            continue
    return "text/plain", b""


class _Collector:
    """The node's state as metric families."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield from self._cluster(GaugeMetricFamily)
        yield from self._replication(GaugeMetricFamily, CounterMetricFamily)
        yield from self._traffic(CounterMetricFamily)
        yield from self._server(GaugeMetricFamily, CounterMetricFamily)
        from moldau.broker.log_metrics import log_families
        from moldau.broker.quorum_metrics import controller_families, quorum_families

        yield from controller_families(self._node, GaugeMetricFamily, CounterMetricFamily)
        yield from quorum_families(self._node, GaugeMetricFamily)
        yield from log_families(self._node, GaugeMetricFamily, CounterMetricFamily)
        groups = self._node.groups_in_use
        if groups is not None:
            from moldau.broker.group_metrics import group_families

            yield from group_families(self._node, groups, GaugeMetricFamily, CounterMetricFamily)
        transactions = self._node.transactions_in_use
        if transactions is not None:
            from moldau.broker.transaction_metrics import transaction_families

            yield from transaction_families(self._node, transactions, GaugeMetricFamily, CounterMetricFamily)

    def _cluster(self, gauge: Any) -> Iterator[Any]:
        node, image = self._node, self._node.image
        yield gauge("kafka_brokers", "Brokers of the cluster.", value=len(image.brokers))
        info = gauge("kafka_broker_info", "A broker and its address.", labels=["id", "address"])
        for broker in image.brokers.values():
            for endpoint in broker.endpoints[:1]:
                info.add_metric([str(broker.node_id), f"{endpoint.host}:{endpoint.port}"], 1)
        yield info
        counts = gauge("kafka_topic_partitions", "Partitions of a topic.", labels=["topic"])
        labels = ["topic", "partition"]
        families = {
            name: gauge(f"kafka_topic_partition_{name}", help_text, labels=labels)
            for name, help_text in (
                ("current_offset", "End of the visible log: the high watermark."),
                ("oldest_offset", "Start of the log."),
                ("in_sync_replica", "Replicas that are in sync."),
                ("leader", "The leader's id."),
                ("leader_is_preferred", "Whether the first replica leads."),
                ("replicas", "Replicas."),
                ("under_replicated_partition", "Whether a replica is not in sync."),
            )
        }
        sizes = gauge("kafka_log_log_size", "Bytes of a partition's log.", labels=labels)
        under = leading = held = under_min = at_min = 0
        under_min_isr = gauge(
            "kafka_cluster_partition_underminisr", "Fewer in sync than min.insync.replicas.", labels=labels
        )
        at_min_isr = gauge("kafka_cluster_partition_atminisr", "Exactly min.insync.replicas in sync.", labels=labels)
        replica_counts = gauge("kafka_cluster_partition_replicascount", "Replicas of a partition.", labels=labels)
        unstable = gauge(
            "kafka_cluster_partition_laststableoffsetlag", "Records that wait for a transaction's end.", labels=labels
        )
        for topic in image.topics.values():
            counts.add_metric([topic.name], len(topic.partitions))
            replicas = node.replicas.by_name(topic.name) or []
            for index, assigned in enumerate(topic.partitions):
                where = [topic.name, str(index)]
                lagging = len(assigned.isr) < len(assigned.replicas)
                families["in_sync_replica"].add_metric(where, len(assigned.isr))
                families["leader"].add_metric(where, assigned.leader)
                families["leader_is_preferred"].add_metric(where, assigned.leader == assigned.replicas[0])
                families["replicas"].add_metric(where, len(assigned.replicas))
                families["under_replicated_partition"].add_metric(where, lagging)
                replica_counts.add_metric(where, len(assigned.replicas))
                partition = replicas[index] if index < len(replicas) else None
                if partition is None:
                    continue
                held += 1
                sizes.add_metric(where, partition.log.size_bytes)
                families["oldest_offset"].add_metric(where, partition.log.start_offset)
                if partition.leader is not None:
                    leading += 1
                    under += lagging
                    families["current_offset"].add_metric(where, partition.high_watermark)
                    is_under, is_at = partition.leader.is_under_min_isr, partition.leader.is_at_min_isr
                    under_min, at_min = under_min + is_under, at_min + is_at
                    under_min_isr.add_metric(where, is_under)
                    unstable.add_metric(where, partition.high_watermark - partition.last_stable_offset)
                    at_min_isr.add_metric(where, is_at)
        yield from (counts, *families.values(), sizes, under_min_isr, at_min_isr, replica_counts, unstable)
        manager = "kafka_server_replicamanager"
        yield gauge(f"{manager}_leadercount", "Partitions that this broker leads.", value=leading)
        yield gauge(f"{manager}_partitioncount", "Partitions that this broker holds.", value=held)
        yield gauge(f"{manager}_underreplicatedpartitions", "Led partitions with a replica out of sync.", value=under)
        yield gauge(f"{manager}_underminisrpartitioncount", "Led partitions that commit nothing now.", value=under_min)
        yield gauge(f"{manager}_atminisrpartitioncount", "Led partitions that can lose no replica more.", value=at_min)

    def _replication(self, gauge: Any, counter: Any) -> Iterator[Any]:
        node = self._node
        for name, value, help_text in (
            ("isrshrinks", node.metrics.isr_shrinks, "Times that a replica left the in-sync set of a led partition."),
            ("isrexpands", node.metrics.isr_expands, "Times that a replica joined the in-sync set of a led partition."),
        ):
            yield counter(f"kafka_server_replicamanager_{name}", help_text, value=value)
        lag = gauge(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "Committed records that a followed partition does not have yet.",
            labels=["topic", "partition"],
        )
        most = 0
        for partition, records in node.replication.lags():
            lag.add_metric([partition.topic, str(partition.index)], records)
            most = max(most, records)
        yield lag
        fetchers = "kafka_server_replicafetchermanager"
        yield gauge(f"{fetchers}_maxlag", "The largest lag of a followed partition.", value=most)
        yield gauge(
            f"{fetchers}_failedpartitionscount",
            "Followed partitions whose last fetch was refused.",
            value=node.replication.failed_count,
        )

    def _traffic(self, counter: Any) -> Iterator[Any]:
        metrics = self._node.metrics
        for name, attribute, help_text in (
            ("messagesin", "messages_in", "Records produced."),
            ("bytesin", "bytes_in", "Bytes produced."),
            ("bytesout", "bytes_out", "Bytes fetched."),
            ("replicationbytesin", "replication_bytes_in", "Bytes fetched from leaders elsewhere."),
            ("replicationbytesout", "replication_bytes_out", "Bytes fetched by followers elsewhere."),
        ):
            family = counter(f"{_BROKER_TOPIC}_{name}", help_text, labels=["topic"])
            for topic, counters in metrics.topics.items():
                family.add_metric([topic], getattr(counters, attribute))
            yield family
        for name, value, help_text in (
            ("totalproducerequests", metrics.produce_requests, "Produce requests."),
            ("totalfetchrequests", metrics.fetch_requests, "Fetch requests."),
            ("failedproducerequests", metrics.failed_produce_requests, "Produce requests with an error."),
            ("failedfetchrequests", metrics.failed_fetch_requests, "Fetch requests with an error."),
        ):
            yield counter(f"{_BROKER_TOPIC}_{name}", help_text, value=value)

    def _server(self, gauge: Any, counter: Any) -> Iterator[Any]:
        node = self._node
        connections = sum(len(listener.connections) for listener in node.listeners)
        yield gauge("kafka_server_socket_server_metrics_connection_count", "Open connections.", value=connections)
        idle = 1.0 - node.housekeeping.busy_fraction
        yield gauge(
            "kafka_network_socketserver_networkprocessoravgidle_percent", "Idle share of the event loop.", value=idle
        )
        yield gauge(
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
            "Idle share of the event loop, which handles requests too.",
            value=idle,
        )
        requests = counter("moldau_requests", "Requests by API key.", labels=["api_key"])
        totals: dict[int, int] = {}
        for dispatcher in node.listeners.dispatchers:
            for key, count in dispatcher.request_counts.items():
                totals[key] = totals.get(key, 0) + count
        for key, count in sorted(totals.items()):
            requests.add_metric([str(key)], count)
        yield requests
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield counter("process_cpu_seconds", "Processor time used.", value=usage.ru_utime + usage.ru_stime)
        yield gauge("process_resident_memory_bytes", "Resident memory.", value=_resident_bytes())
        yield gauge("process_open_fds", "Open file descriptors.", value=len(os.listdir("/proc/self/fd")))


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
