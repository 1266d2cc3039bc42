"""`moldau doctor`: from this machine, is the cluster as clients need it? Each check says what it saw and what to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.errors import EXIT_CHECK_FAILED, explain, one_line
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property

if TYPE_CHECKING:
    from moldau.client import ClusterClient, Connection, Node, TopicInfo

app = typer.Typer(add_completion=False)

CONNECT_TIMEOUT_MS = 5_000
SKEW_WARN_MS = 2_000
SKEW_FAIL_MS = 60_000
DISK_WARN_SHARE = 0.15
DISK_FAIL_SHARE = 0.03
_WILDCARDS = ("0.0.0.0", "::", "")


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: Status
    seen: str
    remedy: str | None = None


@app.command()
def doctor(
    write: Annotated[
        bool, typer.Option("--write", help="Also write and read a record, in a topic that is deleted again.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Check a cluster from here: reachable, advertised well, in time, with room. Exit 4 when a check fails."""
    import asyncio

    from moldau.cli.options import parse_pairs
    from moldau.cli.output import show_rows
    from moldau.cli.remote import client_options
    from moldau.client import ClusterClient, parse_bootstrap

    given = parse_pairs(properties, "-X")
    servers = given.get("bootstrap.servers", bootstrap)
    addresses = parse_bootstrap(servers)
    options = {"connect_timeout_ms": CONNECT_TIMEOUT_MS, **client_options(given)}

    async def run() -> list[Finding]:
        findings = await _check_bootstrap(addresses)
        if not any(one.check == "api versions" and one.status is Status.OK for one in findings):
            missed = ["brokers", "advertised", "topics", "versions", "clock", "disk"]
            return findings + [Finding(check, Status.SKIP, "no broker answered") for check in missed]
        async with ClusterClient(servers, **options) as client:
            return findings + await _check_cluster(client, addresses[0], write=write)

    findings = asyncio.run(run())
    rows = [
        {"check": one.check, "status": one.status.value, "seen": one.seen, "remedy": one.remedy} for one in findings
    ]
    if output is Output.TABLE:
        _show(findings)
    else:
        show_rows(output, {}, rows)
    if any(one.status is Status.FAIL for one in findings):
        raise typer.Exit(EXIT_CHECK_FAILED)


def _show(findings: list[Finding]) -> None:
    from moldau.cli.output import colour_allowed

    colours = {Status.OK: "\x1b[32m", Status.WARN: "\x1b[33m", Status.FAIL: "\x1b[31m", Status.SKIP: "\x1b[2m"}
    coloured = colour_allowed()
    width = max(len(one.check) for one in findings)
    for one in findings:
        mark = f"{colours[one.status]}{one.status:<4}\x1b[0m" if coloured else f"{one.status:<4}"
        print(f"{mark}  {one.check.ljust(width)}  {one.seen}")
        if one.remedy is not None:
            print(f"      {''.ljust(width)}  {one.remedy}")


# -- the way in --------------------------------------------------------------------------------------------------------


async def _check_bootstrap(addresses: list[tuple[str, int]]) -> list[Finding]:
    findings: list[Finding] = []
    for host, port in addresses:
        found = await _resolve(host, port)
        findings.append(found)
        if found.status is Status.OK:
            findings += await _greet(host, port)
    # Any one broker is enough to start: the others' failures are warnings then.
    if any(one.check == "api versions" and one.status is Status.OK for one in findings):
        findings = [replace(one, status=Status.WARN) if one.status is Status.FAIL else one for one in findings]
    return findings


async def _resolve(host: str, port: int) -> Finding:
    import asyncio
    import socket

    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Finding(
            "resolve",
            Status.FAIL,
            f"{host} does not resolve ({getattr(error, 'strerror', None) or error})",
            "check the spelling, DNS and /etc/hosts of this machine",
        )
    names = sorted({str(entry[4][0]) for entry in found})
    return Finding("resolve", Status.OK, f"{host} is {', '.join(names)}")


async def _greet(host: str, port: int) -> list[Finding]:
    import asyncio

    from moldau.client import Connection, ConnectionFailed, RequestTimedOut
    from moldau.kernel import KafkaError

    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        connection = await Connection.connect(
            host, port, connect_timeout_ms=CONNECT_TIMEOUT_MS, request_timeout_ms=CONNECT_TIMEOUT_MS
        )
    except (ConnectionFailed, RequestTimedOut, KafkaError) as error:
        # `sent` tells a port where nobody is from one where somebody speaks something else.
        connected = isinstance(error, RequestTimedOut | KafkaError) or error.sent
        if not connected:
            return [Finding("connect", Status.FAIL, explain(error)[0])]
        return [
            Finding("connect", Status.OK, f"{host}:{port} accepts connections"),
            Finding("api versions", Status.FAIL, one_line(str(error)), "check that this is a Kafka PLAINTEXT listener"),
        ]
    spent = (loop.time() - started) * 1000
    connection.close()
    return [
        Finding("connect", Status.OK, f"{host}:{port} accepts connections"),
        Finding("api versions", Status.OK, _versions_text(connection, spent)),
    ]


