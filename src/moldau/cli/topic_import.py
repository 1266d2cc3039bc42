"""`moldau topic import`: sends what an export wrote to a topic, every record once, however often it is interrupted.

Before a file is sent, where its partition ends is noted on disk (`import_notes`). An import that is run again compares
what lies above that offset with the file: what is there already is skipped. If it is something else, somebody wrote to
the partition meanwhile, and the import refuses rather than to guess. Offsets are new ones, as the topic gives them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from moldau.cli.errors import CommandError
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property
from moldau.cli.topic_files import FileFormat, require_arrow

if TYPE_CHECKING:
    from moldau.cli.import_notes import ImportNotes
    from moldau.cli.record_lines import InputRecord
    from moldau.cli.topic_files import TopicFile
    from moldau.client import ClusterClient, ConsumedRecord, Producer
    from moldau.kernel import TopicPartition

T = TypeVar("T")

LINES_PER_PIECE = 500
ROWS_PER_PIECE = 1 << 15


def import_(
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    source: Annotated[str, typer.Option("--from", metavar="DIR", help="What an export wrote.", show_default=False)],
    topic: Annotated[
        str | None,
        typer.Option("--exported-as", metavar="TOPIC", help="The topic's name in the files, if not the same."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="From the beginning, whatever was imported before.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Send what an export wrote to a topic that exists, each record to its partition and with its time.

    What is done is noted in DIR/_imported-TOPIC: run it again after an interruption and it goes on where it stopped.
    Nobody else should write to the topic meanwhile; if somebody did where it stopped, it says so and sends nothing.
    """
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster
    from moldau.cli.topic_files import find_files

    if not os.path.isdir(source):
        raise CommandError(f"{source}: there is no such directory")
    files = list(find_files(source, topic or name))
    if not files:
        raise CommandError(f"{source}: there is no topic={topic or name} with files of an export in it")
    if any(file.format == FileFormat.PARQUET for file in files):
        require_arrow()
    for file, following in pairwise(files):
        if file.where == following.where and following.start < file.end:
            raise CommandError(
                f"{source}: {file.path} and {following.path} hold the same offsets; remove one, or nothing is imported"
            )

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        return await _import(client, source, name, files, again=again)

    show_rows(
        output,
        {"PARTITION": "partition", "FILES": "files", "RECORDS": "records"},
        on_cluster(bootstrap, properties, work),
    )


async def _import(
    client: ClusterClient, source: str, name: str, files: list[TopicFile], *, again: bool
) -> list[dict[str, Any]]:
    from moldau.cli.import_notes import ImportNotes
    from moldau.cli.output import Progress
    from moldau.cli.remote import find_topic
    from moldau.client import Producer

    info = await find_topic(client, name)
    count, needed = len(info.partitions), max(file.where.partition for file in files) + 1
    if needed > count:
        raise CommandError(f"topic {name!r} has {count} partitions, the files have {needed}; alter it first")
    notes = (ImportNotes.anew if again else ImportNotes.open)(source, name, info.topic_id)
    files = [file for file in files if not notes.is_done(file)]
    rows: dict[int, dict[str, Any]] = {}
    done = 0
    with Progress("importing", sum(file.end - file.start for file in files)) as progress:
        async with Producer(client, {"linger.ms": 5}) as producer:
            for file in files:

                def on_piece(sent: int, file: TopicFile = file, done: int = done) -> None:
                    progress.update(done + sent, file.path)

                sent = await _import_file(client, producer, notes, source, name, file, on_piece)
                row = rows.setdefault(
                    file.where.partition, {"partition": file.where.partition, "files": 0, "records": 0}
                )
                row["files"] += 1
                row["records"] += sent
                done += file.end - file.start
    return list(rows.values())


async def _import_file(
    client: ClusterClient,
    producer: Producer,
    notes: ImportNotes,
    source: str,
    name: str,
    file: TopicFile,
    on_piece: Callable[[int], None],
) -> int:
    """How many records were sent."""
    from moldau.client import admin
    from moldau.kernel import TopicPartition

    where = TopicPartition(name, file.where.partition)
    path = f"{source}/{file.path}"
    end = (await admin.list_offsets(client, {where: admin.LATEST}))[where].offset
    begun_at = notes.begun_at(file)
    if begun_at is None:
        begun_at, skip, expected = end, 0, None
    else:
        skip = await _count_sent(client, where, begun_at, end, file, path)
        expected = begun_at + skip
    notes.begin(file, begun_at)
    sender = _Sender(producer, where, expected)
    send = sender.send_parquet if file.format == FileFormat.PARQUET else sender.send_jsonl
    sent = await send(path, skip, on_piece)
    await sender.finish()
    notes.finish(file, begun_at)
    return sent


# -- what is there already ---------------------------------------------------------------------------------------------


