"""Counters of the hot path: plain integers, read by `http` when somebody asks."""

from __future__ import annotations


class TopicCounters:
    __slots__ = ("bytes_in", "bytes_out", "messages_in", "replication_bytes_in", "replication_bytes_out")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_in = 0
        # What followers here fetched, and what was given to followers elsewhere.
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0


class Metrics:
    __slots__ = (
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "isr_expands",
        "isr_shrinks",
        "produce_requests",
        "topics",
        "unclean_elections",
    )

    def __init__(self) -> None:
        self.produce_requests = 0
        self.failed_produce_requests = 0
        self.fetch_requests = 0
        self.failed_fetch_requests = 0
        self.isr_expands = 0
        self.isr_shrinks = 0
        self.unclean_elections = 0
        self.topics: dict[str, TopicCounters] = {}

    def topic(self, name: str) -> TopicCounters:
        counters = self.topics.get(name)
        if counters is None:
            counters = self.topics[name] = TopicCounters()
        return counters

    def forget(self, topic: str) -> None:
        self.topics.pop(topic, None)

    def total(self, name: str) -> int:
        return sum(int(getattr(each, name)) for each in self.topics.values())
