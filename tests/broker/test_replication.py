"""Brokers that replicate: what is acknowledged, what followers have, who is in sync, what a change of leader does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moldau.broker.markers import End
from moldau.broker.reply import Reply
from moldau.kernel import ErrorCode, ProducerIdAndEpoch, TopicPartition
from moldau.protocol.batches import Record, build_batch, iterate_batches
from moldau.protocol.markers import Marker
from moldau.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.metadata_records.remove_topic_record import RemoveTopicRecord
from moldau.protocol.messages.produce import ProduceRequest
from tests.broker.replication_rig import Rig, until
from tests.broker.test_produce_and_fetch import framed
from tests.robustness.kit import Gate, HookedDisk


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_followers_hold_the_leaders_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            for number in range(50):
                answer = await rig.produce(0, "t", b"%d" % number, b"x" * number)
                assert answer.error_code == 0
            await until(lambda: rig.are_equal("t"))
            assert rig.partition(1, "t").high_watermark == 100
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t") != b""

    run(main())


def test_acks_all_answers_once_every_in_sync_replica_holds_the_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"first")).error_code == 0
            rig.cut(2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"second"))
            await until(lambda: rig.partition(1, "t").log.end_offset == 2)
            assert not waiting.done() and rig.partition(0, "t").high_watermark == 1
            rig.change("t", 0, isr=(0, 1))
            assert (await waiting).base_offset == 1

    run(main())


@pytest.mark.parametrize("late_seconds", [0.0, 0.05])
def test_a_new_partition_does_not_wait_for_its_followers_polls(tmp_path: Path, late_seconds: float) -> None:
    """Also when the followers hear of it later than the leader, who has ended their polls by then."""

    async def main() -> None:
        async with Rig(tmp_path, {"replica.fetch.wait.max.ms": "50000"}) as rig:
            rig.create("old", (0, 1, 2))
            assert (await rig.produce(0, "old", b"first")).error_code == 0
            for follower in (rig.node(1), rig.node(2)):
                hear_late = partial(asyncio.get_running_loop().call_later, late_seconds, follower.hear)
                follower.hear = hear_late  # type: ignore[method-assign]
            rig.create("new", (0, 1, 2))
            assert (await rig.produce(0, "new", b"first")).error_code == 0

    run(main())


def test_a_follower_whose_log_starts_later_while_it_polls_goes_on(tmp_path: Path) -> None:
    """Retention is each replica's own. The leader says in a session only what is new, and does not say it twice."""

    async def main() -> None:
        async with Rig(tmp_path, {"replica.fetch.wait.max.ms": "50000"}) as rig:
            rig.create("t", (0, 1))
            assert (await rig.produce(0, "t", b"first")).error_code == 0
            await until(lambda: rig.are_equal("t"))
            follower = rig.partition(1, "t")
            follower.log.roll(rig.node(1).clock.now_ms())
            follower.start_wanted = 1
            follower.give_up_before(1, rig.node(1).clock.now_ms())
            for _ in range(2):
                assert (await rig.produce(0, "t", b"more", timeout_ms=3000)).error_code == 0
            await until(lambda: follower.high_watermark == 3)

    run(main())


def test_what_a_late_answer_says_of_the_leader_is_not_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path, {"replica.fetch.wait.max.ms": "200"}) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"first")).error_code == 0
            await until(lambda: rig.are_equal("t"))
            rig.cut(2)
            await rig.produce(0, "t", b"second", acks=1)
            follower = rig.partition(1, "t")
            await until(lambda: follower.log.end_offset == 2)
            # The poll that is under way learns that more is committed, and comes back to a log that starts later.
            rig.change("t", 0, isr=(0, 1))
            follower.log.roll(rig.node(1).clock.now_ms())
            follower.start_wanted = 1
            follower.give_up_before(1, rig.node(1).clock.now_ms())
            await until(lambda: follower.high_watermark == 2)

    run(main())


