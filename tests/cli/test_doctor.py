"""`moldau doctor`: healthy, unreachable, and the classic mistake."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from moldau.testing import Broker
from tests.cli.conftest import Moldau
from tests.oracle import free_port


def findings(done: Any) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in done.json}


def test_a_healthy_cluster_passes_every_check(moldau: Moldau) -> None:
    before = moldau("topic", "list", "-o", "json").json
    found = findings(moldau("doctor", "--write", "-o", "json"))
    # The disk of whoever runs this may be nearly full: a warning is no failure.
    assert {check: row["status"] for check, row in found.items()} == {
        "resolve": "ok",
        "connect": "ok",
        "api versions": "ok",
        "brokers": "ok",
        "advertised": "ok",
        "topics": "ok",
        "versions": "ok",
        "clock": "ok",
        "disk": found["disk"]["status"],
        "round trip": "ok",
    }
    assert found["disk"]["status"] in ("ok", "warn") and "free" in found["disk"]["seen"]
    assert moldau("topic", "list", "-o", "json").json == before


def test_without_write_nothing_is_written(moldau: Moldau, broker: Broker) -> None:
    topics = moldau("topic", "list", "-o", "json").json
    done = moldau("doctor")
    assert [line.split()[0] for line in done.out.splitlines()].count("ok") >= 8
    assert "skip  round trip" in done.out and "\x1b" not in done.out
    assert moldau("topic", "list", "-o", "json").json == topics


def test_an_advertised_address_that_does_not_work_from_here_is_explained() -> None:
    port, wrong = free_port(), free_port()
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{wrong}"}
    with Broker(settings, port=port):
        moldau = Moldau(f"127.0.0.1:{port}")
        done = moldau("doctor", "--write", "-o", "json", code=4)
        found = findings(done)
        assert found["api versions"]["status"] == "ok"
        advertised = found["advertised"]
        assert advertised["status"] == "fail"
        assert f"broker 1 advertises 127.0.0.1:{wrong}, and from here: connection refused" in advertised["seen"]
        assert "set advertised.listeners=PLAINTEXT://" in advertised["remedy"]
        assert found["disk"]["status"] == found["round trip"]["status"] == "skip"
        # What needs that address says the same in its own line.
        refused = moldau("config", "get", "broker/1", "-X", "default.api.timeout.ms=500", code=1)
        assert "advertised.listeners" in refused.err and "moldau doctor" in refused.err


def test_an_advertised_name_that_does_not_resolve() -> None:
    with Broker({"advertised.listeners": "PLAINTEXT://no-such-host.invalid:9092"}) as broker:
        assert broker.node is not None
        done = Moldau(f"127.0.0.1:{broker.node.listeners[0].port}")("doctor", code=4)
    assert "fail  advertised" in done.out and "does not resolve" in done.out


def test_another_cluster_at_the_advertised_address() -> None:
    with Broker() as other, Broker({"advertised.listeners": f"PLAINTEXT://{other.bootstrap}"}) as broker:
        assert broker.node is not None
        done = Moldau(f"127.0.0.1:{broker.node.listeners[0].port}")("doctor", "-o", "json", code=4)
    assert "another cluster answers" in findings(done)["advertised"]["seen"]


def test_nothing_there() -> None:
    done = Moldau("127.0.0.1:1")("doctor", "-o", "json", code=4)
    found = findings(done)
    assert (found["resolve"]["status"], found["connect"]["status"], found["disk"]["status"]) == ("ok", "fail", "skip")
    assert "`moldau up`" in found["connect"]["seen"]
    found = findings(Moldau("no-such-host.invalid:9092")("doctor", "-o", "json", code=4))
    assert found["resolve"]["status"] == "fail"


def test_one_of_several_bootstrap_addresses_is_enough(moldau: Moldau) -> None:
    done = Moldau(f"127.0.0.1:1,{moldau.bootstrap}")("doctor", "-o", "json")
    assert [row["status"] for row in done.json if row["check"] == "connect"] == ["warn", "ok"]


def test_a_port_that_is_not_kafka() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        done = Moldau(f"127.0.0.1:{server.getsockname()[1]}")("doctor", "-o", "json", code=4)
    found = findings(done)
    assert (found["connect"]["status"], found["api versions"]["status"]) == ("ok", "fail")


@pytest.mark.parametrize(("ahead_ms", "status"), [(0, "ok"), (10_000, "warn"), (-3_600_000, "fail")])
def test_clock_skew(moldau: Moldau, monkeypatch: pytest.MonkeyPatch, ahead_ms: int, status: str) -> None:
    import time

    real = time.time
    threads = threading.current_thread()
    # The broker lives in another thread of this process, and keeps the true time.
    monkeypatch.setattr(
        time, "time", lambda: real() + (ahead_ms / 1000 if threading.current_thread() is threads else 0)
    )
    done = moldau("doctor", "-o", "json", code=4 if status == "fail" else 0)
    assert findings(done)["clock"]["status"] == status
