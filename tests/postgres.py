"""A real PostgreSQL server on loopback, from the system's packages, with its data in a directory of its own.

`tools/install-test-tools` installs it; without it `require_postgres` skips the test, or fails it under
`MOLDAU_TEST_STRICT=1`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
import pytest

_PACKAGES = Path("/usr/lib/postgresql")
_COMMAND_SECONDS_MAX = 60.0


def programs() -> Path | None:
    """Where the newest server's programs are."""
    found = [path.parent for path in _PACKAGES.glob("*/bin/pg_ctl")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def require_postgres() -> Path:
    found = programs()
    if found is None:
        complain = pytest.fail if os.environ.get("MOLDAU_TEST_STRICT") == "1" else pytest.skip
        complain("no PostgreSQL: run tools/install-test-tools")
    assert found is not None
    return found


class Postgres:
    """One server; a database is made for it, and it is gone afterwards."""

    def __init__(self) -> None:
        self._programs = require_postgres()
        self._home = Path(tempfile.mkdtemp(prefix="moldau-postgres-"))
        # It refuses to run as root; its package has made a user for it.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._home, self._user, self._user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres connect_timeout=10"

    def __enter__(self) -> Self:
        try:
            self._run("initdb", "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C")
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (self._home / "data" / "postmaster.pid").exists():
            self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> None:
        options = f"-p {self.port} -k {self._home} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
        self._run("pg_ctl", "-w", "-l", str(self._home / "log"), "-o", options, "start")

    def kill(self) -> None:
        """As a crash: what is not in the log of the server is lost."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def ask(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, dbname=database, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, "-D", self._home / "data", *arguments],
            user=self._user,
            group=self._user,
            extra_groups=[] if self._user else None,
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=_COMMAND_SECONDS_MAX,
        )
