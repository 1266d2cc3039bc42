"""Who leads the metadata log, and how much of it is agreed: KRaft's Raft as a pure machine, one member's view.

Events come in by method with everything they need, the time included; effects come out as a list, in the order in which
the shell must carry them out, and before the next event comes in. Requests from other members are answered with
`(effects, answer)`: the answer leaves when the effects are carried out. `poll` gives what is due at a time, `due_ms`
says when to ask again.

    unattached --election timeout--> prospective --a majority would vote for it--> candidate (epoch + 1, votes for
    itself) --majority--> leader --LeaderChange record--> ... --no majority fetches any more, or stop--> resigned
    follower --fetch timeout, or its leader's address is dead--> prospective
    any --a higher epoch--> unattached, or follower where the leader is known

Replication is by pull: followers fetch, and what a voter asks for says what it holds on disk. The log itself is the
shell's (`QuorumLog`); the leader's work is in `leadership.py`. Members that do not vote (observers) only follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from moldau.consensus.leadership import Leadership
from moldau.consensus.messages import (
    NO_LEADER,
    NO_VOTE,
    AdvanceHighWatermark,
    AgreedRecordsLostError,
    Answer,
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BeginEpochRequest,
    Effect,
    EndEpochRequest,
    EpochEnd,
    FetchAnswer,
    FetchRequest,
    InstallSnapshot,
    PersistState,
    QuorumLog,
    QuorumState,
    Request,
    Send,
    SnapshotAnswer,
    SnapshotRequest,
    TruncateTo,
    VoteAnswer,
    VoteRequest,
    WriteSnapshot,
)
from moldau.consensus.voters import NO_DIRECTORY, ReplicaKey, Voter, Voters, same_directory
from moldau.kernel import Dice, ErrorCode, KafkaError

NEVER = 1 << 62
# Two followers that notice a dead leader at once should not stand against each other.
HINT_JITTER_MS = 150


class Role(Enum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    election_timeout_ms: int = 1000  # controller.quorum.election.timeout.ms
    election_backoff_ms_max: int = 1000  # controller.quorum.election.backoff.max.ms
    fetch_timeout_ms: int = 2000  # controller.quorum.fetch.timeout.ms
    retry_backoff_ms: int = 20  # controller.quorum.retry.backoff.ms


class Quorum:
    def __init__(
        self,
        key: ReplicaKey,
        log: QuorumLog,
        state: QuorumState,
        voters: Voters,
        *,
        config: QuorumConfig,
        dice: Dice,
        bootstrap: tuple[int, ...] = (),
        can_vote: bool = True,
    ) -> None:
        """`bootstrap` names addresses (by ids below -1) that may know the leader; `can_vote` is false for a broker."""
        self.key = key
        self.config = config
        self.epoch = max(state.epoch, log.last_epoch)
        is_state_current = state.epoch == self.epoch
        self.leader_id = state.leader_id if is_state_current else NO_LEADER
        self.voted = ReplicaKey(NO_VOTE)
        if is_state_current and state.voted_id != NO_VOTE:
            self.voted = ReplicaKey(state.voted_id, state.voted_directory_id)
        self.role = Role.UNATTACHED
        # A snapshot holds nothing but what was agreed.
        self.high_watermark = 0 if log.snapshot is None else log.snapshot.end_offset
        self.leadership: Leadership | None = None
        self._log = log
        self._dice = dice
        self._bootstrap = bootstrap
        self._can_vote = can_vote
        # Voter sets by the offset of their records; the last one is in force. -1: from configuration or a snapshot.
        self._voter_sets: list[tuple[int, Voters]] = [(-1, voters)]
        self._answers: dict[int, bool] = {}
        # Voters that could not be asked, so far.
        self._silent: set[int] = set()
        self._successors: tuple[ReplicaKey, ...] = ()
        self._deadline_ms = NEVER
        # When the request that our role sends to a member may be sent (again); NEVER while one is under way.
        self._send_at_ms: dict[int, int] = {}
        self._elections_lost = 0
        self._has_fetched = False
        self._awaits_flush = False
        self._leader_high_watermark = 0
        self._loading: tuple[EpochEnd, int] | None = None

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self.key.node_id

    @property
    def directory_id(self) -> bytes:
        return self.key.directory_id

    @property
    def voters(self) -> Voters:
        return self._voter_sets[-1][1]

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_voter(self) -> bool:
        return self._can_vote and self.voters.has(self.key)

    @property
    def state(self) -> QuorumState:
        return QuorumState(self.epoch, self.leader_id, self.voted.node_id, self.voted.directory_id)

    @property
    def due_ms(self) -> int:
        """When `poll` is to be called, if nothing else comes before."""
        due = min((self._deadline_ms, *self._send_at_ms.values()))
        if self.leadership is not None and len(self.voters.all) > 1:
            return min(due, self.leadership.check_at_ms)
        return due

    @property
    def are_voters_agreed(self) -> bool:
        """Whether the voters that are in force are also committed."""
        return self._voter_sets[-1][0] < self.high_watermark

    # -- time ----------------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list[Effect]:
        """Take up what was persisted. The only voter leads at once."""
        if self._is_only_voter:
            return self._stand(now_ms)
        if self.leader_id == self.node_id:
            # It led this epoch in an earlier life and cannot know what it promised: it leads the next one at best.
            self.leader_id = NO_LEADER
            self.voted = self.key
        if self.leader_id != NO_LEADER:
            self._follow(self.leader_id, now_ms)
        else:
            self._detach(now_ms)
        return []

    @property
    def _is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters.all) == 1

    def poll(self, now_ms: int) -> list[Effect]:
        """What is due: the end of a wait, a request to send."""
        effects: list[Effect] = []
        if self.leadership is not None and self.leadership.has_lost_majority(self.voters, now_ms):
            effects += self.resign(now_ms)
        if now_ms >= self._deadline_ms:
            effects += self._on_timeout(now_ms)
        for node_id in sorted(self._send_at_ms):
            if self._send_at_ms[node_id] <= now_ms:
                request = self._request_to(node_id, now_ms)
                if request is None:
                    del self._send_at_ms[node_id]
                    continue
                self._send_at_ms[node_id] = NEVER
                effects.append(Send(node_id, request))
        return effects

    def _on_timeout(self, now_ms: int) -> list[Effect]:
        if not self.is_voter:
            # An observer only looks for the leader anew.
            self.leader_id = NO_LEADER
            self._detach(now_ms)
            return []
        if self.role is Role.PROSPECTIVE and self.leader_id != NO_LEADER:
            # KIP-996: nobody would vote for it; perhaps its leader is back.
            self._follow(self.leader_id, now_ms)
            return []
        return self._ask_beforehand(now_ms)

    def _request_to(self, node_id: int, now_ms: int) -> Request | None:
        if self.role in (Role.PROSPECTIVE, Role.CANDIDATE):
            voter = self.voters.find(node_id)
            if voter is None or node_id in self._answers:
                return None
            is_pre_vote = self.role is Role.PROSPECTIVE
            return VoteRequest(self.epoch, self.key, self._log.last_epoch, self._log.end_offset, is_pre_vote, voter.key)
        if self.leadership is not None:
            voter = self.voters.find(node_id)
            return None if voter is None else BeginEpochRequest(self.epoch, self.node_id, voter.key)
        if self.role is Role.RESIGNED:
            return EndEpochRequest(self.epoch, self.node_id, self._successors)
        if self._awaits_flush:
            return None
        if self._loading is not None:
            return SnapshotRequest(self.epoch, self.key, *self._loading)
        return FetchRequest(self.epoch, self.key, self._log.end_offset, self._log.last_epoch, self.high_watermark)

    # -- changes of role -----------------------------------------------------------------------------------------------

    def _enter(self, role: Role, deadline_ms: int) -> None:
        self.role = role
        self._deadline_ms = deadline_ms
        self._send_at_ms = {}
        self._answers = {}
        self._silent = set()
        self._awaits_flush = False
        self._leader_high_watermark = 0
        if role is not Role.FOLLOWER:
            self._loading = None
        if role is not Role.LEADER:
            self.leadership = None

    def _election_timeout_ms(self) -> int:
        return self.config.election_timeout_ms + self._dice.below(self.config.election_timeout_ms)

    def _detach(self, now_ms: int) -> None:
        """Nobody is known to lead: wait for an election or a leader, and ask around."""
        self._enter(Role.UNATTACHED, now_ms + self._election_timeout_ms())
        others = [node_id for node_id in self.voters.ids if node_id != self.node_id]
        others += self._bootstrap
        if others:
            # One of them, as all the others do; the answer names the leader.
            self._send_at_ms = {others[self._dice.below(len(others))]: now_ms}

    def _follow(self, leader_id: int, now_ms: int) -> None:
        self._enter(Role.FOLLOWER, now_ms + self.config.fetch_timeout_ms)
        self.leader_id = leader_id
        self._has_fetched = False
        self._elections_lost = 0
        self._send_at_ms = {leader_id: now_ms}

    def _ask_beforehand(self, now_ms: int) -> list[Effect]:
        """Pre-vote (KIP-996): a member that is cut off must not raise epochs that nobody needs."""
        self._enter(Role.PROSPECTIVE, now_ms + self._election_timeout_ms())
        self._answers = {self.node_id: True}
        if self.voters.is_majority([self.node_id]):
            return self._stand(now_ms)
        self._send_at_ms = {node_id: now_ms for node_id in self.voters.ids if node_id != self.node_id}
        return []

    def _stand(self, now_ms: int) -> list[Effect]:
        self._enter(Role.CANDIDATE, now_ms + self._election_timeout_ms())
        self.epoch += 1
        self.leader_id = NO_LEADER
        self.voted = self.key
        self._answers = {self.node_id: True}
        effects: list[Effect] = [PersistState(self.state)]
        if self.voters.is_majority([self.node_id]):
            return effects + self._lead(now_ms)
        self._send_at_ms = {node_id: now_ms for node_id in self.voters.ids if node_id != self.node_id}
        return effects

    def _lead(self, now_ms: int) -> list[Effect]:
        granting = tuple(sorted(self._granting))
        self._enter(Role.LEADER, NEVER)
        self._elections_lost = 0
        self.leader_id = self.node_id
        # As Kafka writes it: a known leader says more than a vote, and nobody else is voted for in this epoch.
        self.voted = ReplicaKey(NO_VOTE)
        self.leadership = Leadership(
            self.key, self._log.end_offset, now_ms, fetch_timeout_ms=self.config.fetch_timeout_ms
        )
        self._send_at_ms = {node_id: now_ms for node_id in self.voters.ids if node_id != self.node_id}
        return [PersistState(self.state), AppendLeaderChange(self.epoch, self.node_id, self.voters.ids, granting)]

    def resign(self, now_ms: int) -> list[Effect]:
        """Stop leading: asked to stop, removed from the voters, or without a majority that fetches."""
        assert self.leadership is not None
        self._successors = self.leadership.successors(self.voters)
        self._enter(Role.RESIGNED, now_ms + self._election_timeout_ms())
        self.leader_id = NO_LEADER
        self.voted = self.key
        self._send_at_ms = {node_id: now_ms for node_id in self.voters.ids if node_id != self.node_id}
        return [PersistState(self.state)]

    def _hear(self, epoch: int, leader_id: int, now_ms: int) -> list[Effect]:
        """Someone knows of this epoch and, perhaps, of its leader."""
        if leader_id == self.node_id:
            leader_id = NO_LEADER
        if epoch > self.epoch:
            self.epoch = epoch
            self.voted = ReplicaKey(NO_VOTE)
            self.leader_id = leader_id
            if leader_id == NO_LEADER:
                self._detach(now_ms)
            else:
                self._follow(leader_id, now_ms)
            return [PersistState(self.state)]
        if epoch == self.epoch and leader_id != NO_LEADER:
            if self.leader_id == NO_LEADER and self.role is not Role.RESIGNED:
                # Our vote stays: an observer that loses sight of this leader must not give another one.
                self.leader_id = leader_id
                self._follow(leader_id, now_ms)
                return [PersistState(self.state)]
            known = (leader_id, NO_LEADER)
            assert self.leader_id in known, f"epoch {epoch} has two leaders, {self.leader_id} and {leader_id}"
        return []

    # -- votes ---------------------------------------------------------------------------------------------------------

    def on_vote(self, request: VoteRequest, now_ms: int) -> tuple[list[Effect], VoteAnswer]:
        if request.epoch < self.epoch:
            return [], self._vote_answer(ErrorCode.FENCED_LEADER_EPOCH)
        effects: list[Effect] = []
        if request.epoch > self.epoch:
            effects += self._hear(request.epoch, NO_LEADER, now_ms)
        if not self._is_meant(request.voter):
            return effects, self._vote_answer(ErrorCode.INVALID_VOTER_KEY)
        own = (self._log.last_epoch, self._log.end_offset)
        is_log_current = (request.last_epoch, request.end_offset) >= own
        if request.is_pre_vote:
            return effects, self._vote_answer(granted=is_log_current and self._would_vote)
        granted = is_log_current and self._may_vote_for(request.candidate)
        if granted and self.voted.node_id == NO_VOTE:
            self.voted = request.candidate
            effects.append(PersistState(self.state))
            # Whoever voted gives the other time to win.
            self._detach(now_ms)
        return effects, self._vote_answer(granted=granted)

    def _is_meant(self, voter: ReplicaKey) -> bool:
        """Older versions name no voter, static voters no directory."""
        is_node = voter.node_id in (NO_VOTE, self.node_id)
        return is_node and voter.directory_id in (NO_DIRECTORY, self.directory_id)

    @property
    def _would_vote(self) -> bool:
        """KIP-996: not while the member has a leader that answers it."""
        if self.role is Role.FOLLOWER:
            return not self._has_fetched
        return self.role is not Role.LEADER

    def _may_vote_for(self, candidate: ReplicaKey) -> bool:
        if self.voted.node_id != NO_VOTE:
            is_same_node = self.voted.node_id == candidate.node_id
            return is_same_node and same_directory(self.voted.directory_id, candidate.directory_id)
        return self.leader_id == NO_LEADER and self.role in (Role.UNATTACHED, Role.PROSPECTIVE)

    def _vote_answer(self, error: ErrorCode = ErrorCode.NONE, *, granted: bool = False) -> VoteAnswer:
        return VoteAnswer(self.epoch, self.leader_id, error, granted)

    def on_vote_answer(self, voter_id: int, request: VoteRequest, answer: VoteAnswer, now_ms: int) -> list[Effect]:
        effects = self._hear(answer.epoch, answer.leader_id, now_ms)
        wanted = Role.PROSPECTIVE if request.is_pre_vote else Role.CANDIDATE
        if self.role is not wanted or request.epoch != self.epoch or voter_id not in self.voters.ids:
            return effects
        if answer.error is not ErrorCode.NONE:
            self._retry(voter_id, now_ms)
            return effects
        self._answers[voter_id] = answer.granted
        self._silent.discard(voter_id)
        self._send_at_ms.pop(voter_id, None)
        if self.voters.is_majority(self._granting):
            return effects + (self._stand(now_ms) if request.is_pre_vote else self._lead(now_ms))
        self._back_off_if_lost(now_ms)
        return effects

    @property
    def _granting(self) -> list[int]:
        return [node_id for node_id, is_granted in self._answers.items() if is_granted]

    def _back_off_if_lost(self, now_ms: int) -> None:
        """Those that can be reached have answered, and it is not enough."""
        undecided = set(self.voters.ids) - self._answers.keys() - self._silent
        if len(self._granting) + len(undecided) <= len(self.voters.all) // 2:
            self._deadline_ms = min(self._deadline_ms, now_ms + self._backoff_ms())

    def _backoff_ms(self) -> int:
        """Lost: the next try comes later, and at another time than the others' tries."""
        self._elections_lost += 1
        longest = min(self.config.election_backoff_ms_max, 50 << min(self._elections_lost, 10))
        return 1 + self._dice.below(max(longest, 1))

    # -- the beginning and the end of a leader -------------------------------------------------------------------------

    def on_begin_epoch(self, request: BeginEpochRequest, now_ms: int) -> tuple[list[Effect], Answer]:
        if request.epoch < self.epoch:
            return [], self._answer(ErrorCode.FENCED_LEADER_EPOCH)
        effects = self._hear(request.epoch, request.leader_id, now_ms)
        if not self._is_meant(request.voter):
            return effects, self._answer(ErrorCode.INVALID_VOTER_KEY)
        return effects, self._answer()

    def on_end_epoch(self, request: EndEpochRequest, now_ms: int) -> tuple[list[Effect], Answer]:
        if request.epoch < self.epoch:
            return [], self._answer(ErrorCode.FENCED_LEADER_EPOCH)
        effects = self._hear(request.epoch, request.leader_id, now_ms)
        if self.role is Role.FOLLOWER and self.leader_id == request.leader_id:
            self._has_fetched = False
            names = [key.node_id for key in request.successors]
            rank = names.index(self.node_id) if self.node_id in names else len(names)
            # The first stands at once; the others give those before them time, twice as much each.
            wait_ms = 0 if rank == 0 else self.config.retry_backoff_ms * (1 << min(rank, 6)) + self._dice.below(50)
            self._deadline_ms = min(self._deadline_ms, now_ms + wait_ms)
        return effects, self._answer()

    def _answer(self, error: ErrorCode = ErrorCode.NONE) -> Answer:
        return Answer(self.epoch, self.leader_id, error)

    def on_epoch_answer(
        self, node_id: int, request: BeginEpochRequest | EndEpochRequest, answer: Answer, now_ms: int
    ) -> list[Effect]:
        effects = self._hear(answer.epoch, answer.leader_id, now_ms)
        if request.epoch == self.epoch and self.role in (Role.LEADER, Role.RESIGNED):
            if answer.error is ErrorCode.NONE:
                self._send_at_ms.pop(node_id, None)
            else:
                self._retry(node_id, now_ms)
        return effects

    def on_failed(self, node_id: int, request: Request, now_ms: int, *, is_unreachable: bool = False) -> list[Effect]:
        """No answer came. `is_unreachable`: nobody listens at the address, or the connection broke."""
        if request.epoch != self.epoch or node_id not in self._send_at_ms:
            return []
        if self.role in (Role.UNATTACHED, Role.FOLLOWER) and not isinstance(request, FetchRequest | SnapshotRequest):
            return []
        if self.role is Role.RESIGNED:
            del self._send_at_ms[node_id]
            return []
        if self.role is Role.UNATTACHED:
            deadline_ms = self._deadline_ms
            self._detach(now_ms)
            self._deadline_ms = deadline_ms
            self._send_at_ms = dict.fromkeys(self._send_at_ms, now_ms + self.config.retry_backoff_ms)
            return []
        self._retry(node_id, now_ms)
        if self.role in (Role.PROSPECTIVE, Role.CANDIDATE) and node_id in self.voters.ids:
            self._silent.add(node_id)
            self._back_off_if_lost(now_ms)
        if self.role is Role.FOLLOWER and is_unreachable:
            # Only a hint that the leader is gone. A pre-vote finds out, and does no harm where it is not.
            self._has_fetched = False
            hint_ms = now_ms + self.config.retry_backoff_ms + self._dice.below(HINT_JITTER_MS)
            self._deadline_ms = min(self._deadline_ms, hint_ms)
        return []

    def _retry(self, node_id: int, now_ms: int) -> None:
        # A voter that is down asks who leads when it is back: the leader need not insist.
        pause_ms = self.config.retry_backoff_ms * (25 if self.is_leader else 1)
        self._send_at_ms[node_id] = now_ms + pause_ms

    # -- replication: the follower's side ------------------------------------------------------------------------------

    def on_fetch_answer(self, node_id: int, request: FetchRequest, answer: FetchAnswer, now_ms: int) -> list[Effect]:
        effects = self._hear(answer.epoch, answer.leader_id, now_ms)
        if self.role is Role.UNATTACHED:
            if node_id in self._send_at_ms:
                self._send_at_ms = {}
                self._look_elsewhere(now_ms)
            return effects
        is_current = self.role is Role.FOLLOWER and node_id == self.leader_id and request.epoch == self.epoch
        # An answer may come twice. A log that was cut since may end where it did, with other records.
        asked_from = (request.fetch_offset, request.last_fetched_epoch)
        if not is_current or self._awaits_flush or asked_from != (self._log.end_offset, self._log.last_epoch):
            return effects
        if answer.error is not ErrorCode.NONE:
            self._retry(node_id, now_ms)
            return effects
        self._heard_from_leader(now_ms)
        if answer.snapshot is not None:
            self._check_keeps_agreed(answer.snapshot.end_offset)
            self._loading = (answer.snapshot, 0)
        elif answer.diverging is not None:
            own = self._log.end_of_epoch(answer.diverging.epoch)
            offset = min(own.end_offset, answer.diverging.end_offset)
            self._check_keeps_agreed(offset)
            effects += self._truncate(offset)
        else:
            # Up to the fetch offset, and only there, our log is known to be a part of the leader's.
            self._leader_high_watermark = answer.high_watermark
            if answer.records is None:
                return effects + self.note_log_end()
            effects.append(AppendFetched(answer.records))
            # Also before it votes: the leader may count it as a voter before it reads that it is one.
            self._awaits_flush = self._can_vote
        return effects

    def _check_keeps_agreed(self, end_offset: int) -> None:
        """A leader has all that was agreed, unless a majority of those who agreed lost their disks."""
        if end_offset < self.high_watermark:
            raise AgreedRecordsLostError(self.leader_id, self.epoch, end_offset, self.high_watermark)

    def _look_elsewhere(self, now_ms: int) -> None:
        deadline_ms = self._deadline_ms
        self._detach(now_ms)
        self._deadline_ms = deadline_ms
        self._send_at_ms = dict.fromkeys(self._send_at_ms, now_ms + self.config.retry_backoff_ms * 2)

    def _heard_from_leader(self, now_ms: int) -> None:
        self._has_fetched = True
        self._deadline_ms = now_ms + self.config.fetch_timeout_ms
        self._send_at_ms = {self.leader_id: now_ms}

    def _truncate(self, offset: int) -> list[Effect]:
        while self._voter_sets[-1][0] >= offset:
            self._voter_sets.pop()
        return [TruncateTo(offset)]

    def note_log_end(self) -> list[Effect]:
        """What was fetched is in the log: as much of it counts as the leader says is agreed."""
        if self.role is not Role.FOLLOWER:
            return []
        offset = min(self._leader_high_watermark, self._log.end_offset)
        return self._advance(offset)

    def _advance(self, offset: int) -> list[Effect]:
        if offset <= self.high_watermark:
            return []
        self.high_watermark = offset
        while len(self._voter_sets) > 1 and self._voter_sets[1][0] < offset:
            self._voter_sets.pop(0)
        return [AdvanceHighWatermark(offset)]

    def on_snapshot_answer(
        self, node_id: int, request: SnapshotRequest, answer: SnapshotAnswer, now_ms: int
    ) -> list[Effect]:
        effects = self._hear(answer.epoch, answer.leader_id, now_ms)
        is_current = self.role is Role.FOLLOWER and node_id == self.leader_id and request.epoch == self.epoch
        if not is_current or self._loading != (request.snapshot, request.position):
            return effects
        if answer.error is not ErrorCode.NONE or answer.position != request.position:
            # The leader has a newer one by now, perhaps: ask for the log again.
            self._loading = None
            self._retry(node_id, now_ms)
            return effects
        self._heard_from_leader(now_ms)
        effects.append(WriteSnapshot(request.snapshot, request.position, answer.data))
        position = request.position + len(answer.data)
        if position < answer.size:
            self._loading = (request.snapshot, position)
            return effects
        self._loading = None
        self.high_watermark = max(self.high_watermark, request.snapshot.end_offset)
        return [*effects, InstallSnapshot(request.snapshot)]

    # -- replication: the leader's side --------------------------------------------------------------------------------

    def on_fetch(self, request: FetchRequest, now_ms: int) -> tuple[list[Effect], FetchAnswer]:
        """An answer without records, diverging or snapshot: the shell adds the records from the fetch offset on."""
        refused = self._refuse_follower(request.epoch)
        effects: list[Effect] = []
        if refused is not None:
            if request.epoch > self.epoch:
                effects = self._hear(request.epoch, NO_LEADER, now_ms)
            return effects, FetchAnswer(self.epoch, self.leader_id, refused)
        assert self.leadership is not None
        diverging, snapshot = self._place_of(request)
        if diverging is None and snapshot is None:
            effects = self._note_replica(request, now_ms)
            if not self.is_leader:
                # What it held made the leader's own removal agreed.
                return effects, FetchAnswer(self.epoch, self.leader_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        known = self._known_high_watermark
        return effects, FetchAnswer(self.epoch, self.leader_id, ErrorCode.NONE, known, diverging, snapshot)

    def _note_replica(self, request: FetchRequest, now_ms: int) -> list[Effect]:
        assert self.leadership is not None
        replica = request.replica
        if replica.node_id < 0:
            return []  # someone who only looks
        is_voter = self.voters.has(replica) and replica.node_id != self.node_id
        self.leadership.note_fetch(
            replica, request.fetch_offset, request.high_watermark, self._log.end_offset, now_ms, is_voter=is_voter
        )
        return self._agree(now_ms)

    @property
    def _known_high_watermark(self) -> int:
        """Before the leader's own epoch is agreed it does not know the high watermark (Kafka says -1 then)."""
        assert self.leadership is not None
        return self.high_watermark if self.high_watermark > self.leadership.epoch_start_offset else -1

    def _refuse_follower(self, epoch: int) -> ErrorCode | None:
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return None if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _place_of(self, request: FetchRequest) -> tuple[EpochEnd | None, EpochEnd | None]:
        """(where to go back to, what to load first): none of both when the follower's log is a part of ours."""
        log = self._log
        newest, oldest = log.snapshot, log.first_snapshot
        offset, epoch = request.fetch_offset, request.last_fetched_epoch
        if newest is not None and oldest is not None:
            if offset < log.start_offset or offset == 0 or epoch < oldest.epoch:
                return None, newest
            if offset == log.start_offset:
                return (None, None) if epoch == oldest.epoch else (None, newest)
        elif offset == log.start_offset == 0 and epoch == 0:
            return None, None
        end = log.end_of_epoch(epoch)
        if end.epoch != epoch or end.end_offset < offset:
            return end, None
        return None, None

    def on_snapshot(self, request: SnapshotRequest, now_ms: int) -> tuple[list[Effect], SnapshotAnswer]:
        """The shell adds the bytes, or says that it has no such snapshot any more."""
        refused = self._refuse_follower(request.epoch)
        if refused is not None:
            effects = self._hear(request.epoch, NO_LEADER, now_ms) if request.epoch > self.epoch else []
            return effects, SnapshotAnswer(self.epoch, self.leader_id, refused)
        assert self.leadership is not None
        if self.voters.has(request.replica):
            self.leadership.note_alive(request.replica.node_id, self.voters, now_ms)
        return [], SnapshotAnswer(self.epoch, self.leader_id, position=request.position)

    def flushed(self, end_offset: int, now_ms: int) -> list[Effect]:
        """Everything below `end_offset` is on this node's disk."""
        if self.leadership is not None:
            self.leadership.note_flushed(end_offset)
            return self._agree(now_ms)
        if self._awaits_flush and end_offset >= self._log.end_offset:
            self._awaits_flush = False
            if self.role is Role.FOLLOWER:
                self._send_at_ms = {self.leader_id: now_ms}
        return []

    def _agree(self, now_ms: int) -> list[Effect]:
        assert self.leadership is not None
        effects = self._advance(self.leadership.agreed_offset(self.voters))
        is_removed = bool(effects) and not self.is_voter and self._voter_sets[-1][0] < self.high_watermark
        return [*effects, *self.resign(now_ms)] if is_removed else effects

    # -- voters --------------------------------------------------------------------------------------------------------

    def note_voters(self, offset: int, voters: Voters) -> None:
        """A record with voters is in the log at this offset; it is in force from now on."""
        self._voter_sets.append((offset, voters))
        if self.leadership is not None:
            known = {self.node_id, *self.leadership.voters}
            self._send_at_ms |= {node_id: 0 for node_id in voters.ids if node_id not in known}

    def begin_with_voters(self, voters: Voters) -> None:
        """A snapshot that was loaded names the voters."""
        self._voter_sets = [(-1, voters)]

    def add_voter(self, voter: Voter) -> list[Effect]:
        """KIP-853: one at a time, and only a replica that has caught up."""
        leadership = self._check_may_change_voters()
        if self.voters.find(voter.key.node_id) is not None:
            raise KafkaError(
                ErrorCode.DUPLICATE_VOTER, f"The voter id for {voter.key.node_id} is already part of the set of voters."
            )
        if not leadership.has_caught_up(voter.key, self.high_watermark):
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"Node {voter.key.node_id} has not caught up with the metadata log; start it as a controller first.",
            )
        return [AppendVoters(self.voters.with_voter(voter))]

    def remove_voter(self, key: ReplicaKey) -> list[Effect]:
        self._check_may_change_voters()
        known = self.voters.find(key.node_id)
        if known is None or not self.voters.has(key):
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"Cannot remove node {key.node_id}: it is not a voter.")
        if len(self.voters.all) == 1:
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"Cannot remove node {key.node_id}: it is the only voter.")
        return [AppendVoters(self.voters.without(key.node_id))]

    def update_voter(self, voter: Voter) -> list[Effect]:
        self._check_may_change_voters()
        if not self.voters.has(voter.key):
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"Cannot update node {voter.key.node_id}: it is not a voter.")
        return [] if self.voters.find(voter.key.node_id) == voter else [AppendVoters(self.voters.with_voter(voter))]

    def _check_may_change_voters(self) -> Leadership:
        if self.leadership is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead the metadata quorum.")
        if self.high_watermark <= self.leadership.epoch_start_offset:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The leader's own epoch is not agreed yet; try again.")
        if self._voter_sets[-1][0] >= self.high_watermark:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "Another change of the voters is under way; try again.")
        return self.leadership
