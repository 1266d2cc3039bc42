"""A commit whose broker dies between any two of its writes: the decision, each marker, the completion."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from moldau.protocol.batches import Record, build_batch, iterate_batches
from moldau.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.end_txn import EndTxnRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.produce import ProduceRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.testing import BrokerProcess
from tests.differential.wire import CLOSED, Wire

PARTITIONS = 3
# The decision, a marker for each partition and for the group's offsets, the completion.
WRITES = 1 + PARTITIONS + 1 + 1
SECONDS_MAX = 30.0
AT_REST = ("Empty", "CompleteCommit", "CompleteAbort")
SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


def ask_until(wire: Wire, request: Any, version: int, is_enough: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        answer = wire.ask(request, version)
        if not isinstance(answer, str) and is_enough(answer):
            return answer
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)


def found(answer: Any) -> bool:
    return bool(answer.coordinators) and all(each.error_code == 0 for each in answer.coordinators)


class Play:
    """A transaction with a record in each partition of a topic, and the offset of a group beside them."""

    def __init__(self, wire: Wire, name: str, *, is_explicit: bool) -> None:
        self.name, self.is_explicit = name, is_explicit
        topics = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)]
        wire.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
        for kind in (0, 1):
            ask_until(wire, FindCoordinatorRequest(key_type=kind, coordinator_keys=[name]), 4, found)
        self.producer_id, self.epoch = self.initialize(wire)

    def initialize(self, wire: Wire) -> tuple[int, int]:
        given = ask_until(wire, InitProducerIdRequest(self.name, 60_000), 4, lambda answer: answer.error_code == 0)
        return given.producer_id, given.producer_epoch

    def fill(self, wire: Wire) -> None:
        who = self.producer_id, self.epoch
        if self.is_explicit:
            topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(self.name, list(range(PARTITIONS)))
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=who[0],
                v3_and_below_producer_epoch=who[1],
                v3_and_below_topics=[topic],
            )
            added: Any = wire.ask(request, 3)
            codes = [each.partition_error_code for each in added.results_by_topic_v3_and_below[0].results_by_partition]
            assert codes == [0] * PARTITIONS
            offsets: Any = wire.ask(AddOffsetsToTxnRequest(self.name, *who, self.name), 3)
            assert offsets.error_code == 0
        record = Record(0, int(time.time() * 1000), None, b"value")
        batch = build_batch([record], producer_id=who[0], producer_epoch=who[1], base_sequence=0, transactional=True)
        data = [ProduceRequest.PartitionProduceData(index, bytes(batch)) for index in range(PARTITIONS)]
        topics = [ProduceRequest.TopicProduceData(name=self.name, partition_data=data)]
        produced: Any = wire.ask(ProduceRequest(self.name, -1, 10_000, topics), 11 if self.is_explicit else 12)
        assert [each.error_code for each in produced.responses[0].partition_responses] == [0] * PARTITIONS
        committed = [TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=42)]
        commit: Any = wire.ask(
            TxnOffsetCommitRequest(
                self.name,
                self.name,
                *who,
                topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(self.name, committed)],
            ),
            3 if self.is_explicit else 5,
        )
        assert commit.topics[0].partitions[0].error_code == 0

    def end(self, wire: Wire) -> Any:
        request = EndTxnRequest(self.name, self.producer_id, self.epoch, committed=True)
        return wire.ask(request, 3 if self.is_explicit else 5)

    def visible(self, wire: Wire, index: int) -> int:
        """Records of a partition that a reader of committed records is given."""
        partition = FetchRequest.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            isolation_level=1,
            topics=[FetchRequest.FetchTopic(topic=self.name, partitions=[partition])],
        )
        answer: Any = wire.ask(request, 11)
        fetched = answer.responses[0].partitions[0]
        aborted = {each.producer_id for each in fetched.aborted_transactions or ()}
        return sum(
            header.record_count
            for header, _ in iterate_batches(fetched.records or b"")
            if not header.is_control and header.producer_id not in aborted
        )

    def ends(self, wire: Wire, isolation_level: int) -> list[int]:
        wanted = [
            ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(PARTITIONS)
        ]
        topics = [ListOffsetsRequest.ListOffsetsTopic(self.name, wanted)]
        answer: Any = wire.ask(ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics), 6)
        return [each.offset for each in answer.topics[0].partitions]

    def group_offset(self, wire: Wire) -> int:
        topics = [OffsetFetchRequest.OffsetFetchRequestTopics(self.name, partition_indexes=[0])]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(self.name, topics=topics)
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        answer = ask_until(
            wire,
            request,
            8,
            lambda answer: (
                answer.groups[0].error_code == 0 and answer.groups[0].topics[0].partitions[0].error_code == 0
            ),
        )
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    def wait_at_rest(self, wire: Wire) -> str:
        request = DescribeTransactionsRequest([self.name])
        answer = ask_until(wire, request, 0, lambda answer: answer.transaction_states[0].transaction_state in AT_REST)
        return str(answer.transaction_states[0].transaction_state)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("generation", ("explicit", "implicit"))
def test_a_commit_is_whole_or_absent_wherever_the_broker_is_killed(generation: str) -> None:
    with BrokerProcess(SETTINGS) as broker:
        for write in range(1, WRITES + 2):
            wire = Wire(broker.bootstrap)
            play = Play(wire, f"t{write}", is_explicit=generation == "explicit")
            play.fill(wire)
            calls = "pwrite64,pwritev"
            tracer = subprocess.Popen(
                [
                    "strace",
                    "-f",
                    "-p",
                    str(broker.pid),
                    f"-etrace={calls}",
                    f"-einject={calls}:signal=KILL:when={write}",
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            answer = play.end(wire)
            if write == 1:
                assert answer == CLOSED, "who is not decided yet is not answered"
            else:
                assert answer.error_code == 0, "the decision is logged: whatever happens now, it is committed"
            if write > WRITES:
                tracer.terminate()
                tracer.communicate()
            else:
                tracer.communicate()
                broker.kill()
                broker.start()
                wire = Wire(broker.bootstrap)
            if write == 1:
                play.initialize(wire)  # never decided: the next instance aborts it
            state = play.wait_at_rest(wire)
            is_committed = write > 1
            assert state == ("CompleteCommit" if is_committed else "Empty"), write
            assert [play.visible(wire, index) for index in range(PARTITIONS)] == [int(is_committed)] * PARTITIONS, write
            assert play.ends(wire, 0) == play.ends(wire, 1), "nothing hangs"
            assert play.group_offset(wire) == (42 if is_committed else -1), write
