"""The broker's own process: `moldau up` and `moldau broker` become this, so that it holds nothing of a command line.

    python -m moldau.broker '{"file": null, "flags": {...}, "remove": null, "greet": true}'

`file` is the text of a server.properties. What stands in the way is one line on standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

from moldau.broker.errors import StartError
from moldau.broker.node import Node
from moldau.broker.run import run_broker
from moldau.broker.settings import ConfigError, load_settings
from moldau.kernel import KafkaError
from moldau.storage import LogDirectoryError

EXIT_ERROR, EXIT_USAGE = 1, 2


def main(argument: str) -> int:
    order: dict[str, Any] = json.loads(argument)
    try:
        settings, warnings = load_settings(order["file"], order["flags"].items(), os.environ)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return run_broker(settings, on_ready=lambda node: _announce(node, greet=order["greet"]))
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
    print(f"ready bootstrap={node.listeners.bootstrap} node={node.node_id} cluster={node.cluster_id}{http}", flush=True)
    if greet:
        command = _command()
        print(
            "\nTry it in another terminal:\n"
            f"  echo hello | {command} produce greetings -b {node.listeners.bootstrap}\n"
            f"  {command} consume greetings -b {node.listeners.bootstrap}\n"
            "or point any Kafka client at this address. Ctrl-C stops the broker.\n",
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
