"""Streams and tables on a real Spark and a real broker: what comes out of the topics is what went in, once."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from moldau.client import BlockingProducer
from moldau.spark.pipelines import Avro, Bytes, Pipeline, PipelineError, Query, Text, dead_letter_of, row_key
from moldau.spark.pipelines.loading import load_queries
from moldau.spark.pipelines.project import read_project
from moldau.spark.pipelines.streams import key_column
from tests.spark.clusters import Cluster

ORDER = "id BIGINT, user STRING NOT NULL, amount DOUBLE, at TIMESTAMP"


class Shop:
    """A pipeline with topics of its own."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.orders = cluster.topic("orders", 2)
        self.users = cluster.topic("users", 2, **{"cleanup.policy": "compact"})
        name = self.orders.replace("orders", "shop")
        self.running: list[StreamingQuery] = []
        self.pipeline = Pipeline(spark, cluster.bootstrap, name=name, checkpoints=directory)

    def catch_up(self, *queries: Query) -> None:
        """Let the queries go on, and wait until nothing is left to read."""
        self.running += self.pipeline.start(*queries)
        for query in self.running:
            query.processAllAvailable()
            # A query of several sources hears of a record with the look after the next.
            while self._is_behind(query):
                query.processAllAvailable()

    def _is_behind(self, query: StreamingQuery) -> bool:
        sources = (query.lastProgress or {"sources": []})["sources"]
        read = {topic: ends for source in sources for topic, ends in _offsets(source["endOffset"]).items()}
        return any(
            self.cluster.ends(topic) != {int(at): end for at, end in ends.items()} for topic, ends in read.items()
        )

    def order(self, *orders: dict[str, Any]) -> None:
        self.send(self.orders, [(None, json.dumps(one).encode()) for one in orders])

    def user(self, name: str, **fields: Any) -> None:
        self.send(self.users, [(name.encode(), json.dumps(fields).encode() if fields else None)])

    def send(self, topic: str, records: Sequence[tuple[bytes | None, bytes | None]], **more: Any) -> None:
        with BlockingProducer(self.cluster.bootstrap) as producer:
            for key, value in records:
                producer.send(topic, value, key=key, **more)

    def values(self, topic: str) -> list[Any]:
        return [json.loads(record.value or b"null") for record in self.cluster.read(topic)]

    def rows(self, topic: str) -> dict[str, Any]:
        """The newest value of each key."""
        found = sorted(self.cluster.read(topic), key=lambda record: record.offset)
        return {(record.key or b"").decode(): json.loads(record.value or b"null") for record in found}


def _offsets(told: Any) -> dict[str, dict[str, int]]:
    """Spark tells a source's offsets as the text of their JSON."""
    found: dict[str, dict[str, int]] = json.loads(told) if isinstance(told, str) else told or {}
    return found


