"""A partition as its leader sees it: which replicas are in sync and how far, hence what is committed.

- Committed is what every replica of the *maximal* in-sync set has: those that the controller knows of and those that
  were proposed to it. A proposal may be in force before we hear of it (KIP-497), so it counts once it leaves.
- Nothing is committed while fewer than `min.insync.replicas` are in sync (KIP-966): whoever is in that set or was
  eligible since then has everything that is committed.
- A follower joins once it has the high watermark and the start of our epoch, fetched in this epoch: before that its log
  may hold what an older leader wrote and nobody committed. It is proposed with the epoch of the broker that fetched, so
  that a broker which restarted meanwhile and lost its tail is not taken for it (KIP-903).
- A follower leaves when for `replica.lag.time.max.ms` it has not fetched up to the leader's end.

With one replica the leader is the whole in-sync set, and everything that it appended is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moldau.kernel import ErrorCode, KafkaError
from moldau.storage import LeaderEpochs

UNKNOWN_OFFSET = -1
UNKNOWN_BROKER_EPOCH = -1
# (replica, its broker epoch): whether the metadata has it alive, not shutting down, and in no later life.
IsEligible = Callable[[int, int], bool]

# After these the controller's answer is known and nothing changed: the next fetch or look may propose again.
_NOT_DONE = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA)
# After these the metadata says something that we have not heard yet; until then the proposal may be in force.
_NEWS_TO_COME = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
)


@dataclass(frozen=True, slots=True)
class InSyncProposal:
    """What the controller is asked to make of the in-sync replicas."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    added: int | None = None
    removed: tuple[int, ...] = ()


