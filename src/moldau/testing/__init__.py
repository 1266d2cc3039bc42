"""The shipped test kit: an embedded broker, the simulated clock, disk and event loop that our own tests run on, and a
judge of histories that clients write down."""

from moldau.testing.broker import Broker, BrokerProcess
from moldau.testing.clock import VirtualClock
from moldau.testing.dice import SeededDice
from moldau.testing.disk import SimulatedDisk
from moldau.testing.history import History, Operation, Outcome, line_of
from moldau.testing.history_check import Anomaly, AnomalyKind, check, report

__all__ = [
    "Anomaly",
    "AnomalyKind",
    "Broker",
    "BrokerProcess",
    "History",
    "Operation",
    "Outcome",
    "SeededDice",
    "SimulatedDisk",
    "VirtualClock",
    "check",
    "line_of",
    "report",
]