@pytest.fixture
def shop(spark: SparkSession, moldau_cluster: Cluster, tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(spark, moldau_cluster, tmp_path)
    yield opened
    opened.pipeline.stop()


def test_an_event_sees_what_became_of_the_table_after_the_query_began(shop: Shop) -> None:
    orders = shop.pipeline.stream(shop.orders, ORDER)
    users = shop.pipeline.table(shop.users, "city STRING, age INT, since TIMESTAMP")
    output = shop.cluster.topic("joined")
    query = orders.join(users, on="user", how="left").to_topic(output)

    def cities() -> dict[int, tuple[str | None, int | None]]:
        return {one["id"]: (one.get("city"), one.get("age")) for one in shop.values(output)}

    shop.user("ann", city="Praha", since="2026-01-02T03:04:05Z")
    shop.user("bob", city="Brno", age=41)
    shop.order({"id": 1, "user": "ann"}, {"id": 2, "user": "bob"}, {"id": 3, "user": "eva"})
    shop.catch_up(query)
    assert cities() == {1: ("Praha", None), 2: ("Brno", 41), 3: (None, None)}
    assert shop.values(output)[0].keys() >= {"id", "user"}

    shop.user("ann", city="Wien")
    shop.user("eva", city="Linz", age=9)
    shop.user("bob")
    shop.catch_up(query)
    shop.order(*({"id": number, "user": user} for number, user in ((4, "ann"), (5, "bob"), (6, "eva"))))
    shop.catch_up(query)
    assert cities() == {
        1: ("Praha", None), 2: ("Brno", 41), 3: (None, None), 4: ("Wien", None), 5: (None, None), 6: ("Linz", 9)
    }  # fmt: skip
    snapshot = {row["_key"]: row["city"] for row in users.snapshot().collect()}
    assert snapshot == {"ann": "Wien", "eva": "Linz"}


def test_bad_records_go_to_the_dead_letters_and_the_others_on(shop: Shop) -> None:
    letters, output = shop.cluster.topic("letters"), shop.cluster.topic("output")
    orders = shop.pipeline.stream(shop.orders, ORDER, dead_letters=letters)
    good = [{"id": 1, "user": "ann", "amount": 2.5}, {"user": "bob", "unknown": [1]}]
    bad = [b"{", b'{"id": "x", "user": "ann"}', b'{"id": 3}', b"\xff\xfe", b"[1]", b"", None, b'{"user":"a","at":"no"}']
    # More than one object: what is behind the first would be lost.
    bad += [b'{"user":"a"}{"user":"b"}', b'{"user":"a"},{"user":"b"}', b'{"user":"a"}\n{"user":"b"}', b'{"user":"a"} x']
    shop.order(*good)
    shop.send(shop.orders, [(b"k", value) for value in bad], headers=[("own", b"1")], partition=1)
    shop.catch_up(orders.select("id", "user", "amount").to_topic(output))
    assert sorted((one.get("id"), one["user"]) for one in shop.values(output) if one.get("id")) == [(1, "ann")]
    assert len(shop.values(output)) == 2
    found = {record.value: dead_letter_of(record.headers) for record in shop.cluster.read(letters)}
    assert set(found) == set(bad)
    reasons = {value: letter.reason for value, letter in found.items() if letter is not None}
    assert reasons[b'{"id": "x", "user": "ann"}'] == 'field id is "x", which is no bigint'
    assert reasons[b'{"id": 3}'] == "field user is missing, and the schema says NOT NULL"
    assert reasons[b'{"user":"a"} x'] == "the value is not JSON: Extra data: line 1 column 14 (char 13)"
    assert reasons[b'{"user":"a","at":"no"}'] == 'field at is "no", which is no timestamp'
    assert all(reasons.values())
    for letter in found.values():
        assert letter is not None
        assert (letter.topic, letter.partition, letter.own_headers) == (shop.orders, 1, (("own", b"1"),))
        assert letter.pipeline == shop.pipeline.name and letter.stack and "complaints.py" in letter.stack
    assert len({letter.offset for letter in found.values() if letter is not None}) == len(bad)


def test_windows_leave_one_row_for_each_key_and_window_in_the_tables_topic(shop: Shop) -> None:
    orders = shop.pipeline.stream(shop.orders, ORDER).watermark("at", "1 minute")
    topics = {name: shop.cluster.topic(name, cleanup_policy="compact") for name in ("tumbling", "hopping", "sessions")}
    once = orders.deduplicate("id", within="1 minute")
    queries = [
        orders.tumbling("1 minute", by="user")
        .agg(count=F.count("*"), total="sum(amount)")
        .to_table(topics["tumbling"]),
        orders.hopping("2 minutes", "1 minute").count().to_table(topics["hopping"]),
        orders.session("30 seconds", by="user").count().to_table(topics["sessions"]),
        orders.by("user").count().to_table(by_user := f"{shop.orders}-by-user"),
        once.through(lambda rows: rows.where("amount > 0")).select("id").to_topic(seen := f"{shop.orders}-once"),
    ]
    orders_of = [(1, "ann", 0), (2, "ann", 10), (3, "ann", 61), (4, "bob", 5), (2, "ann", 10)]
    shop.order(*({"id": id_, "user": user, "amount": 1.5, "at": at(second)} for id_, user, second in orders_of))
    shop.catch_up(*queries)
    shop.order({"id": 5, "user": "ann", "amount": 0.5, "at": at(62)}, {"id": 6, "user": "zoe", "at": at(3600)})
    shop.catch_up(*queries)
    shop.order({"id": 7, "user": "ann", "amount": 9, "at": at(1)})  # long after the watermark
    shop.catch_up(*queries)

    def key(user: str, second: int) -> str:
        return row_key([user], at(second)).decode()

    tumbling = shop.rows(topics["tumbling"])
    assert {name: (row["count"], row["total"]) for name, row in tumbling.items()} == {
        key("ann", 0): (3, 4.5),
        key("ann", 60): (2, 2.0),
        key("bob", 0): (1, 1.5),
        key("zoe", 3600): (1, None),
    }
    assert tumbling[key("ann", 60)]["window_end"].startswith("2026-11-18T10:02:00.000")
    hopping = {name: row["count"] for name, row in shop.rows(topics["hopping"]).items()}
    starts = {-60: 4, 0: 6, 60: 2, 3540: 1, 3600: 1}
    assert hopping == {row_key([], at(second)).decode(): count for second, count in starts.items()}
    assert {name: row["count"] for name, row in shop.rows(topics["sessions"]).items()} == {
        key("ann", 0): 3, key("ann", 61): 2, key("bob", 5): 1
    }  # fmt: skip
    assert {name: row["count"] for name, row in shop.rows(by_user).items()} == {"ann": 6, "bob": 1, "zoe": 1}
    assert sorted(one["id"] for one in shop.values(seen)) == [1, 2, 3, 4, 5]


def at(second: int) -> str:
    minutes, seconds = divmod(36000 + second, 60)
    return f"2026-11-18T{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.000Z"


def test_keys_are_those_of_the_rule_in_every_time_zone(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    # The night in which Prague has the hour from two to three twice.
    starts = [f"2026-10-25T{hour:02}:30:00.000Z" for hour in range(4)]
    try:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Prague")
        given = [(f'a"{index}ř', index, start) for index, start in enumerate(starts)]
        rows = spark.createDataFrame(given, "a STRING, n INT, t STRING")
        rows = rows.withColumn("window_start", F.to_timestamp("t"))
        found = rows.select(
            key_column(["a"], False), key_column(["a", "n"], False), key_column(["a", "n"], True), "a", "n", "t"
        ).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    for plain, several, windowed, text, number, start in found:
        assert plain.encode() == row_key([text])
        assert several.encode() == row_key([text, str(number)])
        assert windowed.encode() == row_key([text, str(number)], start)


def test_two_streams_meet_within_a_time(shop: Shop) -> None:
    payments = shop.cluster.topic("payments")
    output = shop.cluster.topic("paid")
    orders = shop.pipeline.stream(shop.orders, ORDER).watermark("at", "1 minute")
    paid = shop.pipeline.stream(payments, "id BIGINT, by STRING, at TIMESTAMP").watermark("at", "1 minute")
    with pytest.raises(PipelineError, match="both sides have at"):
        orders.join_stream(paid, on="id", within="10 seconds")
    query = orders.join_stream(paid, on="id", within="10 seconds", prefix="paid_").to_topic(output)
    shop.order(*({"id": number, "user": "ann", "at": at(number)} for number in range(3)))
    shop.send(payments, [(None, json.dumps({"id": 1, "by": "card", "at": at(5)}).encode())])
    shop.catch_up(query)
    shop.send(payments, [(None, json.dumps({"id": 2, "by": "cash", "at": at(13)}).encode())])
    shop.send(payments, [(None, json.dumps({"id": 0, "by": "cash", "at": at(9)}).encode())])
    shop.catch_up(query)
    assert sorted((one["id"], one["paid_by"]) for one in shop.values(output)) == [(0, "cash"), (1, "card")]


def test_avro_text_and_bytes_are_read_and_what_is_none_is_a_dead_letter(shop: Shop, tmp_path: Path) -> None:
    definition = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "user", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(definition))

    def datum(id_: int, user: str | None) -> bytes:
        stream = io.BytesIO()
        row = {"id": id_, "user": user, "at": 1_700_000_000_000, "tags": ["a", "b"]}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(definition), row)
        return stream.getvalue()

    cases: list[tuple[Any, list[bytes | None], list[bytes | None], list[dict[str, Any]]]] = [
        (
            Avro(path),
            [datum(1, "ann"), datum(2, None)],
            [b"", b"\x00\x00\x00\x00\x07" + datum(3, "x"), datum(4, "y") + b"z", None],
            [
                {"id": 1, "user": "ann", "at": "2023-11-14T22:13:20.000Z", "tags": ["a", "b"]},
                {"id": 2, "at": "2023-11-14T22:13:20.000Z", "tags": ["a", "b"]},
            ],
        ),
        (Text(), [b"a", "ř".encode()], [b"\xff", None], [{"value": "a"}, {"value": "ř"}]),
        (Bytes(), [b"\xff\x00"], [None], [{"value": "/wA="}]),
    ]
    queries = []
    for index, (schema, good, bad, _) in enumerate(cases):
        topic = shop.cluster.topic(f"{shop.orders}-{index}")
        shop.send(topic, [(None, value) for value in (*good, *bad)])
        queries.append(shop.pipeline.stream(topic, schema, dead_letters=f"{topic}-bad").to_topic(f"{topic}-good"))
    shop.catch_up(*queries)
    for query, (_, _, bad, expected) in zip(queries, cases, strict=True):
        assert shop.values(query.name) == expected
        letters = shop.cluster.read(query.name.replace("-good", "-bad"))
        found = {record.value: dead_letter_of(record.headers) for record in letters}
        assert set(found) == set(bad)
        assert all(letter is not None and letter.reason for letter in found.values())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def queries(pipeline):\n    return nothing\n", r"orders\.py:2: NameError: name 'nothing' is not defined"),
        (
            "def queries(pipeline):\n    s = pipeline.stream('o', 'id INT')\n    return s.by('usr').count()\n",
            r"orders\.py:3: there is no column 'usr'; there is id, _key",
        ),
        ("def queries(pipeline):\n    return pipeline.stream('o', 'id INT')\n", r"orders\.py"),
        ("def queries(pipeline):\n    return [3]\n", r"orders\.py:1: queries gave a int: end it with to_topic"),
        ("x = 1\n", r"orders\.py:1: there is no function queries\(pipeline\)"),
        ("def queries(pipeline):\n    return pipeline.stream('o', 'id NUM')\n", r"orders\.py:2: schema 'id NUM'"),
        (
            "def queries(pipeline):\n  s = pipeline.stream('o', 'id INT')\n  yield s.where('idd > 1').to_topic('x')\n",
            r"orders\.py:3: AnalysisException: .*idd",
        ),
        ("def queries(pipeline):\n    return []\n", "has no query"),
        (
            "def queries(pipeline):\n  s = pipeline.stream('o', 'id INT')\n  return [s.to_topic('x')] * 2\n",
            "has two queries x, which would share one checkpoint",
        ),
        (
            "def queries(pipeline):\n  for kind in ('INT', 'STRING'):\n"
            "    yield pipeline.stream('o', f'id {kind}', dead_letters='d').to_topic(f'x{kind}')\n",
            r"orders\.py:3: o is read twice with dead_letters, and not alike",
        ),
    ],
)
def test_an_error_in_a_pipelines_file_names_file_line_and_cause(
    code: str, told: str, shop: Shop, tmp_path: Path
) -> None:
    (tmp_path / "orders.py").write_text(code)
    (tmp_path / "pipeline.toml").write_text('name = "a"\nfiles = ["orders.py"]\n')
    with pytest.raises(PipelineError, match=told):
        load_queries(read_project(tmp_path), shop.pipeline)
