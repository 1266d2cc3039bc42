"""AlterPartition: what leaders here propose, brought to the controller, one request at a time, many partitions in each.

A request whose answer does not come may be in force all the same: the proposal stays, and is made again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from moldau.broker.partition import Partition
from moldau.cluster import InSyncProposal
from moldau.kernel import ErrorCode, KafkaError
from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from moldau.broker.node import Node

RETRY_MS_MIN, RETRY_MS_MAX = 50, 1_000


class InSyncProposals:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[Partition, InSyncProposal] = {}
        self._sender: asyncio.Task[None] | None = None
        self._is_stopping = False

    def send(self, partition: Partition, proposal: InSyncProposal) -> None:
        if self._is_stopping:
            return
        self._waiting[partition] = proposal
        if self._sender is None:
            self._sender = self._node.loop.create_task(self._send_all())

    def stop(self) -> None:
        self._is_stopping = True
        if self._sender is not None:
            self._sender.cancel()

    async def _send_all(self) -> None:
        retry_ms = RETRY_MS_MIN
        try:
            while self._waiting:
                under_way, self._waiting = self._waiting, {}
                try:
                    response = await self._node.alter_partition(self._request(under_way))
                except (OSError, KafkaError) as error:
                    self._node.say(f"alter_partition_failed partitions={len(under_way)} reason={str(error)!r}")
                    self._refuse_all(under_way, ErrorCode.REQUEST_TIMED_OUT)
                else:
                    self._take(under_way, response)
                if not self._waiting:
                    return
                if any(self._waiting.get(partition) is proposal for partition, proposal in under_way.items()):
                    await asyncio.sleep(retry_ms / 1000)
                    retry_ms = min(2 * retry_ms, RETRY_MS_MAX)
                else:
                    retry_ms = RETRY_MS_MIN
        finally:
            self._sender = None

    def _request(self, proposals: dict[Partition, InSyncProposal]) -> AlterPartitionRequest:
        node = self._node
        registration = node.image.brokers.get(node.node_id)
        topics: dict[bytes, AlterPartitionRequest.TopicData] = {}
        for partition, proposal in proposals.items():
            topic = topics.setdefault(partition.topic_id, AlterPartitionRequest.TopicData(partition.topic_id))
            topic.partitions.append(
                AlterPartitionRequest.PartitionData(
                    partition.index,
                    proposal.leader_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequest.BrokerState(replica, epoch)
                        for replica, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            node.node_id, -1 if registration is None else registration.epoch, list(topics.values())
        )

    def _take(self, under_way: dict[Partition, InSyncProposal], response: AlterPartitionResponse) -> None:
        if response.error_code:
            self._node.say(f"alter_partition_refused error={ErrorCode(response.error_code).name}")
            self._refuse_all(under_way, ErrorCode(response.error_code))
            return
        answers = {
            (topic.topic_id, answer.partition_index): answer for topic in response.topics for answer in topic.partitions
        }
        for partition, proposal in under_way.items():
            answer = answers.get((partition.topic_id, partition.index))
            if answer is None:
                self._refuse(partition, proposal, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif answer.error_code:
                self._refuse(partition, proposal, ErrorCode(answer.error_code))
            else:
                partition.on_proposal_accepted(proposal, answer.leader_epoch, answer.partition_epoch, tuple(answer.isr))

    def _refuse_all(self, under_way: dict[Partition, InSyncProposal], code: ErrorCode) -> None:
        for partition, proposal in under_way.items():
            self._refuse(partition, proposal, code)

    def _refuse(self, partition: Partition, proposal: InSyncProposal, code: ErrorCode) -> None:
        if code not in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.STALE_BROKER_EPOCH):
            self._node.say(f"isr_change_refused partition={partition} error={code.name}")
        if partition.on_proposal_refused(proposal, code):
            self._waiting.setdefault(partition, proposal)