def test_followers_that_take_too_long_are_a_timeout(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            rig.cut(1)
            answer = await rig.produce(0, "t", b"v", timeout_ms=50)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert (await rig.produce(0, "t", b"v", acks=1)).error_code == 0

    run(main())


@pytest.mark.parametrize("version", range(9, 14))
@pytest.mark.parametrize("case", ["committed", "too slow", "too few", "another leader", "deleted"])
def test_a_single_batch_that_waits_for_followers_answers_what_the_handler_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, version: int
) -> None:
    """Byte for byte, behind an answer that waits as well."""

    async def answers(rig: Rig, topic: str) -> bytes:
        rig.create(topic, (0, 1, 2), min__insync__replicas="2")
        topic_id = rig.image.topics[topic].id
        assert (await rig.produce(0, topic, b"first")).error_code == 0
        rig.cut(1, 2)
        host, _, port = rig.node(0).listeners.bootstrap.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in (7, 8):
            data = ProduceRequest.PartitionProduceData(0, build_batch([Record(0, 1, b"k", b"v")]))
            named = ProduceRequest.TopicProduceData(topic, topic_id, [data])
            request = ProduceRequest(None, -1, 100 if case == "too slow" else 10_000, [named])
            writer.write(framed(request, version, number))
        await until(lambda: rig.partition(0, topic).log.end_offset == 3)
        if case == "committed":
            rig.heal()
        elif case == "too few":
            rig.change(topic, 0, isr=(0,))
        elif case == "another leader":
            rig.change(topic, 0, leader=1)
        elif case == "deleted":
            rig.publish([RemoveTopicRecord(topic_id)])
        frames = []
        for _ in range(2):
            size = await reader.readexactly(4)
            frames.append(size + await reader.readexactly(int.from_bytes(size, "big")))
        writer.close()
        rig.heal()
        return b"".join(frames).replace(topic.encode(), b"topic-?").replace(topic_id, bytes(16))

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            counted = rig.node(0).listeners.dispatchers[0]
            fast = await answers(rig, "topic-a")
            assert counted.fast_produce_count == 3, "both, and the first one"
            monkeypatch.setattr("moldau.broker.dispatch.FAST_PRODUCE_VERSION_MIN", 99)
            assert fast == await answers(rig, "topic-b")
            assert counted.fast_produce_count == 3

    run(main())


def test_too_few_in_sync_replicas_refuse_before_the_append_and_say_so_after_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2), min__insync__replicas="2")
            rig.cut(1, 2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"v"))
            await until(lambda: rig.partition(0, "t").log.end_offset == 1)
            rig.change("t", 0, isr=(0,))
            assert (await waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert (await rig.produce(0, "t", b"w")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert (await rig.produce(0, "t", b"x", acks=1)).error_code == 0
            assert rig.partition(0, "t").high_watermark == 0, "nothing is committed below min.insync.replicas"
            rig.heal()
            await until(lambda: rig.partition(0, "t").high_watermark == 2)

    run(main())


def test_a_follower_that_falls_behind_leaves_and_joins_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path, {"replica.lag.time.max.ms": "300"}) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"v")).error_code == 0
            await rig.kill(2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"w"))
            await until(lambda: rig.isr("t") == (0, 1), "the in-sync set shrinks")
            assert (await waiting).error_code == 0
            rig.start(2)
            await until(lambda: set(rig.isr("t")) == {0, 1, 2}, "it grows again")
            await until(lambda: rig.are_equal("t"))
            assert rig.node(0).metrics.isr_shrinks == 1 == rig.node(0).metrics.isr_expands
            assert rig.bytes_of(2, "t") == rig.bytes_of(0, "t")

    run(main())


def test_a_former_leader_gives_up_what_the_new_one_never_had(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"kept")).error_code == 0
            await until(lambda: rig.are_equal("t"))
            rig.cut(1, 2)
            for number in range(3):
                await rig.produce(0, "t", b"lost %d" % number, acks=1)
            assert rig.partition(0, "t").log.end_offset == 4
            rig.change("t", 0, isr=(1, 2), leader=1)
            rig.heal()
            assert (await rig.produce(1, "t", b"new", acks=1)).base_offset == 1
            await until(lambda: rig.are_equal("t") and rig.partition(0, "t").log.end_offset == 2)
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t")
            await until(lambda: set(rig.isr("t")) == {0, 1, 2})

    run(main())