def _versions_text(connection: Connection, spent_ms: float) -> str:
    from moldau.protocol.messages.registry import API_MESSAGES

    common = sum(1 for key in API_MESSAGES if connection.supports(key))
    return f"answered in {spent_ms:.0f} ms; {common} requests in common"


# -- inside the cluster ------------------------------------------------------------------------------------------------


async def _check_cluster(client: ClusterClient, bootstrap: tuple[str, int], *, write: bool) -> list[Finding]:
    metadata = await client.metadata(None)
    nodes = [metadata.nodes[node] for node in sorted(metadata.nodes)]
    findings = [
        Finding(
            "brokers", Status.OK, f"{len(nodes)} in cluster {metadata.cluster_id}, controller {metadata.controller_id}"
        )
        if nodes
        else Finding("brokers", Status.FAIL, "the cluster names no broker", "check that brokers are registered")
    ]
    advertised = [await _check_advertised(node, bootstrap, metadata.cluster_id) for node in nodes]
    findings += advertised
    findings.append(_check_topics(metadata.topics.values()))
    reachable = nodes and all(one.status is not Status.FAIL for one in advertised)
    checks: list[tuple[str, Callable[[ClusterClient], Awaitable[Finding]]]] = [
        ("versions", _check_versions),
        ("clock", _check_clock),
        ("disk", _check_disk),
    ]
    if write:
        checks.append(("round trip", _check_round_trip))
    for name, check in checks:
        # Whatever goes to a given broker would only fail in the same way again.
        if not reachable and name in ("disk", "round trip"):
            findings.append(Finding(name, Status.SKIP, "brokers cannot be reached at their advertised addresses"))
            continue
        findings.append(await _guarded(name, check, client))
    if not write:
        findings.append(Finding("round trip", Status.SKIP, "give --write to write and read a record"))
    return findings


async def _guarded(name: str, check: Callable[[ClusterClient], Awaitable[Finding]], client: ClusterClient) -> Finding:
    from moldau.kernel import ErrorCode, KafkaError

    try:
        return await check(client)
    except KafkaError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return Finding(name, Status.SKIP, one_line(str(error)))
        return Finding(name, Status.FAIL, explain(error)[0])
    except OSError as error:
        return Finding(name, Status.FAIL, explain(error)[0])


async def _check_advertised(node: Node, bootstrap: tuple[str, int], cluster_id: str | None) -> Finding:
    """Clients use the bootstrap address once; then they go where brokers say they are."""
    from moldau.client import Connection, ConnectionFailed, RequestTimedOut
    from moldau.kernel import KafkaError
    from moldau.protocol.messages.metadata import MetadataRequest

    place = f"{node.host}:{node.port}"
    # Where there is one broker, the address that worked is the one to advertise.
    example = f"{bootstrap[0]}:{bootstrap[1]}"
    remedy = (
        f"clients start at {example} and then go to the address that the broker advertises, which must work from their "
        f"machine: set advertised.listeners=PLAINTEXT://<name that clients can reach>:<port> on broker {node.id} "
        f"(from here {example} works) and restart it"
    )
    if node.host in _WILDCARDS:
        return Finding("advertised", Status.FAIL, f"broker {node.id} advertises {place}, which is no address", remedy)
    try:
        connection = await Connection.connect(
            node.host, node.port, connect_timeout_ms=CONNECT_TIMEOUT_MS, request_timeout_ms=CONNECT_TIMEOUT_MS
        )
    except (ConnectionFailed, RequestTimedOut, KafkaError) as error:
        cause = error.cause if isinstance(error, ConnectionFailed) else one_line(str(error))
        if _is_loopback(node.host) and not _is_loopback(bootstrap[0]):
            cause += f"; {node.host} is each client's own machine"
        seen = f"broker {node.id} advertises {place}, and from here: {cause}"
        return Finding("advertised", Status.FAIL, seen, remedy)
    try:
        answer = await connection.request(MetadataRequest(topics=[]))
    finally:
        connection.close()
    if answer.cluster_id is not None and cluster_id is not None and answer.cluster_id != cluster_id:
        seen = f"broker {node.id} advertises {place}, where another cluster answers ({answer.cluster_id})"
        return Finding("advertised", Status.FAIL, seen, remedy)
    if _is_loopback(node.host) and not _is_loopback(bootstrap[0]):
        seen = f"broker {node.id} advertises {place}, which works on this machine only"
        return Finding("advertised", Status.WARN, seen, remedy)
    return Finding("advertised", Status.OK, f"broker {node.id} at {place} can be reached from here")


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _check_topics(topics: Iterable[TopicInfo]) -> Finding:
    from moldau.kernel import NO_LEADER

    leaderless: list[str] = []
    under_replicated: list[str] = []
    count = 0
    for topic in topics:
        for one in topic.partitions:
            count += 1
            if one.leader == NO_LEADER:
                leaderless.append(f"{topic.name}-{one.partition}")
            elif len(one.isr) < len(one.replicas):
                under_replicated.append(f"{topic.name}-{one.partition}")
    if leaderless:
        seen = f"{len(leaderless)} of {count} partitions have no leader: {', '.join(leaderless[:5])}"
        return Finding("topics", Status.FAIL, seen, "start the brokers that hold their replicas")
    if under_replicated:
        seen = f"{len(under_replicated)} of {count} partitions lack replicas: {', '.join(under_replicated[:5])}"
        return Finding("topics", Status.WARN, seen, "check the brokers that are behind or down")
    return Finding("topics", Status.OK, f"{count} partitions, all led and in sync")


