"""A controller's part in the voter set of the log (kraft.version 1): its address there is kept true, and with
`controller.quorum.auto.join.enable` a controller that does not vote yet asks to.

`wanted` decides, pure; `VoterUpkeep` asks the leader until there is nothing to ask for, and looks again now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moldau.consensus import ReplicaKey, VoterEndpoint, Voters, same_directory
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.message import Message
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau.protocol.messages.update_raft_voter import UpdateRaftVoterRequest

if TYPE_CHECKING:
    from moldau.broker.node import Node

AUTO_JOIN = "controller.quorum.auto.join.enable"
KRAFT_VERSIONS = (0, 1)
ASK_MS_MAX = 5_000
# Until a granted change is in the log here, or a refused one may be granted.
RETRY_MS = 300


def wanted(
    key: ReplicaKey, endpoints: Sequence[VoterEndpoint], voters: Voters, *, cluster_id: str, epoch: int, may_join: bool
) -> Message | None:
    """What a controller has to ask of the leader, which it may be itself."""
    own = voters.find(key.node_id)
    if own is None:
        if not may_join:
            return None
        kinds = AddRaftVoterRequest
        listeners = [kinds.Listener(*each) for each in endpoints]
        # The answer must not wait for a commit: the newcomer counts for it, and may be waiting for this answer.
        return kinds(cluster_id, ASK_MS_MAX, key.node_id, key.directory_id, listeners, ack_when_committed=False)
    if not same_directory(own.key.directory_id, key.directory_id):
        # The node lost its disk: what it was before cannot vote any more.
        return RemoveRaftVoterRequest(cluster_id, key.node_id, own.key.directory_id) if may_join else None
    if own.endpoints == tuple(endpoints) and (own.kraft_version_min, own.kraft_version_max) == KRAFT_VERSIONS:
        return None
    update = UpdateRaftVoterRequest
    return update(
        cluster_id,
        epoch,
        key.node_id,
        key.directory_id,
        [update.Listener(*each) for each in endpoints],
        update.KRaftVersionFeature(*KRAFT_VERSIONS),
    )


class VoterUpkeep:
    def __init__(self, node: Node, endpoints: Sequence[VoterEndpoint]) -> None:
        self._node = node
        self._endpoints = endpoints
        self._said = ""

    async def run(self) -> None:
        node = self._node
        if not self._endpoints:
            return  # a quorum of one that nobody else could reach
        pause_ms = max(node.settings.integer("controller.quorum.fetch.timeout.ms"), 1)
        while not node.is_stopping:
            request = self._wanted()
            if request is None:
                await node.controller.wait_news(pause_ms)
            else:
                await self._ask(request)
                await asyncio.sleep(RETRY_MS / 1000)

    def _wanted(self) -> Message | None:
        node = self._node
        quorum = node.controller.quorum
        if node.kraft_version == 0 or quorum.leader_id < 0:
            return None
        key = ReplicaKey(node.node_id, quorum.directory_id)
        return wanted(
            key,
            self._endpoints,
            quorum.voters,
            cluster_id=node.cluster_id,
            epoch=quorum.epoch,
            may_join=node.settings.flag(AUTO_JOIN),
        )

    async def _ask(self, request: Message) -> None:
        node, name = self._node, type(request).__name__.removesuffix("Request")
        try:
            answer = await node.channel.ask(request, timeout_ms=ASK_MS_MAX)
            code, reason = ErrorCode(answer.error_code), getattr(answer, "error_message", None)
        except KafkaError as error:
            code, reason = error.code, error.message
        if code is ErrorCode.NONE:
            line = f"voter_change_granted request={name}"
        else:
            line = f"voter_change_refused request={name} error={code.name} reason={reason or ''!r}"
        if line != self._said:
            self._said = line
            node.say(line)
