"""Our codec against Kafka's own classes: they read what we write, and write the same bytes, in every version."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.generator.facts import ARTIFACTS, fetch_jar, local_repository
from tools.generator.samples import Sampler, all_messages, load_class

SAMPLES_PER_VERSION = 5
PACKAGES = {
    "kafka-clients": "org.apache.kafka.common.message",
    "kafka-metadata": "org.apache.kafka.common.metadata",
    "kafka-group-coordinator": "org.apache.kafka.coordinator.group.generated",
    "kafka-transaction-coordinator": "org.apache.kafka.coordinator.transaction.generated",
    "kafka-share-coordinator": "org.apache.kafka.coordinator.share.generated",
    "kafka-raft": "org.apache.kafka.raft.generated",
    "kafka-storage": "org.apache.kafka.server.log.remote.metadata.storage.generated",
}


def _java_class(message):
    suffix = "Data" if message.kind in ("request", "response", "header") else ""
    return f"{PACKAGES[message.artifact]}.{message.name}{suffix}"


@pytest.fixture(scope="module")
def class_path():
    if not shutil.which("mvn") or not shutil.which("javac"):
        reason = "needs a JDK and Maven to run Kafka's own classes"
        if os.environ.get("MOLDAU_TEST_STRICT") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    repository = local_repository()
    return ":".join(str(fetch_jar(artifact, repository)) for artifact in ARTIFACTS)


@pytest.mark.oracle
def test_kafka_reads_what_we_write_and_writes_the_same_bytes(class_path):
    cases = []
    for group, message in all_messages():
        cls = load_class(group, message)
        for version in message.valid:
            for index in range(SAMPLES_PER_VERSION):
                seed = version * 1000 + index
                sample = Sampler(seed, with_unknown_tags=True).message(cls, message, version)
                cases.append((message, version, seed, sample.encode(version)))
    source = Path(__file__).with_name("MessageEcho.java")
    asked = "".join(f"{_java_class(message)} {version} {body.hex()}\n" for message, version, _, body in cases)
    done = subprocess.run(
        ["java", "-Xshare:auto", "-cp", class_path, str(source)],
        input=asked,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(cases)
    wrong = [
        f"{message.name} v{version} seed={seed}: sent {body.hex()}, answer {answer}"
        for (message, version, seed, body), answer in zip(cases, answers, strict=True)
        if answer != f"{body.hex()} 0"
    ]
    assert wrong == []
