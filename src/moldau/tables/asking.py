"""Asking a table server, for whoever is at a shell: little is imported, for the process lives for one question."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

ANSWER_SECONDS_MAX = 30.0


class TableServerError(Exception):
    """What the server refused, or that there is none; one line. `status` is HTTP's, 0 when nobody answered."""

    def __init__(self, message: str, status: int, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.answer = dict(answer or {})


def ask(server: str, *path: str, parameters: Mapping[str, str] | None = None) -> Any:
    """The JSON at a path of the server, whose parts are texts as they are."""
    address = urllib.parse.urlsplit(server if "://" in server else f"http://{server}")
    if address.scheme != "http" or address.hostname is None:
        raise TableServerError(f"{server} is no address of a table server: write http://127.0.0.1:8090", 0)
    target = "/" + "/".join(urllib.parse.quote(part, safe="") for part in path)
    if parameters:
        target += "?" + urllib.parse.urlencode(parameters)
    connection = http.client.HTTPConnection(address.hostname, address.port or 80, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        body = response.read()
    except OSError as error:
        raise TableServerError(
            f"no table server answers at {server} ({error.strerror or error}): start one with `moldau table serve "
            "TOPIC`, or name one with --server",
            0,
        ) from error
    finally:
        connection.close()
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise TableServerError(f"{server} answers, and is no table server", response.status) from error
    if response.status != 200:
        told = answer if isinstance(answer, dict) else {}
        raise TableServerError(str(told.get("error", f"{server} answered {response.status}")), response.status, told)
    return answer
