"""The broker's own process: `moldau up` and `moldau broker` become this, so that it holds nothing of a command line.

    python -m moldau.broker '{"file": null, "flags": {...}, "remove": null, "greet": true}'

    python -m moldau.broker '{"brokers": [{...}, {...}, {...}], "remove": null}'

`file` is the text of a server.properties; several brokers are a process each. What stands in the way
is one line on standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from moldau.broker.node import Node, StartError
from moldau.broker.run import run_broker
from moldau.broker.settings import ConfigError, load_settings
from moldau.kernel import KafkaError
from moldau.storage import LogDirectoryError

EXIT_ERROR, EXIT_USAGE = 1, 2


def main(argument: str) -> int:
    order: dict[str, Any] = json.loads(argument)
    try:
        if "brokers" in order:
            from moldau.broker.several import run_several

            return run_several(order["brokers"], _announce_several)
        settings, warnings = load_settings(order["file"], order["flags"].items(), os.environ)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return run_broker(
            settings, on_ready=lambda node: _announce(node, greet=order["greet"]), cluster_id=order.get("cluster_id")
        )
    except ConfigError as error:
        return _fail(str(error), EXIT_USAGE)
    except (StartError, LogDirectoryError, KafkaError) as error:
        return _fail(str(error), EXIT_ERROR)
    except OSError as error:
        return _fail(f"{error.filename or 'the disk'}: {error.strerror or error}", EXIT_ERROR)
    finally:
        if order["remove"]:
            shutil.rmtree(order["remove"], ignore_errors=True)


def _announce(node: Node, *, greet: bool) -> None:
    http = "" if node.http is None else f" http=127.0.0.1:{node.http.port}"
    print(f"ready bootstrap={node.bootstrap} node={node.node_id} cluster={node.cluster_id}{http}", flush=True)
    if greet:
        _greet(node.bootstrap, "point any Kafka client at this address. Ctrl-C stops the broker.")


def _announce_several(lines: list[str]) -> None:
    """One line for all, in the form of one broker's."""
    found = [dict(field.partition("=")[::2] for field in line.split()[1:]) for line in lines]
    bootstrap = ",".join(fields["bootstrap"] for fields in found)
    print(f"ready bootstrap={bootstrap} nodes={len(found)} cluster={found[0]['cluster']}", flush=True)
    _greet(bootstrap, f"point any Kafka client at these addresses. Ctrl-C stops all {len(found)} brokers.")


def _greet(bootstrap: str, hint: str) -> None:
    command = _command()
    print(
        "\nTry it in another terminal:\n"
        f"  echo hello | {command} produce greetings -b {bootstrap}\n"
        f"  {command} consume greetings -b {bootstrap}\n"
        f"or {hint}\n",
        file=sys.stderr,
        flush=True,
    )


def _command() -> str:
    """How the person can call us from here: by name, or by path when the environment is not active."""
    if shutil.which("moldau"):
        return "moldau"
    return os.path.relpath(os.path.join(os.path.dirname(sys.executable), "moldau"))


def _fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
