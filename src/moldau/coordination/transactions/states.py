"""The states of a transaction, as its log and DescribeTransactions name them, and which may follow which."""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    # About to be forgotten: never logged, a tombstone is.
    DEAD = 6
    # On the way from ONGOING to PREPARE_ABORT when a newer instance or the clock ends it: never logged.
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As Kafka writes it: PrepareCommit."""
        return _TITLES[self]


_TITLES = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
STATES_BY_TITLE = {title: state for state, title in _TITLES.items()}

_S = TransactionState
AT_REST = frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT))
PREPARED = frozenset((_S.PREPARE_COMMIT, _S.PREPARE_ABORT))
LOGGED = AT_REST | PREPARED | {_S.ONGOING}

# A state -> those that it may come from. PREPARE_ABORT out of rest is an abort of nothing, which bumps the epoch all
# the same (KIP-890).
MAY_FOLLOW: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: AT_REST,
    _S.ONGOING: AT_REST | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset((_S.ONGOING,)),
    _S.PREPARE_EPOCH_FENCE: frozenset((_S.ONGOING,)),
    _S.PREPARE_ABORT: AT_REST | {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},
    _S.COMPLETE_COMMIT: frozenset((_S.PREPARE_COMMIT,)),
    _S.COMPLETE_ABORT: frozenset((_S.PREPARE_ABORT,)),
    _S.DEAD: AT_REST,
}
