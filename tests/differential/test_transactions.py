"""Transactions: every request, version and error at both levels of transaction.version, and the records that they
leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from moldau.coordination import partition_of
from moldau.kernel import ErrorCode
from moldau.protocol.batches import iterate_batches, iterate_records
from moldau.protocol.messages.coordinator.transaction_log import TransactionLogKey, TransactionLogValue
from moldau.protocol.messages.describe_producers import DescribeProducersRequest
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.list_offsets import ListOffsetsRequest
from moldau.protocol.messages.list_transactions import ListTransactionsRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest
from moldau.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from tests.differential.batches import batch
from tests.differential.deliberate import MARKER_WITHOUT_EPOCH, PRODUCE_MESSAGES, TRANSACTION_NAMED_TWICE
from tests.differential.pair import Side, produce, versions_of
from tests.differential.test_consumer_groups import Group
from tests.differential.test_groups import commit, fetch_offsets, stable
from tests.differential.test_groups import ready as group_ready
from tests.differential.transactions import (
    TIMEOUT_MS,
    TRANSACTION_KIND,
    Producer,
    Transactions,
    add_offsets,
    add_partitions,
    commit_offsets,
    end,
    learn,
    only_of,
    producer,
    ready,
    settled,
    transactional,
    wait_until_finished,
)

pytestmark = pytest.mark.oracle

STATE_TOPIC, STATE_PARTITIONS = "__transaction_state", 4
# Kafka answers topics and partitions in the order of hash maps.
HASHED = ("topics", "*.topics", "*.partitions", "*.results_by_partition", "*.topic_results", "results_by_transaction")
TIMES = ("*.transaction_start_time_ms", "*.last_timestamp")
STAMPS = ("*.crc", "*.base_timestamp", "*.max_timestamp")


def wrong(one: Producer) -> Iterator[tuple[str, Producer]]:
    """Everything that a producer can be wrong about."""
    yield "an older epoch", one.changed(epoch=one.epoch - 1)
    yield "a newer epoch", one.changed(epoch=one.epoch + 1)
    yield "another producer id", one.changed(producer_id=one.producer_id + 500_000)
    yield "an unknown transactional id", one.changed(transactional_id=f"{one.transactional_id}-unknown")
    yield "no transactional id", one.changed(transactional_id="")


WRONG = [say for say, _ in wrong(Producer("", 0, 0))]


def misled(one: Producer, say: str) -> Producer:
    return dict(wrong(one))[say]


# -- producers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(10))
def test_find_coordinator(transactions: Transactions, version: int) -> None:
    name = transactions.init()
    for key in (name, "", "x" * 300):
        request = FindCoordinatorRequest(key_type=TRANSACTION_KIND)
        if version == 0:
            request.key_type = 0
        if version >= 4:
            request.coordinator_keys = [key, name]
        else:
            request.key = key
        transactions.ask(request, version, until=settled, say=f"key {key[:20]}")


def init_answers(transactions: Transactions, version: int, build: Any, say: str) -> None:
    """Ask, compare, and compare whether the producer id is the one that the side had before."""
    name = transactions.topic("id")
    answers = transactions.ask(build, version, masks=("producer_id",), until=settled, say=say)
    kept = []
    for side, answer in zip(transactions.sides, answers, strict=True):
        before = side.notes.get(name)
        kept.append((answer.producer_id < 0, before is not None and before.producer_id == answer.producer_id))
        if answer.error_code == 0:
            learn(side, name, answer)
    assert kept[0] == kept[1], say


@pytest.mark.parametrize("version", versions_of(22))
def test_init_producer_id(transactions: Transactions, version: int) -> None:
    name = transactions.topic("id")
    for side in transactions.sides:
        ready(side, name)
    for timeout_ms in (0, -1, 900_001, 2**31 - 1):
        transactions.ask(InitProducerIdRequest(name, timeout_ms), version, until=settled, say=f"timeout {timeout_ms}")
    init_answers(transactions, version, InitProducerIdRequest(name, 900_000), "new, the longest timeout")
    init_answers(transactions, version, InitProducerIdRequest(name, 1), "again, the shortest timeout")
    init_answers(transactions, version, InitProducerIdRequest(name, TIMEOUT_MS), "again")
    transactions.ask(InitProducerIdRequest("", TIMEOUT_MS), version, say="an empty id")
    if version >= 3:

        def claim(producer_shift: int, epoch_shift: int, say: str) -> None:
            def build(side: Side) -> InitProducerIdRequest:
                one = producer(side, name)
                return InitProducerIdRequest(
                    name, TIMEOUT_MS, one.producer_id + producer_shift, one.epoch + epoch_shift
                )

            init_answers(transactions, version, build, say)

        claim(0, 0, "with id and epoch")
        claim(0, -1, "a retry with the epoch before")
        claim(0, -2, "an older epoch")
        claim(0, 1, "a newer epoch")
        claim(500_000, 0, "another id")
        for side in transactions.sides:
            assert producer(side, name).epoch >= 0
        for producer_id, epoch in ((-1, 3), (5, -1), (5, 0)):
            transactions.ask(
                InitProducerIdRequest(name, TIMEOUT_MS, producer_id, epoch),
                version,
                until=settled,
                say=f"id {producer_id}, epoch {epoch}",
            )
        transactions.ask(
            InitProducerIdRequest(f"{name}-other", TIMEOUT_MS, 5, 0), version, until=settled, say="an unknown id's"
        )


@pytest.mark.parametrize("version", versions_of(22))
def test_a_new_instance_aborts_what_the_old_one_left(transactions: Transactions, version: int) -> None:
    name, topic = transactions.init(), transactions.create("t")
    transactions.begin(name, {topic: [0]})
    transactions.send(name, topic, b"left")
    old = {side.name: producer(side, name) for side in transactions.sides}
    init_answers(transactions, version, InitProducerIdRequest(name, TIMEOUT_MS), "the new instance")
    for side in transactions.sides:
        wait_until_finished(side, name)
    describe(transactions, name, "aborted")
    fetch(transactions, topic, 11, isolation=1)
    for request_version in (4, 5):
        transactions.ask(
            lambda side: end(old[side.name], commit=True), request_version, until=settled, say="the old one commits"
        )
    transactions.ask(lambda side: add_partitions(3, old[side.name], {topic: [0]}), 3, until=settled, say="adds")
    transactions.ask(lambda side: add_offsets(old[side.name], "g"), 4, until=settled, say="adds offsets")
    for produce_version in (11, 12):
        transactions.ask(
            lambda side: transactional(old[side.name], topic, 1, b"zombie"),
            produce_version,
            until=settled,
            deliberate=(PRODUCE_MESSAGES,),
            say="sends",
        )
    if version >= 3:
        transactions.ask(
            lambda side: InitProducerIdRequest(name, TIMEOUT_MS, old[side.name].producer_id, old[side.name].epoch),
            version,
            masks=("producer_id",),
            until=settled,
            say="asks for the next epoch",
        )


EPOCH_MAX = 32_767
REQUESTS_IN_FLIGHT = 400


def use_up_epochs(side: Side, name: str, last: int) -> None:
    """Ask for a producer id again and again, without waiting for each answer, until its epoch is so high."""
    request = InitProducerIdRequest(name, TIMEOUT_MS)
    while producer(side, name).epoch < last:
        count = min(REQUESTS_IN_FLIGHT, last - producer(side, name).epoch)
        side.wire.send(b"".join(side.wire.frame(request, 4) for _ in range(count)))
        for _ in range(count):
            answer: Any = side.wire.decode(request.API_KEY, side.wire.receive(), 4)
            assert answer.error_code == 0, (side.name, answer)
        learn(side, name, answer)


def test_epochs_run_out(transactions: Transactions) -> None:
    name, topic = transactions.init(), transactions.create("t")
    for side in transactions.sides:
        use_up_epochs(side, name, EPOCH_MAX - 4)

    def with_epoch(side: Side) -> InitProducerIdRequest:
        one = producer(side, name)
        return InitProducerIdRequest(name, TIMEOUT_MS, one.producer_id, one.epoch)

    for step in range(2):
        init_answers(transactions, 5, with_epoch, f"with its epoch, step {step}")
    transactions.begin(name, {topic: [0]})
    transactions.send(name, topic, b"almost")
    version = versions_of(26)[-1] if transactions.level >= 2 else 4
    for step in range(3):
        if version >= 5:
            init_answers(
                transactions, version, lambda side: end(producer(side, name), commit=True), f"the end, step {step}"
            )
        else:
            transactions.end(name, commit=True)
        for side in transactions.sides:
            wait_until_finished(side, name)
        describe(transactions, name, f"ended, step {step}")
        transactions.begin(name, {topic: [0]})
        describe(transactions, name, f"begun, step {step}")
    for step in range(4):
        init_answers(transactions, 4, InitProducerIdRequest(name, TIMEOUT_MS), f"a new instance, step {step}")
        for side in transactions.sides:
            wait_until_finished(side, name)
        describe(transactions, name, f"a new instance, step {step}")
    ours, theirs = (list(logged(side, name))[-12:] for side in transactions.sides)
    assert ours == theirs


# -- adding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(24))
def test_add_partitions(transactions: Transactions, version: int) -> None:
    name, topic, other = transactions.init(), transactions.create("t", 3), transactions.create("u")

    def add(topics: dict[str, list[int]], say: str, change: str = "", **more: Any) -> None:
        def build(one: Producer) -> Any:
            return add_partitions(version, misled(one, change) if change else one, topics, **more)

        transactions.ask_as(name, build, version, unordered=HASHED, say=f"{say} {change}")

    for change in WRONG:
        add({topic: [0]}, "nothing open:", change)
    add({}, "nothing")
    add({topic: []}, "no partitions")
    describe(transactions, name, "nothing added")
    for topics in ({topic: [7]}, {topic: [0, 7]}, {topic: [-1]}, {"missing": [0], topic: [0]}, {"bad name": [0]}):
        add(topics, f"unknown: {list(topics)}")
    describe(transactions, name, "after unknown ones")
    add({topic: [0, 1]}, "two")
    add({topic: [0, 1]}, "the same")
    add({topic: [1, 2], other: [0]}, "more")
    for change in WRONG:
        add({topic: [0]}, "open:", change)
    if version >= 4:
        add({topic: [0]}, "verify one", verify_only=True)
        add({topic: [0, 7], other: [0]}, "verify one that is not in it", verify_only=True)
        for change in WRONG:
            add({topic: [0]}, "verify", change, verify_only=True)
    describe(transactions, name, "all added")
    transactions.end(name, commit=True)
    if version >= 4:
        add({topic: [0]}, "verify after the end", verify_only=True)
    add({topic: [0]}, "the next transaction")
    describe(transactions, name, "the next transaction")


@pytest.mark.parametrize("version", [4, 5])
def test_add_partitions_of_several(transactions: Transactions, version: int) -> None:
    one, two, three = (transactions.init(name) for name in ("one", "two", "three"))
    topic = transactions.create("t", 2)

    def build(side: Side) -> Any:
        first, second, third = (producer(side, name) for name in (one, two, three))
        return add_partitions(
            version, first, {topic: [0]}, second.changed(epoch=9), {topic: [0, 1]}, third, {topic: [1, 5]}
        )

    transactions.ask(build, version, until=settled, unordered=HASHED, say="good, fenced, unknown")

    def build_twice(side: Side) -> Any:
        second = producer(side, two)
        return add_partitions(version, second.changed(epoch=9), {topic: [0, 1]}, second, {topic: [1, 5]})

    deliberate = (TRANSACTION_NAMED_TWICE,)
    transactions.ask(build_twice, version, until=settled, unordered=HASHED, deliberate=deliberate, say="named twice")
    for name in (one, two):
        describe(transactions, name, "afterwards")


@pytest.mark.parametrize("version", versions_of(25))
def test_add_offsets(transactions: Transactions, version: int) -> None:
    name, group = transactions.init(), transactions.topic("group")
    for side in transactions.sides:
        group_ready(side, group)
    for state in ("nothing open", "open"):
        for change in WRONG:
            transactions.ask_as(
                name, lambda one, c=change: add_offsets(misled(one, c), group), version, say=f"{state}: {change}"
            )
        transactions.ask_as(name, lambda one: add_offsets(one, group), version, say=state)
        describe(transactions, name, state)
    transactions.ask_as(name, lambda one: add_offsets(one, ""), version, say="no group")
    transactions.end(name, commit=False)
    describe(transactions, name, "over")


@pytest.mark.parametrize("version", versions_of(28))
def test_txn_offset_commit(transactions: Transactions, version: int) -> None:
    name, group, topic = transactions.init(), transactions.topic("group"), transactions.create("t", 2)
    for side in transactions.sides:
        group_ready(side, group)

    def offsets(say: str, wanted: dict[str, dict[int, int]] | None = None, change: str = "", **more: Any) -> None:
        wanted = {topic: {0: 5, 1: 6}} if wanted is None else wanted

        def build(one: Producer) -> Any:
            to = more.get("group", group)
            options = {key: value for key, value in more.items() if key != "group"}
            return commit_offsets(version, misled(one, change) if change else one, to, wanted, **options)

        transactions.ask_as(name, build, version, unordered=HASHED, say=f"{say} {change}")

    offsets("nothing begun")
    describe(transactions, name, "nothing begun")
    for side in transactions.sides:
        side.ask_until(add_offsets(producer(side, name), group), 3, settled)
    for change in WRONG:
        offsets("wrong:", change=change)
    offsets("the offsets")
    offsets("the same again")
    offsets("of unknown topics", {"missing": {0: 1}, topic: {0: 7, 9: 1}})
    offsets("nothing", {})
    offsets("no group", group="")
    offsets("a long text", {topic: {0: 8}}, metadata="m" * 4097)
    offsets("no text", {topic: {0: 8}}, metadata=None)
    offsets("a negative offset", {topic: {0: -1}})
    if version >= 3:
        offsets("a generation", member=(3, "", None))
        offsets("a member", member=(-1, "ghost", None))
        offsets("an instance", member=(-1, "", "ghost"))
    for require_stable in (False, True):
        fetch_group_offsets(transactions, group, {topic: [0, 1]}, require_stable, "pending")
    transactions.end(name, commit=True)
    for require_stable in (False, True):
        fetch_group_offsets(transactions, group, {topic: [0, 1]}, require_stable, "committed")


@pytest.mark.parametrize("version", [3, 4, 5])
def test_txn_offset_commit_of_members(transactions: Transactions, version: int) -> None:
    name, group, topic = transactions.init(), transactions.topic("group"), transactions.create("t")
    for side in transactions.sides:
        group_ready(side, group)
    stable(transactions, group)
    for side in transactions.sides:
        side.ask_until(add_offsets(producer(side, name), group), 3, settled)
    for say, generation, member in (
        ("the member", 1, None),
        ("an old generation", 0, None),
        ("a future generation", 2, None),
        ("a stranger", 1, "ghost"),
        ("nobody", -1, ""),
    ):

        def build(side: Side, generation: int = generation, member: str | None = member) -> Any:
            who = side.notes["member"] if member is None else member
            return commit_offsets(version, producer(side, name), group, {topic: {0: 3}}, (generation, who, None))

        transactions.ask(build, version, until=settled, say=say)
    transactions.end(name, commit=True)
    fetch_group_offsets(transactions, group, {topic: [0]}, True, "committed")


@pytest.mark.parametrize("version", [3, 5])
def test_txn_offset_commit_of_members_of_the_consumer_protocol(transactions: Transactions, version: int) -> None:
    group, name = Group(transactions), transactions.init()
    for side in transactions.sides:
        side.ask_until(add_offsets(producer(side, name), group.name), 3, settled)

    def ask(say: str, epoch: int, member: str, *partitions: int) -> None:
        offsets = {group.topic: dict.fromkeys(partitions, 3)}
        transactions.ask_as(
            name,
            lambda one: commit_offsets(version, one, group.name, offsets, (epoch, member, None)),
            version,
            unordered=HASHED,
            say=say,
        )

    group.join("a")
    ask("the member", 2, "a", 0, 5)
    ask("an old epoch", 1, "a", 0)
    ask("an epoch to come", 3, "a", 0)
    ask("no member", 2, "ghost", 0)
    ask("a producer that knows of no members", -1, "", 0)
    group.join("b")
    group.beat("a", 2, "is told to give up")
    ask("what it is to give up", 2, "a", 5)
    group.beat("a", 2, "gave up", owned={group.topic: [0, 1, 2]})
    ask("what it has had all along, in the old epoch", 2, "a", 0, 1)
    ask("also what it gave up", 2, "a", 0, 5)
    transactions.end(name, commit=True)


def fetch_group_offsets(
    transactions: Transactions, group: str, wanted: dict[str, list[int]], require_stable: bool, say: str
) -> None:
    for version in versions_of(9):
        if version < 7 and require_stable:
            continue

        def build(side: Side, version: int = version) -> OffsetFetchRequest:
            request = fetch_offsets(side, version, group, wanted)
            request.require_stable = require_stable
            return request

        transactions.ask(build, version, unordered=("*.partitions",), say=f"{say}, stable {require_stable}")


# -- ending ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(26))
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_end(transactions: Transactions, version: int, commit: bool) -> None:
    name, topic = transactions.init(), transactions.create("t", 2)

    def ask(outcome: bool, say: str, change: str = "") -> tuple[Any, Any]:
        return transactions.ask_as(
            name,
            lambda one: end(misled(one, change) if change else one, commit=outcome),
            version,
            say=f"{say} {change}",
        )

    def finish() -> None:
        for side in transactions.sides:
            wait_until_finished(side, name)

    ask(commit, "nothing begun")
    finish()
    transactions.init()
    for change in WRONG:
        ask(commit, "nothing begun:", change)
    finish()
    transactions.begin(name, {topic: [0, 1]})
    transactions.send(name, topic, b"x", b"y")
    for change in WRONG:
        ask(commit, "open:", change)
    answers = ask(commit, "the end")
    finish()
    describe(transactions, name, "ended")
    ask(commit, "again")
    ask(not commit, "the other way")
    finish()
    for side, answer in zip(transactions.sides, answers, strict=True):
        if version >= 5 and answer.error_code == 0:
            learn(side, name, answer)
    ask(commit, "again with what the answer said")
    ask(not commit, "the other way with what the answer said")
    finish()
    describe(transactions, name, "still ended")
    fetch(transactions, topic, 11, isolation=1)


@pytest.mark.parametrize("version", versions_of(26))
def test_a_retry_of_an_end_does_not_end_the_next_transaction(transactions: Transactions, version: int) -> None:
    """KAFKA-17754, which epochs that rise with every transaction prevent."""
    name, topic = transactions.init(), transactions.create("t")
    transactions.begin(name, {topic: [0]})
    first = {side.name: producer(side, name) for side in transactions.sides}
    transactions.end(name, commit=True)
    transactions.begin(name, {topic: [0]})
    transactions.ask(lambda side: end(first[side.name], commit=True), version, until=settled, say="late, the same")
    transactions.ask(lambda side: end(first[side.name], commit=False), version, until=settled, say="late, the other")
    for side in transactions.sides:
        side.ask_until(DescribeTransactionsRequest([name]), 0, settled)


def test_a_transaction_that_took_too_long_is_aborted(transactions: Transactions) -> None:
    name, topic = transactions.init(timeout_ms=300), transactions.create("t")
    transactions.begin(name, {topic: [0]})
    transactions.send(name, topic, b"slow")
    for side in transactions.sides:
        wait_until_finished(side, name)
    describe(transactions, name, "aborted by its timeout")
    describe_producers(transactions, topic, "aborted by its timeout")
    fetch(transactions, topic, 11, isolation=1)
    for version in versions_of(26):
        for outcome in (True, False):
            transactions.ask_as(
                name, lambda one, o=outcome: end(one, commit=o), version, say=f"the slow one, {outcome}"
            )
    for version in (3, 9, 10, 11, 12):
        transactions.ask_as(
            name,
            lambda one: transactional(one, topic, 1, b"slower"),
            version,
            deliberate=(PRODUCE_MESSAGES,),
            say="the slow one sends",
        )
    transactions.ask_as(name, lambda one: add_partitions(3, one, {topic: [0]}), 3, say="the slow one goes on")
    for version in (3, 4, 5):
        init_answers(
            transactions,
            version,
            lambda side: InitProducerIdRequest(
                name, TIMEOUT_MS, producer(side, name).producer_id, producer(side, name).epoch
            ),
            "the slow one asks for the next epoch",
        )
    describe(transactions, name, "in the end")


# -- markers -----------------------------------------------------------------------------------------------------------


def markers(version: int, one: Producer, topics: dict[str, list[int]], **more: Any) -> WriteTxnMarkersRequest:
    marker = WriteTxnMarkersRequest.WritableTxnMarker(
        one.producer_id,
        one.epoch,
        more.get("commit", False),
        [WriteTxnMarkersRequest.WritableTxnMarkerTopic(*each) for each in topics.items()],
        more.get("coordinator_epoch", 0),
    )
    if version >= 2:
        marker.transaction_version = more.get("transaction_version", 0)
    return WriteTxnMarkersRequest([marker])


@pytest.mark.parametrize("version", versions_of(27))
def test_write_markers(transactions: Transactions, version: int) -> None:
    name, topic = transactions.init(), transactions.create("t", 2)
    transactions.init()  # so that there is an older epoch

    def write(say: str, wanted: dict[str, list[int]], shift: int = 0, **more: Any) -> None:
        transactions.ask_as(
            name,
            lambda one: markers(version, one.changed(epoch=one.epoch + shift), wanted, **more),
            version,
            unordered=HASHED,
            say=say,
        )
        describe_producers(transactions, topic, say)

    transactions.begin(name, {topic: [0, 1]})
    transactions.send(name, topic, b"a")
    write("unknown partitions", {topic: [7], "missing": [0]})
    write("nothing", {})
    write("an older epoch", {topic: [0]}, -1)
    transactions.ask_as(
        name,
        lambda one: markers(version, one.changed(epoch=-1), {topic: [0]}),
        version,
        unordered=HASHED,
        deliberate=(MARKER_WITHOUT_EPOCH,),
        say="no epoch",
    )
    describe_producers(transactions, topic, "no epoch")
    write("abort", {topic: [0, 1]}, coordinator_epoch=3)
    write("again", {topic: [0]}, coordinator_epoch=3)
    write("an older coordinator", {topic: [0]}, coordinator_epoch=2)
    transactions.send(name, topic, b"b", sequence=1)
    write("an older coordinator, open", {topic: [0]}, coordinator_epoch=2)
    write("a newer epoch", {topic: [0]}, 1, coordinator_epoch=4, commit=True)
    fetch(transactions, topic, 11, isolation=1)
    if version >= 2:
        write("the second generation, the same epoch", {topic: [0]}, 1, coordinator_epoch=4, transaction_version=2)
        write("the second generation", {topic: [0]}, 2, coordinator_epoch=4, transaction_version=2)
    transactions.ask(WriteTxnMarkersRequest(), version, say="no markers")


def describe_producers(transactions: Transactions, topic: str, say: str) -> None:
    request = DescribeProducersRequest([DescribeProducersRequest.TopicRequest(topic, [0, 1])])
    transactions.ask(request, 0, unordered=(*HASHED, "*.active_producers"), masks=TIMES, say=say)


def test_describe_producers(transactions: Transactions) -> None:
    name, other, topic = transactions.init(), transactions.init("other"), transactions.create("t", 2)
    describe_producers(transactions, topic, "nobody")
    transactions.begin(name, {topic: [0, 1]})
    describe_producers(transactions, topic, "added only")
    transactions.send(name, topic, b"a", b"b")
    transactions.begin(other, {topic: [0]})
    transactions.send(other, topic, b"c")
    describe_producers(transactions, topic, "two open")
    for side in transactions.sides:
        side.ask(produce(topic, batch(b"plain")), 9)
    transactions.end(name, commit=True)
    describe_producers(transactions, topic, "one open")
    transactions.end(other, commit=False)
    describe_producers(transactions, topic, "none open")
    request = DescribeProducersRequest([DescribeProducersRequest.TopicRequest("missing", [0])])
    transactions.ask(request, 0, say="an unknown topic")


# -- describing --------------------------------------------------------------------------------------------------------


def describe(transactions: Transactions, name: str, say: str) -> None:
    transactions.ask(
        DescribeTransactionsRequest([name]),
        0,
        masks=TIMES,
        until=settled,
        unordered=("*.topics", "*.partitions"),
        say=f"described: {say}",
    )


@pytest.mark.parametrize("version", versions_of(65))
def test_describe_transactions(transactions: Transactions, version: int) -> None:
    name, topic, group = transactions.init(), transactions.create("t", 2), transactions.topic("group")
    for side in transactions.sides:
        group_ready(side, group)
    transactions.begin(name, {topic: [1, 0]})
    for side in transactions.sides:
        side.ask_until(add_offsets(producer(side, name), group), 3, settled)
    wanted = DescribeTransactionsRequest([name, f"{name}-unknown", "", name])
    options: dict[str, Any] = {"masks": TIMES, "unordered": ("transaction_states", "*.topics", "*.partitions")}
    transactions.ask(wanted, version, **options, say="open")
    transactions.ask(DescribeTransactionsRequest(), version, say="nobody")
    for commit_it in (True, False):
        transactions.end(name, commit=commit_it)
        transactions.ask(wanted, version, **options, say="over")
        transactions.begin(name, {topic: [0]})


@pytest.mark.parametrize("version", versions_of(66))
def test_list_transactions(transactions: Transactions, version: int) -> None:
    topic = transactions.create("t")
    names = [transactions.init(each) for each in ("empty", "open", "committed", "aborted")]
    for name in names[1:]:
        transactions.begin(name, {topic: [0]})
    transactions.end(names[2], commit=True)
    transactions.end(names[3], commit=False)

    def ask(say: str, build: Any) -> None:
        transactions.ask(
            build,
            version,
            unordered=("transaction_states", "unknown_state_filters"),
            edit=only_of("transaction_states", transactions.prefix),
            say=say,
        )

    ask("all", ListTransactionsRequest())
    for states in (["Ongoing"], ["Empty", "CompleteAbort"], ["ongoing"], ["Nonsense", "Ongoing"], ["Nonsense"], [""]):
        ask(f"states {states}", ListTransactionsRequest(states))
    ask("by producer", lambda side: ListTransactionsRequest([], [producer(side, names[1]).producer_id, 999_999]))
    ask("an unknown producer", ListTransactionsRequest([], [999_999]))
    ask("both", lambda side: ListTransactionsRequest(["Empty"], [producer(side, names[1]).producer_id]))
    if version >= 1:
        for duration in (-1, 0, 3_600_000):
            ask(f"open for {duration}", ListTransactionsRequest(duration_filter=duration))
    if version >= 2:
        for pattern in (f"{transactions.prefix}.*", f"{names[0]}", ".*committed", "", "nothing", "(", None):
            ask(f"pattern {pattern}", ListTransactionsRequest(transactional_id_pattern=pattern))


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(0))
def test_transactional_batches(transactions: Transactions, version: int) -> None:
    name, topic = transactions.init(), transactions.create("t", 2)

    def send(say: str, sequence: int, change: str = "", **more: Any) -> None:
        def build(side: Side) -> Any:
            one = producer(side, name)
            where = side.topic_ids[topic] if version >= 13 else topic
            return transactional(misled(one, change) if change else one, where, sequence, b"v", **more)

        transactions.ask(build, version, until=settled, deliberate=(PRODUCE_MESSAGES,), say=f"{say} {change}")

    for change in WRONG:
        send("nothing open:", 0, change)
    send("nothing open", 0)
    describe(transactions, name, "after the first batch")
    for side in transactions.sides:
        side.ask_until(add_partitions(3, producer(side, name), {topic: [0]}), 3, settled)
    send("added", 0)
    send("the next", 1)
    send("a duplicate", 1)
    send("a gap", 7)
    for change in WRONG:
        send("open:", 2, change)
    send("another partition", 0, partition=1)
    send("not transactional, open", 2, transactional=False)
    describe_producers(transactions, topic, "open")
    transactions.end(name, commit=True)
    send("not transactional, over", 2, transactional=False)
    send("over, the next sequence", 2)
    send("over, from the start", 0)
    describe(transactions, name, "after batches that followed the end")
    describe_producers(transactions, topic, "over")


def test_a_transactional_batch_without_an_id_in_the_request(transactions: Transactions) -> None:
    name, topic = transactions.init(), transactions.create("t")

    def build(side: Side) -> Any:
        request = transactional(producer(side, name), topic, 0, b"v")
        request.transactional_id = None
        return request

    for version in (11, 12):
        transactions.ask(build, version, until=settled, deliberate=(PRODUCE_MESSAGES,), say=f"v{version}, not begun")
    transactions.begin(name, {topic: [0]})
    for version in (11, 12):
        transactions.ask(build, version, until=settled, deliberate=(PRODUCE_MESSAGES,), say=f"v{version}, begun")


def fetch(
    transactions: Transactions, topic: str, version: int, *, isolation: int, offset: int = 0, bytes_max: int = 1 << 20
) -> None:
    def build(side: Side) -> FetchRequest:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
        named = FetchRequest.FetchTopic(partitions=[partition])
        if version >= 13:
            named.topic_id = side.topic_ids[topic]
        else:
            named.topic = topic
        return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=bytes_max, isolation_level=isolation, topics=[named])

    transactions.ask(
        build,
        version,
        masks=(*STAMPS, "*.preferred_read_replica"),
        unordered=("*.aborted_transactions",),
        say=f"isolation {isolation}, from {offset}",
    )


@pytest.mark.parametrize("version", versions_of(1))
def test_committed_records_are_fetched(transactions: Transactions, version: int) -> None:
    one, two = transactions.init("one"), transactions.init("two")
    topic = transactions.create("t")

    def both(*offsets: int) -> None:
        for offset in offsets:
            for isolation in (0, 1):
                fetch(transactions, topic, version, isolation=isolation, offset=offset)

    for side in transactions.sides:
        side.ask(produce(topic, batch(b"plain")), 9)
    transactions.begin(one, {topic: [0]})
    transactions.send(one, topic, b"a", b"b")
    both(0, 1, 2, 3)
    transactions.begin(two, {topic: [0]})
    transactions.send(two, topic, b"c")
    transactions.end(one, commit=False)
    both(0, 3, 4, 5)
    transactions.end(two, commit=True)
    both(0, 1, 2, 3, 4, 5, 6)
    for number, commit_it in enumerate((False, True, False)):
        transactions.begin(one, {topic: [0]})
        # At the second level every transaction has an epoch, and sequences, of its own.
        transactions.send(one, topic, b"more", sequence=0 if transactions.level >= 2 else 2 + number)
        transactions.end(one, commit=commit_it)
    both(0, 4, 6, 8, 10, 12)
    both(13)


@pytest.mark.parametrize("version", versions_of(2))
def test_offsets_of_committed_records_are_listed(transactions: Transactions, version: int) -> None:
    name, topic = transactions.init(), transactions.create("t", batches=[batch(b"plain")])

    def both(say: str) -> None:
        for timestamp in (-1, -2, -3, 0, 2**62):
            for isolation in (0, 1):
                partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                request = ListOffsetsRequest(
                    replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(topic, [partition])]
                )
                if version >= 2:
                    request.isolation_level = isolation
                if version >= 10:
                    request.timeout_ms = 1000
                # A maximum timestamp is that of a control record: the broker's time.
                masks = ("*.timestamp",) if timestamp == -3 else ()
                transactions.ask(request, version, masks=masks, say=f"{say}, {timestamp}, isolation {isolation}")

    transactions.begin(name, {topic: [0]})
    both("added")
    transactions.send(name, topic, b"a", b"b")
    both("open")
    transactions.end(name, commit=False)
    both("over")


# -- offsets -----------------------------------------------------------------------------------------------------------


def test_pending_offsets_are_unstable(transactions: Transactions) -> None:
    name, group, topic = transactions.init(), transactions.topic("group"), transactions.create("t", 2)
    for side in transactions.sides:
        group_ready(side, group)
        side.ask(commit(side, group, {topic: {0: 1}}, 9), 9)
    wanted = {topic: [0, 1]}
    for commit_it in (False, True):
        for side in transactions.sides:
            one = producer(side, name)
            side.ask_until(add_offsets(one, group), 3, settled)
            answer = side.ask_until(commit_offsets(3, one, group, {topic: {0: 5, 1: 6}}), 3, settled)
            assert not any(codes_of(answer)), answer
        for require_stable in (False, True):
            fetch_group_offsets(transactions, group, wanted, require_stable, f"pending, commit {commit_it}")
        transactions.ask(
            lambda side: commit(side, group, {topic: {0: 3}}, 9), 9, say="a plain commit over a pending one"
        )
        transactions.end(name, commit=commit_it)
        for require_stable in (False, True):
            fetch_group_offsets(transactions, group, wanted, require_stable, f"over, commit {commit_it}")


def codes_of(answer: Any) -> list[int]:
    return [each.error_code for topic in answer.topics for each in topic.partitions]


# -- the log of transactions -------------------------------------------------------------------------------------------


def logged(side: Side, name: str) -> Iterator[str]:
    """The records of a transactional id, in the order in which they were appended, times and ids taken out."""
    partition = FetchRequest.FetchPartition(
        partition=partition_of(name, STATE_PARTITIONS), fetch_offset=0, partition_max_bytes=1 << 24
    )
    topic = FetchRequest.FetchTopic(topic=STATE_TOPIC, partitions=[partition])
    answer = side.ask(FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=[topic]), 4)
    for _, data in iterate_batches(bytes(answer.responses[0].partitions[0].records)):
        for record in iterate_records(data):
            assert record.key is not None
            assert int.from_bytes(record.key[:2], "big") == 0
            if TransactionLogKey.decode(record.key[2:], 0).transactional_id != name:
                continue
            if record.value is None:
                yield "gone"
                continue
            version = int.from_bytes(record.value[:2], "big")
            value = TransactionLogValue.decode(record.value[2:], version)
            fields = {field: getattr(value, field) for field in value.__slots__}
            for field in ("producer_id", "previous_producer_id", "next_producer_id"):
                fields[field] = side.producer_names.get(fields[field], fields[field])
            fields["transaction_last_update_timestamp_ms"] = fields["transaction_last_update_timestamp_ms"] > 0
            fields["transaction_start_timestamp_ms"] = fields["transaction_start_timestamp_ms"] > 0
            fields["transaction_partitions"] = sorted(
                (each.topic, sorted(each.partition_ids)) for each in fields["transaction_partitions"] or ()
            )
            yield f"v{version} {fields}"


def test_the_records_are_kafkas(transactions: Transactions) -> None:
    name, topic, group = transactions.init(), transactions.create("t", 2), transactions.topic("group")
    for side in transactions.sides:
        group_ready(side, group)
    transactions.begin(name, {topic: [0]})
    transactions.begin(name, {topic: [1]})
    transactions.send(name, topic, b"v")
    transactions.end(name, commit=True)
    for side in transactions.sides:
        side.ask_until(add_offsets(producer(side, name), group), 3, settled)
        answer = side.ask(commit_offsets(3, producer(side, name), group, {topic: {0: 5}}), 3)
        assert not any(codes_of(answer)), answer
    transactions.end(name, commit=False)
    transactions.init()
    transactions.begin(name, {topic: [1]})
    transactions.init()
    for side in transactions.sides:
        wait_until_finished(side, name)
    ours, theirs = (list(logged(side, name)) for side in transactions.sides)
    assert ours == theirs
    assert len(ours) > 8


def test_unknown_errors_are_never_an_answer(transactions: Transactions) -> None:
    """A scenario that both brokers fail with UNKNOWN_SERVER_ERROR would compare equal: none of these does."""
    name, topic = transactions.init(), transactions.create("t")
    transactions.begin(name, {topic: [0]})
    for side in transactions.sides:
        one = producer(side, name)
        for request, version in (
            (end(one.changed(epoch=-1), commit=True), 4),
            (add_offsets(one, "g" * 300), 3),
            (InitProducerIdRequest("x" * 3000, TIMEOUT_MS), 4),
        ):
            answer = side.ask_until(request, version, settled)
            assert answer.error_code != ErrorCode.UNKNOWN_SERVER_ERROR, (side.name, request)
