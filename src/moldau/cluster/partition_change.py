"""One partition's next state: who is in sync, who may lead after that (ELR), who leads. Pure.

Everything that changes a partition goes through `PartitionChange`: a leader's AlterPartition, a broker that is fenced
or comes back, elections, reassignments. It completes a reassignment that is ripe, keeps the eligible leader replicas
(KIP-966), elects where the leader is gone, and says in one record only what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.cluster.image import PartitionImage
from moldau.kernel import NO_LEADER
from moldau.protocol.messages.metadata_records.partition_change_record import PartitionChangeRecord

LEADER_UNCHANGED = -2
RECOVERED, RECOVERING = 0, 1


class Election(Enum):
    ONLINE = "online"  # keep the leader while it may lead
    PREFERRED = "preferred"  # the first replica, when it may lead
    UNCLEAN = "unclean"  # whoever is alive, when nobody in sync is


class _State(NamedTuple):
    isr: list[int]
    replicas: list[int]
    removing: list[int]
    adding: list[int]


@dataclass(frozen=True, slots=True)
class PartitionChange:
    topic_id: bytes
    index: int
    before: PartitionImage
    may_lead: Callable[[int], bool]
    min_isr: int
    keeps_elr: bool
    election: Election = Election.ONLINE
    # None: as they are.
    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    recovery_state: int | None = None
    # Replicas that stopped uncleanly: what they acknowledged may be gone.
    unclean: Sequence[int] = ()
    # A log directory for a replica that had none; other replicas keep theirs.
    directory_of: Callable[[int], bytes] = lambda _replica: bytes(16)

    def record(self) -> PartitionChangeRecord | None:
        """What changes, or None when nothing does."""
        before = self.before
        state = _complete_reassignment(
            _State(
                list(before.isr if self.isr is None else self.isr),
                list(before.replicas if self.replicas is None else self.replicas),
                list(before.removing if self.removing is None else self.removing),
                list(before.adding if self.adding is None else self.adding),
            ),
            self.min_isr,
        )
        elr, last_known = self._eligible(state)
        leader, isr, is_unclean = self._elect(state, elr)
        recovery_state = self.recovery_state
        if leader != NO_LEADER:
            last_known = []
        if is_unclean:
            elr, recovery_state = [], RECOVERING
        record = PartitionChangeRecord(partition_id=self.index, topic_id=self.topic_id)
        if leader != before.leader:
            record.leader = leader
        elif set(before.replicas) - set(state.replicas):
            # A replica that is gone must not go on fetching in this epoch.
            record.leader = before.leader
        if list(isr) != list(before.isr) and (isr or self.keeps_elr):
            record.isr = list(isr)
        if state.replicas != list(before.replicas):
            record.replicas = state.replicas
            known = dict(zip(before.replicas, before.directories, strict=True))
            record.directories = [known.get(each) or self.directory_of(each) for each in state.replicas]
        if state.removing != list(before.removing):
            record.removing_replicas = state.removing
        if state.adding != list(before.adding):
            record.adding_replicas = state.adding
        if elr != list(before.elr):
            record.eligible_leader_replicas = elr
        if last_known != list(before.last_known_elr):
            record.last_known_elr = last_known
        if recovery_state is not None and recovery_state != before.leader_recovery_state:
            record.leader_recovery_state = recovery_state
        return None if record == PartitionChangeRecord(partition_id=self.index, topic_id=self.topic_id) else record

    # -- eligible leaders ----------------------------------------------------------------------------------------------

    def _eligible(self, state: _State) -> tuple[list[int], list[int]]:
        """(ELR, last known leader): who holds all that was committed while too few are in sync."""
        before = self.before
        if not self.keeps_elr:
            return [], []
        if len(state.isr) >= min(self.min_isr, len(state.replicas)):
            return [], []
        candidates = dict.fromkeys([*before.elr, *before.isr])
        elr = [
            replica
            for replica in candidates
            if replica not in state.isr and replica not in self.unclean and replica in state.replicas
        ]
        last_known: list[int] = []
        if not state.isr:
            # Eligible ones may yet be found to have stopped uncleanly: who led last is remembered from the beginning.
            last_known = [before.leader] if before.leader != NO_LEADER else list(before.last_known_elr)
        return elr, last_known

    # -- elections -----------------------------------------------------------------------------------------------------

    def _elect(self, state: _State, elr: list[int]) -> tuple[int, list[int], bool]:
        """(leader, ISR, whether what was committed may be lost)."""
        isr = list(state.isr)
        leader = self._choose(state.replicas, isr, elr)
        if leader == NO_LEADER:
            if self.election is Election.UNCLEAN:
                alive = [replica for replica in state.replicas if self.may_lead(replica)]
                if alive:
                    return alive[0], [alive[0]], True
            known = list(self.before.last_known_elr)
            if self.keeps_elr and not isr and not elr and len(known) == 1 and self.may_lead(known[0]):
                return known[0], known, True
            return NO_LEADER, isr, False
        if leader not in isr:
            elr.remove(leader)
            isr = [leader]
        return leader, isr, False

    def _choose(self, replicas: list[int], isr: list[int], elr: list[int]) -> int:
        """Somebody of whom nothing is lost: of those in sync, or of the eligible ones where nobody is."""

        def is_good(replica: int) -> bool:
            is_complete = replica in isr or (not isr and self.keeps_elr and replica in elr)
            return is_complete and self.may_lead(replica)

        preferred = replicas[0]
        if self.election is Election.PREFERRED and is_good(preferred):
            return preferred
        leader = self.before.leader
        if leader in replicas and is_good(leader):
            return leader
        return next((replica for replica in replicas if is_good(replica)), NO_LEADER)


def _complete_reassignment(state: _State, min_isr: int) -> _State:
    """Once all that are added are in sync, and enough with them, the removed ones go.

    Apache Kafka lets them go also when those that stay are below `min.insync.replicas`. What was committed may then lie
    on one replica, and the loss of that one's disk is its end.
    """
    if not state.adding and not state.removing:
        return state
    target = [replica for replica in state.replicas if replica not in state.removing]
    isr = [replica for replica in state.isr if replica in target]
    if len(isr) < max(min(min_isr, len(target)), 1) or set(state.adding) - set(isr):
        return state
    return _State(isr, target, [], [])
