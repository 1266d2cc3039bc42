"""The Java that Spark runs on: found where it is installed, or missed in one line that says what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# What Spark 4.2 and 4.3 run on.
JAVA_VERSIONS = (17, 21, 25)
# Spark's launcher asks for it; stripped-down Javas lack it and fail with a stack of their own.
NEEDED_MODULE = "jdk.incubator.vector"
VERSION_SECONDS_MAX = 30.0

_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.jdks/*",
    "~/.sdkman/candidates/java/*",
)


class JavaMissing(RuntimeError):
    """No Java here that Spark runs on."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    has_vectors: bool = True

    @property
    def is_usable(self) -> bool:
        return self.version in JAVA_VERSIONS and self.has_vectors


def find_java(environment: Mapping[str, str] | None = None, places: tuple[str, ...] = _PLACES) -> Java:
    """JAVA_HOME, then PATH, then the places where systems install it; the first that Spark runs on."""
    environment = os.environ if environment is None else environment
    seen: list[Java] = []
    for home in _homes(environment, places):
        java = _java_at(home)
        if java is None or any(java.home == other.home for other in seen):
            continue
        if java.is_usable:
            return java
        seen.append(java)
    raise JavaMissing(_missing_text(seen))


def _missing_text(seen: list[Java]) -> str:
    found = ", ".join(
        f"Java {java.version} in {java.home}" + ("" if java.has_vectors else f" (without {NEEDED_MODULE})")
        for java in seen
    )
    return (
        f"Spark needs Java {', '.join(map(str, JAVA_VERSIONS[:-1]))} or {JAVA_VERSIONS[-1]}, and "
        + (f"there is only {found}" if found else "none is installed")
        + ": install one (apt install openjdk-17-jre-headless, brew install openjdk@21) or set JAVA_HOME to it"
    )


def _homes(environment: Mapping[str, str], places: tuple[str, ...]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for place in places:
        pattern = Path(place).expanduser()
        yield from sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _java_at(home: Path) -> Java | None:
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]+)"', text, re.MULTILINE)
    major = _major(version[1]) if version else _asked_version(executable)
    if major is None:
        return None
    return Java(home.resolve(), major, modules is None or NEEDED_MODULE in modules[1].split())


def _asked_version(executable: Path) -> int | None:
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', done.stderr)
    return _major(found[1]) if found else None


def _major(version: str) -> int | None:
    """17 of 17.0.15, and 8 of 1.8.0_402."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else None
