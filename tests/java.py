"""Java for the tests: Kafka's jars, programs of our own compiled once, and Kafka's command-line tools in one JVM.

    run_tool("dump-log", "--files", path)                       # a tool on files
    run_tool("topics", "--list", bootstrap=moldau.bootstrap)    # a tool on Moldau

A JVM costs more than most of what is asked of it. So the tools of a test run share one, which calls their `main` as a
script would (`tests/clients/java/Tools.java`); and classes of a source are kept in `.cache/` until the source changes.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KAFKA_VERSION = "4.3.1"
KAFKA_DIR = ROOT / ".cache" / f"kafka-{KAFKA_VERSION}"
LIBS = KAFKA_DIR / "libs"
LOG4J = ROOT / "tools" / "oracle" / "log4j2.properties"
CLASSES_ARCHIVE = KAFKA_DIR / "classes.jsa"
TOOL_SECONDS_MAX = 90.0

# For a JVM that lives for seconds: one quick compiler, and a class archive of an earlier run, which halves the start
# (Java ignores one that is missing or does not fit). A bench wants neither: `jvm_options=("-Xmx1g", "-XX:+UseG1GC")`.
CDS_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={CLASSES_ARCHIVE}", *CDS_QUIET)
QUICK_JVM = ("-Xmx512m", *_SHORT_LIVED)
TOOL_JVM = ("-Xmx256m", *_SHORT_LIVED)

TOOLS = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "storage": "kafka.tools.StorageTool",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}

# These take no --bootstrap-server: they read files, or want it at another place.
_WITHOUT_BOOTSTRAP = {"cluster", "dump-log", "replica-verification", "storage"}


def java() -> str | None:
    """Find Java where users say it is: JAVA_HOME, then PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home, "bin", "java"), os.X_OK):
        return str(Path(home, "bin", "java"))
    return shutil.which("java")


def java_command(main_class: str, *args: str, jvm_options: Sequence[str] = TOOL_JVM) -> list[str]:
    """Build the command line that runs a class of Kafka's jars."""
    executable = java()
    assert executable is not None, "call require_oracle first"
    return [
        executable,
        *jvm_options,
        f"-Dlog4j2.configurationFile={LOG4J}",
        "-cp",
        f"{LIBS}/*",
        main_class,
        *args,
    ]


def javac() -> str | None:
    """The compiler beside Java; a JRE has none."""
    found = Path(java() or "").resolve().with_name("javac")
    return str(found) if found.exists() else None


@cache
def java_classes(*sources: str) -> Path:
    """Programs below `tests/`, compiled: a folder for the class path."""
    compiler = javac()
    assert compiler is not None, "no javac beside java"
    files = [ROOT / "tests" / source for source in sources]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    classes = ROOT / ".cache" / "test-classes" / digest
    classes.parent.mkdir(parents=True, exist_ok=True)
    with (classes.parent / "compiling.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists():
            with tempfile.TemporaryDirectory(dir=classes.parent) as partial:
                made = Path(partial, "classes")
                subprocess.run([compiler, "-cp", f"{LIBS}/*", "-d", made, *files], check=True)
                made.rename(classes)
    return classes


def java_program(main_class: str, *args: str, sources: Sequence[str]) -> list[str]:
    """The command line that runs a program of ours."""
    command = java_command(main_class, *args)
    command[command.index("-cp") + 1] += f":{java_classes(*sources)}"
    return command


class ToolsJvm:
    """A JVM that runs one tool after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            java_program("Tools", sources=["clients/java/Tools.java"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._one_at_a_time = threading.Lock()

    def run(
        self, main_class: str, args: Sequence[str], *, stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"class": main_class, "args": list(args), "stdin": stdin}
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], timeout)[0]:
                self.close()
                raise subprocess.TimeoutExpired([main_class, *args], timeout)
            answer = self._process.stdout.readline()
        assert answer, f"{main_class} {' '.join(args)} ended its JVM with {self._process.wait()}"
        code, out, err = json.loads(answer)
        return subprocess.CompletedProcess([main_class, *args], code, out, err)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        tools_jvm.cache_clear()


@cache
def tools_jvm() -> ToolsJvm:
    jvm = ToolsJvm()
    atexit.register(jvm.close)
    return jvm


def run_tool(
    tool: str,
    *args: str | os.PathLike[str],
    bootstrap: str | None = None,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = TOOL_SECONDS_MAX,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's tools, by its short name in TOOLS or by its main class, and return what it printed.

    `bootstrap` becomes the tool's `--bootstrap-server`, and may be any cluster's: Kafka's or Moldau's.
    """
    if javac() is None:
        return run_tool_alone(tool, *args, bootstrap=bootstrap, stdin=stdin, check=check, timeout=timeout)
    main_class, *given = _words(tool, args, bootstrap)
    return _checked(tools_jvm().run(main_class, given, stdin=stdin or "", timeout=timeout), check=check)


def run_tool_alone(
    tool: str,
    *args: str | os.PathLike[str],
    bootstrap: str | None = None,
    stdin: str | None = None,
    check: bool = True,
    timeout: float = TOOL_SECONDS_MAX,
) -> subprocess.CompletedProcess[str]:
    """The same in a JVM of its own, as the tool's script starts it."""
    command = java_command(*_words(tool, args, bootstrap))
    done = subprocess.run(command, input=stdin or "", capture_output=True, text=True, timeout=timeout, check=False)
    return _checked(done, check=check)


def _words(tool: str, args: Sequence[str | os.PathLike[str]], bootstrap: str | None) -> list[str]:
    given = [os.fspath(arg) for arg in args]
    if bootstrap is not None and tool not in _WITHOUT_BOOTSTRAP and "--bootstrap-server" not in given:
        given = ["--bootstrap-server", bootstrap, *given]
    return [TOOLS.get(tool, tool), *given]


def _checked(done: subprocess.CompletedProcess[str], *, check: bool) -> subprocess.CompletedProcess[str]:
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(done.args)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done
