"""Small numbers for simulated clusters, a little different in each run."""

from __future__ import annotations

from moldau.testing.dice import SeededDice


def choose_settings(dice: SeededDice) -> dict[str, str]:
    def one_of(*values: int) -> str:
        return str(values[dice.below(len(values))])

    session_ms = (600, 1_000, 2_000)[dice.below(3)]
    # Fetches of the metadata log wait for half a second at the leader.
    quorum_ms = (800, 1_200, 2_000)[dice.below(3)]
    settings = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
        "transaction.state.log.replication.factor": "3",
        "transaction.state.log.min.isr": "2",
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // 5),
        "controller.quorum.election.timeout.ms": str(quorum_ms // 2),
        "controller.quorum.election.backoff.max.ms": str(quorum_ms // 2),
        "controller.quorum.fetch.timeout.ms": str(quorum_ms),
        "controller.quorum.request.timeout.ms": str(quorum_ms),
        "replica.lag.time.max.ms": one_of(300, 1_000, 2_000),
        "replica.fetch.wait.max.ms": one_of(100, 250),
        "replica.fetch.max.bytes": one_of(1, 300, 1 << 20),
        "replica.fetch.response.max.bytes": one_of(400, 10 << 20),
        "replica.socket.timeout.ms": one_of(1_000, 3_000),
        "num.replica.fetchers": one_of(1, 1, 2),
        "metadata.log.max.record.bytes.between.snapshots": one_of(1_500, 4_000, 1 << 20),
        "leader.imbalance.check.interval.seconds": one_of(1, 300),
        "controlled.shutdown.enable": "false" if dice.chance(20) else "true",
        "log.roll.ms": one_of(800, 604_800_000),
        "log.flush.offset.checkpoint.interval.ms": one_of(1_000, 60_000),
        "log.segment.delete.delay.ms": one_of(100, 60_000),
        "log.cleaner.enable": "false",
        "moldau.log.dir.reserve.bytes": "65536",
        "initial.broker.registration.timeout.ms": "600000",
    }
    if dice.chance(15):
        settings["log.flush.interval.messages"] = "1"
    return settings