def test_a_leader_that_was_killed_follows_when_it_returns(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            assert (await rig.produce(0, "t", b"a")).error_code == 0
            await rig.kill(0)
            rig.fence(0)
            leader = rig.image.topics["t"].partitions[0].leader
            assert (await rig.produce(leader, "t", b"b")).error_code == 0
            rig.start(0)
            await until(lambda: set(rig.isr("t")) == {0, 1, 2} and rig.are_equal("t"))
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t")

    run(main())


def test_a_log_that_is_cut_on_a_slow_disk_holds_up_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the same leader nor of this broker; nothing is written to it before the cut is durable."""

    async def main() -> None:
        disk = HookedDisk()
        monkeypatch.setattr("tests.broker.replication_rig.SystemDisk", disk)
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            rig.create("other", (1, 0))
            assert (await rig.produce(0, "t", b"kept")).error_code == 0
            rig.cut(1)
            await rig.produce(0, "t", b"lost", b"lost", acks=1)
            gate = Gate("sync", "broker-0/t-0")
            disk.hook = gate
            rig.change("t", 0, isr=(1,), leader=1)
            rig.heal()
            await rig.produce(1, "t", b"new", acks=1)
            await until(gate.reached.is_set)
            assert (await rig.produce(1, "other", b"v", timeout_ms=5000)).error_code == 0
            await asyncio.sleep(0.3)  # several fetches' time
            partition = rig.partition(0, "t")
            assert partition.is_flushing and partition.log.end_offset == 1
            rig.change("t", 0, isr=(0,), leader=0)
            assert (await rig.produce(0, "t", b"too early", acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            rig.change("t", 0, isr=(1,), leader=1)
            gate.opened.set()
            await until(lambda: rig.are_equal("t") and partition.log.end_offset == 2)
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t")
            await until(lambda: set(rig.isr("t")) == {0, 1})

    run(main())


def test_a_broker_that_stops_waits_until_its_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = HookedDisk()
        monkeypatch.setattr("tests.broker.replication_rig.SystemDisk", disk)
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            assert (await rig.produce(0, "t", b"kept")).error_code == 0
            rig.cut(1)
            await rig.produce(0, "t", b"lost", b"lost", acks=1)
            gate = Gate("sync", "broker-0/t-0")
            disk.hook = gate
            rig.change("t", 0, isr=(1,), leader=1)
            rig.heal()
            await rig.produce(1, "t", b"new", acks=1)
            await until(gate.reached.is_set)
            node, rig.members[0].node = rig.node(0), None
            stopping = asyncio.create_task(node.stop())
            await asyncio.sleep(0.2)
            assert not stopping.done()
            gate.opened.set()
            await stopping
            rig.fence(0)
            rig.start(0)
            await until(lambda: rig.are_equal("t") and set(rig.isr("t")) == {0, 1})
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t")

    run(main())


# -- what the log has besides records ----------------------------------------------------------------------------------


def test_a_retry_is_found_out_by_the_next_leader_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            batch = build_batch([Record(0, 1, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0)
            assert (await rig.produce_batch(0, "t", batch)).base_offset == 0
            rig.change("t", 0, leader=1)
            again = build_batch([Record(0, 1, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0)
            answer = await rig.produce_batch(1, "t", again)
            assert (answer.error_code, answer.base_offset) == (0, 0)
            gap = build_batch([Record(0, 1, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=5)
            assert (await rig.produce_batch(1, "t", gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(main())


def test_followers_know_which_transactions_were_aborted(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            leader = rig.partition(0, "t")
            for producer_id, is_committed in ((7, False), (8, True)):
                batch = build_batch(
                    [Record(0, 1, b"k", b"v")],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
                leader.append(batch, 1, 1)
                leader.append_marker(producer_id, 0, Marker(is_committed, 0), 1, 1)
            leader.append(
                build_batch(
                    [Record(0, 1, b"k", b"v")],
                    producer_id=9,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                ),
                1,
                1,
            )
            await until(lambda: rig.are_equal("t"))
            for node_id in (0, 1, 2):
                log = rig.partition(node_id, "t").log
                assert [each.producer_id for each in log.aborted_transactions(0, 9)] == [7]
                await until(lambda node_id=node_id: rig.partition(node_id, "t").last_stable_offset == 4)
            answer = await rig.fetch(1, "t", 0, isolation_level=1)
            assert [each.producer_id for each in answer.aborted_transactions] == [7]
            assert answer.last_stable_offset == 4

    run(main())


def test_a_marker_counts_once_every_in_sync_replica_has_it_also_where_batches_are_synced(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2), flush__messages="1")
            batch = build_batch(
                [Record(0, 1, None, b"open")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
            )
            leader = rig.partition(0, "t")
            leader.append(batch, -1, 1)
            await leader.when_flushed(1)
            await until(lambda: leader.high_watermark == 1)
            rig.cut(1, 2)
            answered = Reply()
            end = End(ProducerIdAndEpoch(7, 0), Marker(True, 0), 1)
            rig.node(0).transactions.markers.write(TopicPartition("t", 0), end, answered)
            await leader.when_flushed(2)
            assert not answered.is_done, "it is on our disk only"
            rig.heal()
            await until(lambda: answered.is_done)
            assert leader.high_watermark == 2

    run(main())


def test_a_follower_counts_a_transaction_as_open_until_its_marker_is_committed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            rig.cut(2)  # in sync, so that nothing is committed
            leader = rig.partition(0, "t")
            batch = build_batch(
                [Record(0, 1, b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
            )
            leader.append(batch, 1, 1)
            leader.append_marker(7, 0, Marker(True, 0), 1, 1)
            await until(lambda: rig.partition(1, "t").log.end_offset == 2)
            follower = rig.partition(1, "t")
            assert follower.log.last_stable_offset_bound is None
            follower.follower.high_watermark = 1  # type: ignore[union-attr]
            assert follower.last_stable_offset == 0
            rig.heal()
            await until(lambda: follower.high_watermark == 2)
            assert follower.last_stable_offset == 2

    run(main())


# -- where logs begin and end ------------------------------------------------------------------------------------------


def test_what_the_leader_gave_up_its_followers_give_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            for _ in range(4):
                await rig.produce(0, "t", b"a", b"b", b"c")
            await until(lambda: rig.are_equal("t"))
            partition = DeleteRecordsRequest.DeleteRecordsPartition(0, 7)
            request = DeleteRecordsRequest([DeleteRecordsRequest.DeleteRecordsTopic("t", [partition])], 10_000)
            response = await (await rig.connection(0)).request(request)
            assert response.topics[0].partitions[0].low_watermark == 7
            assert [rig.partition(node_id, "t").log.start_offset for node_id in (1, 2)] == [7, 7], "answered after that"
            rig.cut(2)
            partition.offset, request.timeout_ms = 8, 100
            response = await (await rig.connection(0)).request(request)
            assert response.topics[0].partitions[0].error_code == ErrorCode.REQUEST_TIMED_OUT
            rig.fence(2)
            partition.offset, request.timeout_ms = 9, 10_000
            response = await (await rig.connection(0)).request(request)
            assert response.topics[0].partitions[0].low_watermark == 9, "who is not alive is not waited for"

    run(main())


def test_a_replica_that_is_far_behind_begins_where_the_leader_does(tmp_path: Path) -> None:
    """In the middle of a batch, which it gets whole."""

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a", b"b")
            await rig.kill(2)
            rig.fence(2)
            await rig.produce(0, "t", b"c", b"d", b"e")
            leader = rig.partition(0, "t")
            leader.log.roll(1)
            leader.start_wanted = 3
            leader.delete_records_before(3)
            await rig.produce(0, "t", b"f")
            rig.start(2)
            await until(lambda: set(rig.isr("t")) == {0, 1, 2})
            await until(lambda: rig.partition(2, "t").log.start_offset == 3 and rig.are_equal("t"))
            answer = await rig.fetch(2, "t", 3, rack_id="anywhere")
            assert answer.records is not None and next(iterate_batches(answer.records))[0].base_offset == 2

    run(main())


def test_a_replica_that_lost_its_first_segment_in_a_crash_gets_it_again_before_it_is_in_sync(tmp_path: Path) -> None:
    """Its end says nothing of that: as a leader it would have the others give up what they hold."""

    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a", b"b")
            await until(lambda: rig.are_equal("t"))
            rig.partition(2, "t").log.roll(1)
            await rig.produce(0, "t", b"c")
            await until(lambda: rig.are_equal("t"))
            lost = rig.partition(2, "t").log.directory
            await rig.kill(2)
            rig.fence(2)
            _remove_first_segment(lost)
            rig.start(2)
            await until(lambda: set(rig.isr("t")) == {0, 1, 2})
            assert rig.partition(2, "t").log.start_offset == 0
            await until(lambda: rig.are_equal("t"))

    run(main())


def _remove_first_segment(directory: str) -> None:
    for path in Path(directory).glob("00000000000000000000.*"):
        path.unlink()


def test_an_unclean_leader_that_is_far_behind_costs_the_others_their_tail_not_their_service(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a")
            await until(lambda: rig.are_equal("t"))
            rig.cut(2)
            rig.change("t", 0, isr=(0, 1))
            for _ in range(5):
                await rig.produce(0, "t", b"b")
            rig.change("t", 0, isr=(2,), leader=2)
            rig.heal()
            assert (await rig.produce(2, "t", b"c", acks=1)).base_offset == 1
            await until(lambda: set(rig.isr("t")) == {0, 1, 2} and rig.are_equal("t"))
            assert rig.bytes_of(0, "t") == rig.bytes_of(1, "t") == rig.bytes_of(2, "t")

    run(main())


def test_a_leader_that_wrote_nothing_in_its_epoch_follows_one_that_does_not_know_the_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a")
            await until(lambda: rig.are_equal("t"))
            rig.change("t", 0, leader=1)
            rig.change("t", 0, leader=0)
            assert rig.partition(1, "t").log.epochs.latest == 1, "nothing was written in it"
            assert (await rig.produce(0, "t", b"b", timeout_ms=5000)).error_code == 0
            assert rig.partition(1, "t").log.epochs.entries == rig.partition(0, "t").log.epochs.entries

    run(main())


def test_what_was_known_to_be_committed_is_known_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a", b"b")
            await until(lambda: rig.are_equal("t"))
            node = rig.node(2)
            rig.members[2].node = None
            await node.stop()
            rig.fence(2)
            rig.cut(2)
            rig.start(2)
            assert rig.partition(2, "t").high_watermark == 2

    run(main())


# -- who may fetch what ------------------------------------------------------------------------------------------------


def test_a_consumer_is_sent_to_the_replica_in_its_rack(tmp_path: Path) -> None:
    async def main() -> None:
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        async with Rig(tmp_path, {"replica.selector.class": selector}, racks=("a", "b", "b")) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a", b"b")
            await until(lambda: rig.are_equal("t"))
            assert (await rig.fetch(0, "t", 0, rack_id="a")).preferred_read_replica == -1
            assert (await rig.fetch(0, "t", 0, rack_id="elsewhere")).preferred_read_replica == -1
            sent = await rig.fetch(0, "t", 0, rack_id="b")
            assert sent.preferred_read_replica in (1, 2) and not sent.records
            answer = await rig.fetch(sent.preferred_read_replica, "t", 0, rack_id="b")
            assert (answer.error_code, answer.high_watermark) == (0, 2)
            assert bytes(answer.records) == rig.bytes_of(0, "t")
            rig.cut(1, 2)
            rig.change("t", 0, isr=(0,))
            assert (await rig.fetch(0, "t", 0, rack_id="b")).preferred_read_replica == -1, "only one that is in sync"

    run(main())


def test_followers_show_only_what_is_committed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a")
            await until(lambda: rig.are_equal("t"))
            rig.cut(2)
            await rig.produce(0, "t", b"b", acks=1)
            await until(lambda: rig.partition(1, "t").log.end_offset == 2)
            assert not (await rig.fetch(1, "t", 1)).records
            assert not (await rig.fetch(0, "t", 1)).records

    run(main())


def test_who_is_no_replica_or_one_of_an_earlier_life_gets_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            await rig.produce(0, "t", b"a")
            epochs = {node_id: broker.epoch for node_id, broker in rig.image.brokers.items()}
            for replica, epoch in ((2, epochs[2]), (1, epochs[1] - 1), (77, 5), (0, epochs[0])):
                state = FetchRequest.ReplicaState(replica, epoch)
                answer = await rig.fetch(0, "t", 0, replica_state=state)
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, replica
            answer = await rig.fetch(0, "t", 0, replica_state=FetchRequest.ReplicaState(1, epochs[1]))
            assert answer.error_code == 0 and answer.records
            # The metadata knows of a later life, from which no fetch has come yet.
            await rig.kill(1)
            rig.fence(1)
            rig.cut(1)
            rig.start(1)
            answer = await rig.fetch(0, "t", 0, replica_state=FetchRequest.ReplicaState(1, epochs[1]))
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_a_new_leader_does_not_name_the_latest_offset_before_it_knows(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            await rig.produce(0, "t", b"a")
            await until(lambda: rig.are_equal("t"))
            rig.cut(0, 2)
            assert (await rig.produce(0, "t", b"b", acks=1)).error_code == 0
            await until(lambda: rig.partition(1, "t").log.end_offset == 2)
            rig.change("t", 0, leader=1)
            assert (await rig.latest(1, "t")).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
            rig.heal()
            await until(lambda: rig.partition(1, "t").high_watermark == 2)
            assert (await rig.latest(1, "t")).offset == 2

    run(main())


def test_who_asks_the_old_leader_is_told_of_the_new_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            rig.cut(1, 2)
            waiting = asyncio.create_task(rig.produce(0, "t", b"a"))
            await until(lambda: rig.partition(0, "t").log.end_offset == 1)
            rig.change("t", 0, leader=1)
            for answer in (await waiting, await rig.produce(0, "t", b"b")):
                assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, 1)

    run(main())


def test_with_a_sync_for_each_batch_followers_say_only_what_is_on_their_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2), flush__messages="1")
            await rig.partition(2, "t").hold_flushes()
            waiting = asyncio.create_task(rig.produce(0, "t", b"a"))
            await until(lambda: rig.partition(2, "t").log.end_offset == 1 == rig.partition(1, "t").log.recovery_point)
            await asyncio.sleep(0.3)  # several fetches' time: none may say that broker 2 has it
            assert not waiting.done()
            rig.partition(2, "t").release_flushes()
            assert (await waiting).error_code == 0

    run(main())


# -- the controller's answers ------------------------------------------------------------------------------------------


def test_a_proposal_that_may_be_in_force_counts_and_is_made_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1, 2))
            rig.cut(2)
            rig.change("t", 0, isr=(0, 1))
            tries = 0

            async def loses_answers(request: AlterPartitionRequest) -> AlterPartitionResponse:
                nonlocal tries
                tries += 1
                if tries == 1:
                    with rig.deaf(0):
                        rig.decide(request)
                if tries < 3:
                    raise ConnectionError("lost on the way")
                return rig.decide(request)

            rig.intercept = loses_answers
            rig.heal()
            await until(lambda: tries >= 1)
            leader = rig.partition(0, "t").leader
            assert leader is not None and set(leader.maximal_isr) == {0, 1, 2} and leader.isr == (0, 1)
            await until(lambda: tries >= 3)
            rig.publish([])
            rig.change("t", 0, isr=rig.isr("t"))
            await until(lambda: set(leader.isr) == {0, 1, 2})

    run(main())


def test_a_replica_that_is_moved_away_leaves_no_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with Rig(tmp_path) as rig:
            rig.create("t", (0, 1))
            await rig.produce(0, "t", b"a")
            rig.change("t", 0, replicas=(0, 2), isr=(0,))
            await until(lambda: set(rig.isr("t")) == {0, 2})
            await until(lambda: not list(Path(rig.members[1].directory).glob("t-0*")))
            assert rig.bytes_of(0, "t") == rig.bytes_of(2, "t")

    run(main())