async def _check_versions(client: ClusterClient) -> Finding:
    from moldau.client import admin
    from moldau.cluster import METADATA_VERSION, metadata_release

    features = {feature.name: feature for feature in await admin.describe_features(client)}
    version = features.get(METADATA_VERSION)
    if version is None:
        return Finding("versions", Status.WARN, "the cluster shows no metadata.version", "it is older than Kafka 3.3")
    release = metadata_release(version.finalized)
    if version.finalized < version.supported_max:
        newest = metadata_release(version.supported_max)
        remedy = f"when all brokers are upgraded: moldau feature set {METADATA_VERSION}={version.supported_max}"
        return Finding("versions", Status.WARN, f"metadata.version is {release}, brokers support {newest}", remedy)
    return Finding("versions", Status.OK, f"metadata.version is {release}, the newest that the brokers support")


async def _check_clock(client: ClusterClient) -> Finding:
    """The quorum's leader tells its own time as the moment when it was last caught up with itself."""
    import time

    from moldau.client import admin

    before = time.time() * 1000
    quorum = await admin.describe_quorum(client)
    after = time.time() * 1000
    theirs = [one.last_caught_up_timestamp for one in quorum.voters if one.id == quorum.leader_id]
    if not theirs or theirs[0] <= 0:
        return Finding("clock", Status.SKIP, "the cluster does not tell its time")
    skew = theirs[0] - (before + after) / 2
    # What the answer's way took cannot be told from skew.
    sure = max(0.0, abs(skew) - (after - before) / 2)
    direction = "ahead of" if skew > 0 else "behind"
    seen = f"the cluster's clock is {abs(skew) / 1000:.1f} s {direction} this machine's"
    remedy = "let NTP set both clocks: record times, retention and look-ups by time depend on them"
    if sure > SKEW_FAIL_MS:
        return Finding("clock", Status.FAIL, seen, remedy)
    if sure > SKEW_WARN_MS:
        return Finding("clock", Status.WARN, seen, remedy)
    return Finding("clock", Status.OK, f"within {max(1.0, (after - before) / 2 + sure):.0f} ms of this machine's")


async def _check_disk(client: ClusterClient) -> Finding:
    from moldau.cli.output import bytes_text
    from moldau.client import admin

    worst = Status.OK
    texts: list[str] = []
    for one in await admin.describe_log_dirs(client):
        place = f"broker {one.broker} {one.path}"
        if one.error:
            return Finding("disk", Status.FAIL, f"{place}: {one.error.name}", "check the disk and the broker's log")
        if one.total_bytes <= 0:
            texts.append(f"{place}: room unknown")
            continue
        share = one.usable_bytes / one.total_bytes
        texts.append(f"{place}: {bytes_text(one.usable_bytes)} of {bytes_text(one.total_bytes)} free")
        if share < DISK_FAIL_SHARE:
            worst = Status.FAIL
        elif share < DISK_WARN_SHARE and worst is Status.OK:
            worst = Status.WARN
    remedy = "lower retention.ms or retention.bytes, trim topics, or add room" if worst is not Status.OK else None
    return Finding("disk", worst, "; ".join(texts), remedy)


async def _check_round_trip(client: ClusterClient) -> Finding:
    import asyncio
    import secrets

    from moldau.client import Producer, admin, read_partition

    loop = asyncio.get_running_loop()
    topic = f"moldau-doctor-{secrets.token_hex(6)}"
    await admin.create_topics(client, topic, partitions=1)
    try:
        started = loop.time()
        value = secrets.token_bytes(16)
        async with Producer(client, {"linger.ms": 0}) as producer:
            metadata = await (await producer.send(topic, value, partition=0))
        written = loop.time()
        found = [record.value async for record in read_partition(client, topic, 0)]
        read = loop.time()
    finally:
        await admin.delete_topics(client, topic)
    if found != [value]:
        return Finding("round trip", Status.FAIL, f"wrote 1 record at offset {metadata.offset}, read back {len(found)}")
    times = f"written in {(written - started) * 1000:.0f} ms, read in {(read - written) * 1000:.0f} ms"
    return Finding("round trip", Status.OK, f"{times}; the topic is deleted again")
