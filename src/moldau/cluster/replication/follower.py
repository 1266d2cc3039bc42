"""A partition as a follower has it: what of the leader's log it may keep, and how much of it is committed.

Logs are compared by leader epochs, never by high watermarks (KIP-101): what lies above a follower's high watermark may
be committed all the same, and only the leader's epochs say what is not.
"""

from __future__ import annotations

from moldau.storage import LeaderEpochs


class PartitionFollower:
    """State of one time of following. The high watermark falls only with the log."""

    __slots__ = ("high_watermark", "leader_epoch", "leader_high_watermark", "leader_id")

    def __init__(self, leader_id: int, leader_epoch: int, high_watermark: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        # What the leader last said, which may be beyond our end.
        self.leader_high_watermark = 0

    def on_fetched(self, leader_high_watermark: int, local_end_offset: int) -> bool:
        """What the leader says is committed, as far as we have it; whether that is more than before."""
        self.leader_high_watermark = leader_high_watermark
        committed = min(leader_high_watermark, local_end_offset)
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def on_truncated(self, local_end_offset: int) -> None:
        self.high_watermark = min(self.high_watermark, local_end_offset)

    def on_restarted(self, start_offset: int) -> None:
        """The log is empty and goes on where the leader's begins: all that lies below was committed."""
        self.high_watermark = start_offset


def truncation_offset(epochs: LeaderEpochs, end_offset: int, diverging_epoch: int, diverging_end: int) -> int:
    """Where to cut a log of which the leader says that it parts at the end of an epoch.

    The leader's epoch is the last one not above ours. If we do not have it either, the last one before it decides, and
    the next fetch asks again: after a fast double failover logs may part more than once (KIP-279).
    """
    _, own_end = epochs.end_offset_for(diverging_epoch, end_offset)
    if own_end < 0:
        return min(diverging_end, end_offset)
    return min(own_end, diverging_end, end_offset)
