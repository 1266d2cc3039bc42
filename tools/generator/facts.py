"""Takes the protocol's facts out of Apache Kafka's jars: `python -m tools.generator.facts`.

Kafka's jars carry a JSON definition of every message. We keep names, types, versions, tags and defaults, and leave the
sentences. Two readings of the source are settled here, both seen in the behaviour of Kafka's own classes:

* a JSON `null` as default is no default at all (the field starts empty); only the string "null" means null;
* a tagged field without `versions` exists wherever it is tagged.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

KAFKA_VERSION = "4.3.1"
FACTS_DIR = Path(__file__).parent / "facts"

# Which jar holds the messages of which group; RPCs and raft's control records share the clients' jar.
ARTIFACTS = {
    "kafka-clients": "rpc",
    "kafka-metadata": "metadata",
    "kafka-group-coordinator": "coordinator",
    "kafka-transaction-coordinator": "coordinator",
    "kafka-share-coordinator": "coordinator",
    "kafka-raft": "raft",
    "kafka-storage": "storage",
}
RAFT_NAMES = {
    "ControlRecordTypeSchema",
    "EndTxnMarker",
    "KRaftVersionRecord",
    "LeaderChangeMessage",
    "SnapshotFooterRecord",
    "SnapshotHeaderRecord",
    "VotersRecord",
}
GROUPS = ("rpc", "metadata", "coordinator", "raft", "storage")

_DEFINITION_PATH = re.compile(r"^(common/)?(message|metadata)/[A-Za-z]+\.json$")
_COMMENT_LINE = re.compile(r"^\s*//.*$", re.MULTILINE)
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")
_MESSAGE_KEYS = ("apiKey", "type", "validVersions", "flexibleVersions", "listeners", "latestVersionUnstable")
_FIELD_KEYS = ("nullableVersions", "taggedVersions", "tag", "ignorable", "mapKey", "entityType", "flexibleVersions")


def _maven(*arguments: str) -> str:
    command = ["mvn", "--batch-mode", "--quiet", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return _TERMINAL_CODES.sub("", done.stdout).strip()


def fetch_jar(artifact: str, repository: Path) -> Path:
    """The jar of an artifact in the local Maven repository, downloaded when it is not there yet."""
    jar = repository / "org/apache/kafka" / artifact / KAFKA_VERSION / f"{artifact}-{KAFKA_VERSION}.jar"
    if not jar.exists():
        _maven("dependency:get", "-Dtransitive=false", f"-Dartifact=org.apache.kafka:{artifact}:{KAFKA_VERSION}")
    return jar


def local_repository() -> Path:
    return Path(_maven("help:evaluate", "-Dexpression=settings.localRepository", "-DforceStdout"))


def _default(field: dict[str, Any]) -> dict[str, Any]:
    raw = field.get("default")
    if raw is None:
        return {}
    text = str(raw)
    if text == "null":
        return {"default": None}
    if field["type"] == "bool":
        return {"default": text.lower() == "true"}
    if field["type"].startswith(("int", "uint")):
        return {"default": int(text, 0)}
    if field["type"] == "string":
        return {"default": text}
    raise ValueError(f"cannot read the default of {field['name']}: {raw!r}")


def _stated(source: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    # By identity: a tag of 0 and an api key of 0 equal False.
    return {key: source[key] for key in keys if source.get(key) is not None and source[key] is not False}


def _condense_field(field: dict[str, Any]) -> dict[str, Any]:
    fact: dict[str, Any] = {"name": field["name"], "type": field["type"]}
    fact["versions"] = field["versions"] if "versions" in field else field["taggedVersions"]
    fact.update(_stated(field, _FIELD_KEYS))
    fact.update(_default(field))
    if "fields" in field:
        fact["fields"] = [_condense_field(child) for child in field["fields"]]
    return fact


def condense(definition: dict[str, Any], artifact: str) -> dict[str, Any]:
    fact: dict[str, Any] = {"name": definition["name"], "artifact": artifact}
    fact.update(_stated(definition, _MESSAGE_KEYS))
    if structs := definition.get("commonStructs"):
        fact["structs"] = [
            {"name": struct["name"], "fields": [_condense_field(field) for field in struct["fields"]]}
            for struct in structs
        ]
    fact["fields"] = [_condense_field(field) for field in definition.get("fields", [])]
    return fact


def collect() -> dict[str, list[dict[str, Any]]]:
    """The facts of every group, read from the jars."""
    repository = local_repository()
    groups: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
    for artifact, group in ARTIFACTS.items():
        with zipfile.ZipFile(fetch_jar(artifact, repository)) as jar:
            for path in jar.namelist():
                if not _DEFINITION_PATH.match(path):
                    continue
                definition = json.loads(_COMMENT_LINE.sub("", jar.read(path).decode()))
                home = "raft" if definition["name"] in RAFT_NAMES else group
                groups[home].append(condense(definition, artifact))
    for facts in groups.values():
        facts.sort(key=lambda fact: (fact.get("apiKey", -1), fact["name"]))
    return groups


def _render(fact: dict[str, Any], indent: int) -> str:
    """One line per field, children indented: small enough to read, and a diff shows the field that changed."""
    pad = " " * indent
    plain = {key: value for key, value in fact.items() if key not in ("fields", "structs")}
    text = json.dumps(plain)[:-1]
    for key in ("structs", "fields"):
        if key in fact:
            children = ",\n".join(_render(child, indent + 1) for child in fact[key])
            text += f', "{key}": [\n{children}]' if children else f', "{key}": []'
    return pad + text + "}"


def render(facts: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(_render(fact, 0) for fact in facts) + "\n]\n"


def main() -> int:
    FACTS_DIR.mkdir(exist_ok=True)
    for group, facts in collect().items():
        (FACTS_DIR / f"{group}.json").write_text(render(facts))
        print(f"facts_written group={group} messages={len(facts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
