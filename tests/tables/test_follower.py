"""A view follows its topic on a real broker: transactions, deletions, restarts, topics that are made again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moldau.client import BlockingProducer, ClusterClient, admin
from moldau.tables import Follower, TableView
from moldau.tables.view import ViewReader
from moldau.testing import Broker

SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def create(broker: Broker, topic: str, partitions: int = 2, **configs: str) -> None:
    async def work() -> None:
        async with ClusterClient(broker.bootstrap) as client:
            given = {"cleanup.policy": "compact"} | {name.replace("_", "."): value for name, value in configs.items()}
            await admin.create_topics(client, topic, partitions=partitions, configs=given)

    asyncio.run(work())


def produce(broker: Broker, topic: str, **rows: str | None) -> None:
    with BlockingProducer(broker.bootstrap) as producer:
        for key, value in rows.items():
            producer.send(topic, None if value is None else value.encode(), key=key.encode())


def follow(broker: Broker, path: Path, topic: str, until: Callable[[ViewReader], bool]) -> int:
    """Follow until the view is so; how many records were read."""

    async def work() -> int:
        view = TableView(path)
        reader = view.reader()
        with ThreadPoolExecutor(1) as writing:
            async with ClusterClient(broker.bootstrap) as client:
                follower = Follower(client, view, topic, writing)
                task = asyncio.create_task(follower.run())
                try:
                    async with asyncio.timeout(SECONDS_MAX):
                        while not (_is_complete(reader, topic) and until(reader)):
                            await asyncio.sleep(0.01)
                finally:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
        reader.close()
        view.close()
        return follower.records_read

    return asyncio.run(work())


def _is_complete(reader: ViewReader, topic: str) -> bool:
    state = reader.state(topic)
    return state is not None and state.is_complete


def table(reader: ViewReader, topic: str) -> dict[str, str | bytes]:
    return {row.key.decode(): row.value for row in reader.scan(topic).rows}


def test_a_restart_reads_only_what_came_meanwhile(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "view.sqlite"
    create(broker, "users")
    produce(broker, "users", ann="1", bob="2", eva="3")
    assert follow(broker, path, "users", lambda view: len(table(view, "users")) == 3) == 3
    produce(broker, "users", ann="4", bob=None)
    assert follow(broker, path, "users", lambda view: table(view, "users") == {"ann": "4", "eva": "3"}) == 2
    assert follow(broker, path, "users", lambda view: True) == 0


def test_a_full_disk_under_the_view_is_told_and_it_goes_on_when_there_is_room(broker: Broker, tmp_path: Path) -> None:
    create(broker, "large", partitions=1)
    produce(broker, "large", **{f"key_{number}": "x" * 10_000 for number in range(10)})

    async def work() -> None:
        view = TableView(tmp_path / "view.sqlite")
        reader = view.reader()
        with ThreadPoolExecutor(1) as writing:
            writing.submit(view._database.execute, "PRAGMA max_page_count = 10").result()
            async with ClusterClient(broker.bootstrap) as client:
                follower = Follower(client, view, "large", writing)
                task = asyncio.create_task(follower.run())
                async with asyncio.timeout(SECONDS_MAX):
                    while "full" not in (follower.last_error or ""):
                        assert not task.done(), task
                        await asyncio.sleep(0.01)
                    assert table(reader, "large") == {}
                    writing.submit(view._database.execute, "PRAGMA max_page_count = 100000").result()
                    while not _is_complete(reader, "large"):
                        await asyncio.sleep(0.01)
                assert len(table(reader, "large")) == 10 and follower.last_error is None
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        reader.close()
        view.close()

    asyncio.run(work())


def test_only_what_was_committed_is_in_a_view_and_markers_move_it_on(broker: Broker, tmp_path: Path) -> None:
    create(broker, "totals", partitions=1)
    with BlockingProducer(broker.bootstrap, {"transactional.id": "totals"}) as producer:
        producer.init_transactions()
        for value, is_committed in ((b"1", True), (b"2", False)):
            producer.begin_transaction()
            producer.send("totals", value, key=b"all").result(30)
            (producer.commit_transaction if is_committed else producer.abort_transaction)()

    def is_at_the_end(view: ViewReader) -> bool:
        found = view.get("totals", b"all")
        return found.row is not None and found.row.value == "1" and found.reflects == {0: 4}

    assert follow(broker, tmp_path / "view.sqlite", "totals", is_at_the_end) == 1


def test_a_topic_that_was_made_again_is_read_anew(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "view.sqlite"
    create(broker, "cities")
    produce(broker, "cities", praha="1", brno="2")
    follow(broker, path, "cities", lambda view: len(table(view, "cities")) == 2)

    async def delete() -> None:
        async with ClusterClient(broker.bootstrap) as client:
            await admin.delete_topics(client, "cities")

    asyncio.run(delete())
    create(broker, "cities")
    produce(broker, "cities", wien="3")
    follow(broker, path, "cities", lambda view: table(view, "cities") == {"wien": "3"})


def test_partitions_that_are_added_are_followed(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.tables.follower.PARTITIONS_LOOK_SECONDS", 0.1)
    create(broker, "growing", partitions=1)
    produce(broker, "growing", a="1")
    grown = False

    def has_both(view: ViewReader) -> bool:
        nonlocal grown
        if not grown:
            grown = True
            grow(broker)
        return table(view, "growing") == {"a": "1", "new": "2"}

    follow(broker, tmp_path / "view.sqlite", "growing", has_both)


def grow(broker: Broker) -> None:
    def work() -> None:
        async def add() -> None:
            async with ClusterClient(broker.bootstrap) as client:
                await admin.create_partitions(client, "growing", 2)
                while len((await client.metadata(["growing"])).topics["growing"].partitions) < 2:
                    pass

        asyncio.run(add())
        with BlockingProducer(broker.bootstrap) as producer:
            producer.send("growing", b"2", key=b"new", partition=1)

    with ThreadPoolExecutor(1) as other:
        other.submit(work).result()