class FollowerState:
    """A follower as its fetches show it."""

    __slots__ = (
        "broker_epoch",
        "caught_up_ms",
        "end_offset",
        "fetched_ms",
        "is_joining",
        "leader_end_at_fetch",
        "start_offset",
    )

    def __init__(self, caught_up_ms: int) -> None:
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.end_offset = UNKNOWN_OFFSET
        self.start_offset = UNKNOWN_OFFSET
        # When it last had everything that there was.
        self.caught_up_ms = caught_up_ms
        self.fetched_ms = 0
        self.leader_end_at_fetch = UNKNOWN_OFFSET
        # Not in sync but caught up: the high watermark waits for it, else under steady load it would never get in.
        self.is_joining = False

    def note_fetch(self, broker_epoch: int, offset: int, start_offset: int, leader_end: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_fetch:
            # At the time of its last fetch there was no more than this.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.broker_epoch = broker_epoch
        self.end_offset = offset
        self.start_offset = start_offset
        self.leader_end_at_fetch = leader_end
        self.fetched_ms = now_ms

    def is_caught_up(self, leader_end: int, now_ms: int, lag_ms_max: int) -> bool:
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_ms_max


class PartitionLeader:
    """State of one leadership. Attributes are for reading only; the high watermark never falls."""

    __slots__ = (
        "_awaited",
        "_min_in_sync",
        "_node_epoch",
        "_wanted_in_sync",
        "epoch_start_offset",
        "followers",
        "high_watermark",
        "isr",
        "leader_epoch",
        "maximal_isr",
        "node_id",
        "partition_epoch",
        "proposal",
    )

    def __init__(
        self,
        node_id: int,
        leader_epoch: int,
        isr: tuple[int, ...],
        high_watermark: int,
        *,
        replicas: Sequence[int] | None = None,
        partition_epoch: int = 0,
        epoch_start_offset: int = 0,
        min_in_sync: int = 1,
        node_epoch: int = UNKNOWN_BROKER_EPOCH,
        now_ms: int = 0,
    ) -> None:
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = epoch_start_offset
        self.high_watermark = high_watermark
        self.partition_epoch = partition_epoch
        self._node_epoch = node_epoch
        self._wanted_in_sync = min_in_sync
        self.proposal: InSyncProposal | None = None
        self.isr: tuple[int, ...] = ()
        self.maximal_isr: tuple[int, ...] = ()
        self.followers: dict[int, FollowerState] = {}
        self._set_replicas(isr if replicas is None else replicas, isr, now_ms)
        self._commit(partition_epoch, isr)

    # -- the metadata --------------------------------------------------------------------------------------------------

    def follow_metadata(
        self, partition_epoch: int, replicas: Sequence[int], isr: tuple[int, ...], node_epoch: int, now_ms: int
    ) -> None:
        """A later state of this leadership; whatever we proposed before is in it, or will never be in force."""
        self._node_epoch = node_epoch
        if partition_epoch < self.partition_epoch:
            return
        self._set_replicas(replicas, isr, now_ms)
        if partition_epoch > self.partition_epoch:
            self._commit(partition_epoch, isr)

    def require_in_sync(self, replicas_min: int) -> None:
        """`min.insync.replicas`; what is committed cannot wait for more than there are replicas."""
        self._wanted_in_sync = replicas_min
        self._min_in_sync = min(replicas_min, len(self.followers) + 1)

    def _set_replicas(self, replicas: Sequence[int], isr: tuple[int, ...], now_ms: int) -> None:
        followers = {}
        for replica in replicas:
            if replica != self.node_id:
                known = self.followers.get(replica)
                followers[replica] = known or FollowerState(now_ms if replica in isr else 0)
        self.followers = followers
        self.require_in_sync(self._wanted_in_sync)
        self._await_followers()

    def _commit(self, partition_epoch: int, isr: tuple[int, ...]) -> None:
        self.partition_epoch = partition_epoch
        self.isr = self.maximal_isr = isr
        self.proposal = None
        for replica, state in self.followers.items():
            if replica in isr:
                state.is_joining = False
        self._await_followers()

    def _await_followers(self) -> None:
        """Whose ends bound the high watermark."""
        maximal = self.maximal_isr
        self._awaited = [state for replica, state in self.followers.items() if state.is_joining or replica in maximal]

    # -- what is committed ---------------------------------------------------------------------------------------------

    @property
    def min_in_sync(self) -> int:
        return self._min_in_sync

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self._min_in_sync

    @property
    def is_at_min_isr(self) -> bool:
        return len(self.isr) == self._min_in_sync

    def check_in_sync(self) -> None:
        """Acks=all is refused before the append when too few replicas are in sync (KAFKA-1555)."""
        if len(self.isr) < self._wanted_in_sync:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {list(self.isr)} is insufficient to satisfy the min.isr requirement of"
                f" {self._wanted_in_sync}.",
            )

    def advance(self, local_end_offset: int) -> bool:
        """The leader's log or a follower's grew; whether the high watermark moved."""
        committed = local_end_offset
        if self.followers:
            if len(self.isr) < self._min_in_sync:
                return False
            for state in self._awaited:
                if state.end_offset < committed:
                    committed = state.end_offset
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def verdict(self, end_offset: int) -> ErrorCode | None:
        """On an acks=all append up to `end_offset`; None while it waits.

        Who waits learns at once that too few are left to commit it now; it is in the log and may be committed later.
        """
        if len(self.maximal_isr) < self._min_in_sync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE if self.high_watermark >= end_offset else None

    @property
    def knows_latest_offset(self) -> bool:
        """Until what the last leader committed is surely committed here, "the latest offset" could fall (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    # -- followers -----------------------------------------------------------------------------------------------------

    def require_follower(self, replica: int, broker_epoch: int) -> FollowerState:
        """NOT_LEADER_OR_FOLLOWER: no replica of this partition, or one in an earlier life than we have seen."""
        state = self.followers.get(replica)
        if state is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica} is no replica of the partition")
        if broker_epoch < state.broker_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica} fetches with epoch {broker_epoch}, it has had {state.broker_epoch} since",
            )
        return state

    def note_fetch(
        self,
        replica: int,
        broker_epoch: int,
        offset: int,
        start_offset: int,
        local_end_offset: int,
        now_ms: int,
        *,
        lag_ms_max: int,
        is_eligible: IsEligible,
    ) -> InSyncProposal | None:
        """A follower has everything below `offset`; what to ask of the controller now, if anything.

        To be followed by `advance`.
        """
        state = self.require_follower(replica, broker_epoch)
        state.note_fetch(broker_epoch, offset, start_offset, local_end_offset, now_ms)
        if replica in self.isr:
            return None
        joins = state.is_caught_up(local_end_offset, now_ms, lag_ms_max) and is_eligible(replica, broker_epoch)
        if joins != state.is_joining:
            state.is_joining = joins
            self._await_followers()
        if (
            self.proposal is not None
            or offset < self.high_watermark
            or offset < self.epoch_start_offset
            or not is_eligible(replica, broker_epoch)
        ):
            return None
        self.maximal_isr = (*self.isr, replica)
        self._await_followers()
        return self._propose(self.maximal_isr, added=replica)

    def drop_laggards(
        self, local_end_offset: int, now_ms: int, *, lag_ms_max: int, is_eligible: IsEligible
    ) -> InSyncProposal | None:
        """The time or the metadata went on; to be followed by `advance`."""
        for replica, state in self.followers.items():
            if state.is_joining and not (
                state.is_caught_up(local_end_offset, now_ms, lag_ms_max) and is_eligible(replica, state.broker_epoch)
            ):
                state.is_joining = False
        self._await_followers()
        if self.proposal is not None:
            return None
        lagging = tuple(
            replica
            for replica in self.isr
            if replica != self.node_id
            and replica in self.followers
            and not self.followers[replica].is_caught_up(local_end_offset, now_ms, lag_ms_max)
        )
        if not lagging:
            return None
        # Until the controller agrees they count: it may elect one of them.
        return self._propose(tuple(replica for replica in self.isr if replica not in lagging), removed=lagging)

    def _propose(
        self, isr: tuple[int, ...], *, added: int | None = None, removed: tuple[int, ...] = ()
    ) -> InSyncProposal:
        epochs = tuple(
            self.followers[replica].broker_epoch if replica in self.followers else self._node_epoch for replica in isr
        )
        self.proposal = InSyncProposal(self.leader_epoch, self.partition_epoch, isr, epochs, added, removed)
        return self.proposal

    # -- the controller's answers --------------------------------------------------------------------------------------

    def on_accepted(
        self, proposal: InSyncProposal, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...]
    ) -> bool:
        """Whether the answer was news; the metadata may have said it before. To be followed by `advance`."""
        if proposal is not self.proposal or leader_epoch != self.leader_epoch or partition_epoch < self.partition_epoch:
            return False
        self._commit(partition_epoch, isr)
        return True

    def on_refused(self, proposal: InSyncProposal, code: ErrorCode) -> bool:
        """Whether to ask again: nobody knows whether it is in force."""
        if proposal is not self.proposal or code in _NEWS_TO_COME:
            return False
        if code not in _NOT_DONE:
            return True
        self.maximal_isr = self.isr
        self.proposal = None
        if proposal.added is not None and proposal.added in self.followers:
            self.followers[proposal.added].is_joining = False
        self._await_followers()
        return False


def divergence(
    epochs: LeaderEpochs, end_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """Where a fetcher's log parts from ours: (epoch, where it ends here), None when it does not (KIP-595)."""
    if last_fetched_epoch < 0:
        return None
    epoch, epoch_end = epochs.end_offset_for(last_fetched_epoch, end_offset)
    if epoch_end < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < last_fetched_epoch or epoch_end < fetch_offset:
        return epoch, epoch_end
    return None
