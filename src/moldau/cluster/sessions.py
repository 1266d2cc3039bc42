"""Which brokers the active controller hears from. In memory only: a new controller gives everybody a new session.

Pure; time comes in. A heartbeat that waits in a queue counts from when it was taken up, so a slow controller fences
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    epoch: int
    heard_ms: int
    metadata_offset: int = -1
    # The offset that everyone must have seen before a broker that shuts down may go; None while it does not want to.
    shutdown_offset: int | None = None
    # A connection of this incarnation broke: it has so long to be heard of again.
    suspect_until_ms: int | None = None

    @property
    def is_heard(self) -> bool:
        """Since this controller leads."""
        return self.metadata_offset >= 0


class BrokerSessions:
    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: dict[int, Session] = {}

    def begin(self, node_id: int, epoch: int, now_ms: int) -> None:
        self._sessions[node_id] = Session(epoch, now_ms)

    def end(self, node_id: int) -> None:
        self._sessions.pop(node_id, None)

    def clear(self) -> None:
        self._sessions.clear()

    def find(self, node_id: int) -> Session | None:
        return self._sessions.get(node_id)

    def touch(self, node_id: int, epoch: int, metadata_offset: int, now_ms: int) -> Session:
        session = self._sessions.get(node_id)
        if session is None or session.epoch != epoch:
            session = self._sessions[node_id] = Session(epoch, now_ms)
        session.heard_ms = now_ms
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        session.suspect_until_ms = None
        return session

    def suspect(self, node_id: int, epoch: int, until_ms: int) -> bool:
        """Its connection broke; whether that is news. Heartbeats in the meantime clear it of the suspicion."""
        session = self._sessions.get(node_id)
        if session is None or session.epoch != epoch or session.suspect_until_ms is not None:
            return False
        session.suspect_until_ms = until_ms
        return True

    def is_alive(self, node_id: int, now_ms: int) -> bool:
        session = self._sessions.get(node_id)
        return session is not None and now_ms < self._ends_ms(session)

    def _ends_ms(self, session: Session) -> int:
        end_ms = session.heard_ms + self.timeout_ms
        return end_ms if session.suspect_until_ms is None else min(end_ms, session.suspect_until_ms)

    def expired(self, now_ms: int) -> list[int]:
        return sorted(node_id for node_id, each in self._sessions.items() if now_ms >= self._ends_ms(each))

    @property
    def due_ms(self) -> int | None:
        """When the next session ends, if nothing is heard."""
        return min((self._ends_ms(each) for each in self._sessions.values()), default=None)

    def lowest_offset(self, but: int, followed: Callable[[int], int]) -> int:
        """What every other broker has seen of the metadata log: as it said, or as its fetches say (`followed`)."""
        offsets = [
            max(each.metadata_offset, followed(node_id) - 1)
            for node_id, each in self._sessions.items()
            if node_id != but
        ]
        return min(offsets, default=1 << 62)
