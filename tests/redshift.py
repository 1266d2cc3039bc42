"""A stand-in for Redshift: a real PostgreSQL behind a proxy that does what PostgreSQL has not, and an S3 over HTTP.

The proxy hands every statement to PostgreSQL as it is, with one exception: `COPY ... FROM 's3://...' ... MANIFEST`,
which it carries out as Redshift documents it: the files that the manifest names, each of which must be there with the
length that it says, columns by position. What it is not: Redshift's own types, isolation, speed, IAM. Each statement is
parsed in Redshift's dialect, and `refused` has those that are not.
"""

from __future__ import annotations

import io
import json
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import sqlglot
from moto.server import ThreadedMotoServer
from sqlglot import exp

from moldau.spark.pipelines.postgres_rules import copy_text
from tests.postgres import Postgres

ROLE = "arn:aws:iam::123456789012:role/copier"
_ENCRYPTION_REQUESTS = (80877103, 80877104)
# sqlglot knows these as words only; both are in Redshift's manual.
_PLAIN = ("LOCK TABLE ", "EXPLAIN DELETE ", "EXPLAIN INSERT ")


class S3:
    """A bucket of its own on a server of its own."""

    def __init__(self) -> None:
        self.port = 0
        self.start()
        self.options: dict[str, Any] = {
            "endpoint_override": f"127.0.0.1:{self.port}",
            "scheme": "http",
            "region": "us-east-1",
            "access_key": "test",
            "secret_key": "test",
        }
        self.filesystem = pafs.S3FileSystem(**self.options, allow_bucket_creation=True)
        self.filesystem.create_dir("lake")

    def start(self) -> None:
        """Where it was before: what is in it is the process's."""
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        self._server.stop()

    def files(self, prefix: str = "lake") -> list[str]:
        found = self.filesystem.get_file_info(pafs.FileSelector(prefix, recursive=True, allow_not_found=True))
        return sorted(one.path for one in found if one.type is pafs.FileType.File)


class Redshift:
    """The proxy."""

    def __init__(self, postgres: Postgres, s3: S3) -> None:
        self.postgres, self.s3 = postgres, s3
        self._database = f"redshift_{secrets.token_hex(4)}"  # the PostgreSQL sink has tables of the same names
        postgres.ask(f"CREATE DATABASE {self._database}")
        self.refused: list[str] = []
        self.copies: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def dsn(self) -> str:
        port = self._listener.getsockname()[1]
        return f"host=127.0.0.1 port={port} user=postgres dbname={self._database} connect_timeout=10"

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self.postgres.ask(statement, self._database)

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:  # either side may go away at any time, as with a real server
            server = socket.create_connection(("127.0.0.1", self.postgres.port))
            with server, client.makefile("rb") as asked, server.makefile("rb") as answered:
                self._answer(client, server, asked, answered)

    def _answer(self, client: socket.socket, server: socket.socket, asked: Any, answered: Any) -> None:
        server.sendall(_startup(client, asked))
        _relay_answers(answered, client)
        while message := _message(asked):
            kind, body = message
            statement = body[:-1].decode() if kind == b"Q" else ""
            if statement:
                self._note(statement)
            if " FROM 's3://" in statement:
                self._copy(statement, server, answered, client)
                continue
            server.sendall(_framed(kind, body))
            if kind == b"X":
                return
            assert kind == b"Q", f"Redshift is asked plain queries only, not {kind!r}"
            _relay_answers(answered, client)

    def _note(self, statement: str) -> None:
        if statement.startswith(_PLAIN):
            return
        try:
            is_known = not isinstance(sqlglot.parse_one(statement, dialect="redshift"), exp.Command)
        except sqlglot.errors.ParseError:
            is_known = False
        if not is_known:
            self.refused.append(statement)

    def _copy(self, statement: str, server: socket.socket, answered: Any, client: socket.socket) -> None:
        parsed = sqlglot.parse_one(statement, dialect="redshift")
        assert isinstance(parsed, exp.Copy)
        words = {one.sql().upper() for one in parsed.args["params"]}
        assert words == {"FORMAT PARQUET", "MANIFEST"}, words
        assert parsed.args["credentials"].args["iam_role"].name == ROLE
        table, url = parsed.this.sql("postgres"), parsed.args["files"][0].name
        self.copies.append(url)
        try:
            lines = b"".join(self._lines(url))
        except OSError:
            # As an error of the server: the transaction is lost.
            server.sendall(_framed(b"Q", b"DO $$BEGIN RAISE 'S3ServiceException'; END$$\0"))
            _relay_answers(answered, client)
            return
        server.sendall(_framed(b"Q", f"COPY {table} FROM STDIN".encode() + b"\0"))
        reply = _message(answered)
        assert reply is not None
        if reply[0] == b"G":
            server.sendall(_framed(b"d", lines) + _framed(b"c", b""))
        else:
            client.sendall(_framed(*reply))
        _relay_answers(answered, client)

    def _lines(self, manifest_url: str) -> Iterator[bytes]:
        entries = json.loads(self._read(manifest_url))["entries"]
        for entry in entries:
            content = self._read(entry["url"])
            assert entry["mandatory"] and entry["meta"]["content_length"] == len(content)
            for batch in pq.ParquetFile(io.BytesIO(content)).iter_batches():
                # The last column is what PostgreSQL's own sink adds to each row.
                yield b"".join(line.rpartition(b"\t")[0] + b"\n" for line in copy_text(batch, 0).splitlines())

    def _read(self, url: str) -> bytes:
        with self.s3.filesystem.open_input_stream(url.removeprefix("s3://")) as stream:
            return bytes(stream.read())


@contextmanager
def running_redshift(postgres: Postgres) -> Iterator[Redshift]:
    s3 = S3()
    redshift = Redshift(postgres, s3)
    try:
        yield redshift
    finally:
        redshift.stop()
        s3.stop()


def _startup(client: socket.socket, asked: Any) -> bytes:
    while True:
        (length,) = struct.unpack("!i", asked.read(4))
        body = asked.read(length - 4)
        if struct.unpack("!i", body[:4])[0] not in _ENCRYPTION_REQUESTS:
            return struct.pack("!i", length) + bytes(body)
        client.sendall(b"N")


def _relay_answers(answered: Any, client: socket.socket) -> None:
    """Until the server is ready for the next statement."""
    while message := _message(answered):
        client.sendall(_framed(*message))
        if message[0] == b"Z":
            return
    raise ConnectionResetError("the server is gone")


def _message(stream: Any) -> tuple[bytes, bytes] | None:
    head = stream.read(5)
    if len(head) < 5:
        return None
    (length,) = struct.unpack("!i", head[1:])
    return head[:1], stream.read(length - 4)


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body
