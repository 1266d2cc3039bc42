"""A client of a simulated cluster: it asks whoever leads the partition, or coordinates the group or the transaction.

Requests that concern several leaders are split; what nobody answered is missing from the answer. It retries nothing by
itself, but it forgets leaders and coordinators that refused or kept silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from moldau.kernel import ErrorCode
from moldau.protocol.message import Message
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.produce import ProduceRequest, ProduceResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.testing.dice import SeededDice
from moldau.testing.history import Partition
from moldau.testing.simulation.client import REQUEST_MS, NoAnswer, SimulatedClient
from moldau.testing.simulation.network import SimulatedNetwork

GROUP, TRANSACTION = 0, 1
METADATA_VERSION = 12
# Where a request names the partitions that it is about, and its answer those that were served.
_PLACES: dict[type[Message], tuple[str, str, str]] = {
    ProduceRequest: ("topic_data", "name", "partition_data"),
    FetchRequest: ("topics", "topic", "partitions"),
    ListOffsetsRequest: ("topics", "name", "partitions"),
}
# Which coordinator a request is for, and under which key.
_COORDINATED: dict[type[Message], tuple[int, str]] = {
    InitProducerIdRequest: (TRANSACTION, "transactional_id"),
    AddPartitionsToTxnRequest: (TRANSACTION, "v3_and_below_transactional_id"),
    AddOffsetsToTxnRequest: (TRANSACTION, "transactional_id"),
    EndTxnRequest: (TRANSACTION, "transactional_id"),
    TxnOffsetCommitRequest: (GROUP, "group_id"),
    OffsetCommitRequest: (GROUP, "group_id"),
    OffsetFetchRequest: (GROUP, "group_id"),
}
_MOVED = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))


class ClusterClient:
    def __init__(self, network: SimulatedNetwork, ports: Mapping[int, int], name: str, dice: SeededDice) -> None:
        """`ports` are those of the brokers, by id."""
        self._loop = network.loop
        self._dice = dice
        self._links = {node_id: SimulatedClient(network, port, name) for node_id, port in ports.items()}
        self._ids = list(ports)
        self._leaders: dict[Partition, int] = {}
        self._leader_epochs: dict[Partition, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        # Told of every batch that a broker called written.
        self.on_acknowledged: Callable[[Partition, int], None] = lambda partition, base_offset: None

    async def ask(self, request: Message, version: int, *, timeout_ms: int = REQUEST_MS, lingers: bool = True) -> Any:
        kind = type(request)
        if kind in _PLACES:
            return await self._ask_leaders(request, version, timeout_ms, lingers)
        if kind in _COORDINATED:
            coordinator, field = _COORDINATED[kind]
            key = getattr(request, field)
            if key is not None:
                return await self._ask_coordinator((coordinator, key), request, version, timeout_ms, lingers)
        response = await self._links[self._anyone()].ask(request, version, timeout_ms=timeout_ms, lingers=lingers)
        if isinstance(request, FindCoordinatorRequest):
            for found in response.coordinators:
                if not found.error_code:
                    self._coordinators[request.key_type, found.key] = found.node_id
        return response

    async def ask_node(self, node_id: int, request: Message, version: int) -> Any:
        return await self._links[node_id].ask(request, version)

    def _anyone(self) -> int:
        return self._ids[self._dice.below(len(self._ids))]

    # -- coordinators --------------------------------------------------------------------------------------------------

    async def _ask_coordinator(
        self, key: tuple[int, str], request: Message, version: int, timeout_ms: int, lingers: bool
    ) -> Any:
        if key not in self._coordinators:
            find = FindCoordinatorRequest(key_type=key[0], coordinator_keys=[key[1]])
            try:
                await self.ask(find, 5)
            except NoAnswer:
                raise NoAnswer(was_sent=False) from None
            if key not in self._coordinators:
                raise NoAnswer(was_sent=False)
        try:
            response = await self._links[self._coordinators[key]].ask(
                request, version, timeout_ms=timeout_ms, lingers=lingers
            )
        except NoAnswer:
            self._coordinators.pop(key, None)
            raise
        if any(code in _MOVED for code in _codes_of(response)):
            self._coordinators.pop(key, None)
        return response

    # -- leaders -------------------------------------------------------------------------------------------------------

    async def _ask_leaders(self, request: Any, version: int, timeout_ms: int, lingers: bool) -> Any:
        topics_field, name_field, partitions_field = _PLACES[type(request)]
        wanted: list[tuple[Partition, Any]] = [
            ((getattr(topic, name_field), _index_of(each)), each)
            for topic in getattr(request, topics_field)
            for each in getattr(topic, partitions_field)
        ]
        if any(partition not in self._leaders for partition, _ in wanted):
            await self._look_up({topic for (topic, _), _ in wanted})
        by_leader: dict[int, list[tuple[Partition, Any]]] = {}
        for partition, each in wanted:
            leader = self._leaders.get(partition)
            if leader is not None:
                if hasattr(each, "current_leader_epoch"):
                    # KIP-320: a replica that does not lead any more, or not yet, says so.
                    each.current_leader_epoch = self._leader_epochs[partition]
                by_leader.setdefault(leader, []).append((partition, each))
        if not by_leader:
            raise NoAnswer(was_sent=False)
        asked = [
            self._ask_leader(leader, _part(request, parts), version, timeout_ms, lingers)
            for leader, parts in by_leader.items()
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer, parts in zip(answers, by_leader.values(), strict=True):
            if isinstance(answer, NoAnswer):
                for partition, _ in parts:
                    self._leaders.pop(partition, None)
            elif isinstance(answer, BaseException):
                raise answer
        came = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not came:
            raise NoAnswer(any(isinstance(each, NoAnswer) and each.was_sent for each in answers))
        for answer in came:
            self._note(answer)
        return _joined(came)

    async def _ask_leader(self, leader: int, request: Message, version: int, timeout_ms: int, lingers: bool) -> Any:
        return await self._links[leader].ask(request, version, timeout_ms=timeout_ms, lingers=lingers)

    async def _look_up(self, topics: set[str]) -> None:
        kinds = MetadataRequest
        request = MetadataRequest(
            topics=[kinds.MetadataRequestTopic(name=name) for name in sorted(topics)], allow_auto_topic_creation=False
        )
        try:
            response = await self._links[self._anyone()].ask(request, METADATA_VERSION)
        except NoAnswer:
            raise NoAnswer(was_sent=False) from None
        for topic in response.topics:
            for each in topic.partitions:
                if each.leader_id in self._links:
                    self._leaders[topic.name, each.partition_index] = each.leader_id
                    self._leader_epochs[topic.name, each.partition_index] = each.leader_epoch

    def _note(self, answer: Any) -> None:
        found: list[tuple[Partition, Any]]
        if isinstance(answer, ProduceResponse):
            found = [
                ((topic.name, each.index), each) for topic in answer.responses for each in topic.partition_responses
            ]
            for partition, each in found:
                if not each.error_code and each.base_offset >= 0:
                    self.on_acknowledged(partition, each.base_offset)
        elif isinstance(answer, FetchResponse):
            found = [
                ((topic.topic, each.partition_index), each) for topic in answer.responses for each in topic.partitions
            ]
        else:
            found = [((topic.name, each.partition_index), each) for topic in answer.topics for each in topic.partitions]
        for partition, each in found:
            if each.error_code:
                self._leaders.pop(partition, None)


def _index_of(each: Any) -> int:
    for name in ("index", "partition", "partition_index"):
        if hasattr(each, name):
            return int(getattr(each, name))
    raise AssertionError(f"{each} names no partition")


def _part(request: Any, parts: list[tuple[Partition, Any]]) -> Message:
    """The same request about some of its partitions."""
    topics_field, name_field, partitions_field = _PLACES[type(request)]
    kind = type(getattr(request, topics_field)[0])
    topics: dict[str, Any] = {}
    for (topic, _), each in parts:
        if topic not in topics:
            topics[topic] = kind(**{name_field: topic})
        getattr(topics[topic], partitions_field).append(each)
    fields = {name: getattr(request, name) for name in type(request).__slots__}
    made: Message = type(request)(**{**fields, topics_field: list(topics.values())})
    return made


def _joined(answers: list[Any]) -> Any:
    whole = answers[0]
    for answer in answers[1:]:
        if isinstance(whole, ListOffsetsResponse):
            whole.topics += answer.topics
        else:
            whole.responses += answer.responses
    return whole


def _codes_of(message: Any) -> list[int]:
    """Every error code in an answer, however deep."""
    codes: list[int] = []
    for name in getattr(type(message), "__slots__", ()):
        value = getattr(message, name)
        if name.endswith("error_code"):
            codes.append(value)
        elif isinstance(value, list):
            for each in value:
                codes += _codes_of(each)
    return codes
