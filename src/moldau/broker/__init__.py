"""The shell: sockets, handlers, node wiring, configuration. Executes what the rooms below decide.

`run` starts a broker in this process and serves until it is told to stop; `Node` is the same without the process.
"""

from moldau.broker.errors import StartError
from moldau.broker.node import Node
from moldau.broker.run import run_broker
from moldau.broker.settings import ConfigError, Settings, load_settings

__all__ = ["ConfigError", "Node", "Settings", "StartError", "load_settings", "run_broker"]
