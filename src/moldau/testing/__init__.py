"""The shipped test kit: an embedded broker, and the simulated clock, disk and event loop that our own tests run on."""

from moldau.testing.broker import Broker, BrokerProcess

__all__ = ["Broker", "BrokerProcess"]
