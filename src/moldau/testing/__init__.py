"""The shipped test kit: an embedded broker, and the simulated clock, disk and event loop that our own tests run on."""

from moldau.testing.broker import Broker, BrokerProcess
from moldau.testing.clock import VirtualClock
from moldau.testing.dice import SeededDice
from moldau.testing.disk import SimulatedDisk

__all__ = ["Broker", "BrokerProcess", "SeededDice", "SimulatedDisk", "VirtualClock"]