async def _count_sent(
    client: ClusterClient, where: TopicPartition, begun_at: int, end: int, file: TopicFile, path: str
) -> int:
    """How many of the file's records an earlier run brought in, one to an offset from `begun_at` on."""
    from moldau.client import PartitionReader, admin

    if end < begun_at:
        raise CommandError(
            f"{where} ends at offset {end}, but the import of {path} began at {begun_at}: the topic lost records; "
            "import into a new topic, or everything once more with --again"
        )
    first = max(begun_at, (await admin.list_offsets(client, {where: admin.EARLIEST}))[where].offset)
    ours = _parquet_records(path) if file.format == FileFormat.PARQUET else _jsonl_records(path)
    number = 0
    if first < end:
        async with PartitionReader(client, {where: first}, stop={where: end}) as reader:
            async for records in reader:
                for record in records:
                    # Cleaning and retention may have taken some away since; offsets still say which is which.
                    passed = record.offset - begun_at - number
                    mine = next(islice(ours, passed, None), None)
                    if mine is None:
                        return end - begun_at  # all of the file is there, and what others wrote behind it
                    if not _is_same(mine, record):
                        raise CommandError(
                            f"{where}: the record at offset {record.offset} is not number {record.offset - begun_at} "
                            f"of {path}, whose import began at {begun_at}: somebody else wrote to the partition. "
                            "Nothing was sent; import into a new topic, or everything once more with --again"
                        )
                    number = record.offset - begun_at + 1
    return end - begun_at


def _is_same(mine: InputRecord, there: ConsumedRecord) -> bool:
    from moldau.client import TimestampType

    is_time_kept = there.timestamp_type == TimestampType.CREATE_TIME and mine.timestamp_ms is not None
    return (
        (mine.key, mine.value) == (there.key, there.value)
        and list(mine.headers or ()) == list(there.headers or ())
        and (not is_time_kept or mine.timestamp_ms == there.timestamp)
    )


# -- files -------------------------------------------------------------------------------------------------------------


def _jsonl_records(path: str) -> Iterator[InputRecord]:
    from moldau.cli.record_lines import LineError, parse_record_line

    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield parse_record_line(line)
            except LineError as error:
                raise CommandError(f"{path}: line {number} {error}") from None


def _parquet_records(path: str) -> Iterator[InputRecord]:
    import pyarrow as pa

    from moldau.cli.record_lines import InputRecord

    for piece in _parquet_pieces(path):
        times = piece["timestamp"].cast(pa.timestamp("ms", tz=piece["timestamp"].type.tz), safe=False).cast(pa.int64())
        columns = (piece["key"], piece["value"], piece["headers"], times)
        for key, value, headers, timestamp_ms in zip(*(column.to_pylist() for column in columns), strict=True):
            yield InputRecord(key, value, [(one["key"], one["value"]) for one in headers or ()], None, timestamp_ms)


def _parquet_pieces(path: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(ROWS_PER_PIECE)


async def _in_a_thread(pieces: Iterator[T]) -> AsyncIterator[T]:
    """Reading a file and parsing it must not hold up what is being sent."""
    import asyncio

    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


# -- sending -----------------------------------------------------------------------------------------------------------


class _Sender:
    """Sends a file's records to one partition. `expected` is the offset of the first one, where that is known."""

    def __init__(self, producer: Producer, where: TopicPartition, expected: int | None) -> None:
        self._producer, self._where, self._expected = producer, where, expected
        self._failure: Exception | None = None

    def _on_delivery(self, metadata: Any, error: Exception | None) -> None:
        if error is None and self._expected is not None and metadata.offset != self._expected:
            error = CommandError(
                f"{self._where}: the import went on at offset {metadata.offset}, not at {self._expected}: somebody "
                "else wrote to the partition, or what the interrupted import had sent arrived only now; records may "
                "be there twice. Import into a new topic, or leave it as it is"
            )
        self._expected = None
        if error is not None and self._failure is None:
            self._failure = error

    async def finish(self) -> None:
        await self._producer.flush()
        if self._failure is not None:
            raise self._failure

    async def send_jsonl(self, path: str, skip: int, on_piece: Callable[[int], None]) -> int:
        count = 0
        records = islice(_jsonl_records(path), skip, None)
        async for piece in _in_a_thread(iter(lambda: list(islice(records, LINES_PER_PIECE)), [])):
            for record in piece:
                await self._producer.send(
                    self._where.topic,
                    record.value,
                    record.key,
                    record.headers,
                    self._where.partition,
                    record.timestamp_ms,
                    self._on_delivery,
                )
            count += len(piece)
            on_piece(skip + count)
        return count

    async def send_parquet(self, path: str, skip: int, on_piece: Callable[[int], None]) -> int:
        from moldau.protocol.batches import HEADER_BYTES
        from moldau.protocol.columnar import encode_batches

        settings = self._producer.settings
        bytes_max = max(min(settings.batch_size, settings.max_request_size), HEADER_BYTES + 1)
        passed = 0
        async for whole in _in_a_thread(_parquet_pieces(path)):
            piece = whole.slice(max(0, skip - passed))
            passed += whole.num_rows
            if not piece.num_rows:
                continue
            for batch in encode_batches(
                piece["key"],
                piece["value"],
                timestamp=piece["timestamp"],
                headers=piece["headers"],
                bytes_max=bytes_max,
                compression=settings.compression_type,
                compression_level=settings.compression_level,
            ):
                await self._producer.send_encoded(self._where.topic, self._where.partition, batch, self._on_delivery)
            on_piece(passed)
        return max(0, passed - skip)
