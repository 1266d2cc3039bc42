"""Java is found where it is installed; what is missing is said in one line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from moldau.spark import JavaMissing, find_java
from moldau.spark.java import JAVA_VERSIONS
from tests.oracle import ROOT


def make_java(home: Path, version: str, modules: str | None = None, *, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    if release:
        lines = [f'JAVA_VERSION="{version}"', *([f'MODULES="{modules}"'] if modules else [])]
        (home / "release").write_text("\n".join(lines))
    return home


def test_java_home_goes_before_the_path_and_the_path_before_the_usual_places(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21.0.8")
    on_path = make_java(tmp_path / "path", "17.0.15")
    installed = make_java(tmp_path / "jvm" / "java-25", "25.0.3")
    places = (str(tmp_path / "jvm" / "*"),)
    environment = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert find_java(environment, places).home == home
    assert find_java({"PATH": str(on_path / "bin")}, places).home == on_path
    found = find_java({"PATH": ""}, places)
    assert (found.home, found.version) == (installed, 25)


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "25.0.3"])
@pytest.mark.parametrize("release", [True, False])
def test_each_java_that_spark_runs_on_is_found(tmp_path: Path, version: str, release: bool) -> None:
    home = make_java(tmp_path / "jvm" / "java", version, release=release)
    found = find_java({"PATH": ""}, (str(tmp_path / "jvm" / "*"),))
    assert (found.home, found.version) == (home, int(version.split(".")[0]))


def test_a_wrong_java_is_passed_over_for_a_right_one(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402")
    right = make_java(tmp_path / "jvm" / "b", "17.0.1", release=False)
    make_java(tmp_path / "jvm" / "a", "11.0.2")
    (tmp_path / "jvm" / "src").mkdir()
    found = find_java({"JAVA_HOME": str(old), "PATH": ""}, (str(tmp_path / "jvm" / "*"),))
    assert (found.home, found.version) == (right, 17)


@pytest.mark.parametrize(("version", "modules"), [("11.0.2", None), ("1.8.0_402", None), ("25.0.2", "java.base")])
def test_a_java_that_spark_cannot_use_is_named_with_the_remedy(
    tmp_path: Path, version: str, modules: str | None
) -> None:
    home = make_java(tmp_path / "java", version, modules)
    with pytest.raises(JavaMissing) as missing:
        find_java({"JAVA_HOME": str(home), "PATH": ""}, ())
    said = str(missing.value)
    assert str(home) in said and "JAVA_HOME" in said and "install one" in said and "\n" not in said
    assert modules is None or "jdk.incubator.vector" in said


def test_no_java_at_all_says_which_one_to_install() -> None:
    with pytest.raises(JavaMissing, match="Spark needs Java 17, 21 or 25, and none is installed: install one"):
        find_java({"PATH": ""}, ())
    assert JAVA_VERSIONS == (17, 21, 25)


# -- make run, make test -----------------------------------------------------------------------------------------------


def make_program(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


@pytest.mark.parametrize("offered", ["17", "21", None])
def test_a_java_is_installed_when_there_is_none_and_what_cannot_be_had_costs_one_line(
    tmp_path: Path, offered: str | None
) -> None:
    """`tools/install-java` on a system whose package manager has some version, or none."""
    installed, asked = tmp_path / "installed", tmp_path / "asked"
    make_program(tmp_path, "python", f"test -e {installed}")  # whether there is a Java
    make_program(tmp_path, "sudo", 'shift; exec "$@"')
    wanted = f"*openjdk-{offered}-*) touch {installed};;" if offered else ""
    make_program(tmp_path, "apt-get", f'echo "$@" >> {asked}; case "$*" in *update) ;; {wanted} *) exit 100;; esac')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": str(tmp_path / "python")}
    for turn in range(2):
        done = subprocess.run(
            [str(ROOT / "tools" / "install-java")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert installed.exists() == (offered is not None)
        assert done.stderr.count("\n") == (0 if offered else 1) and done.stdout == ""
        # The second time there is one, and nobody asks.
        assert turn == 0 or offered is None or asked.read_text().count("update") == 1
