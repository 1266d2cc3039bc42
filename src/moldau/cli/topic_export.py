"""`moldau topic export`: a topic as files, with nothing lost on the way; `topic_import` brings them back.

Keys, values, headers, timestamps and tombstones are kept as they are, byte by byte. Memory does not grow with the
topic.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.errors import usage
from moldau.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, OutputFormat, Property
from moldau.cli.topic_files import FileFormat, require_arrow

if TYPE_CHECKING:
    from moldau.cli.topic_files import TopicFile
    from moldau.client import ClusterClient
    from moldau.kernel import TopicPartition

RECORDS_PER_FILE = 1_000_000
POLL_TIMEOUT_MS = 60_000
PARTIAL_SUFFIX = ".partial"


Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]


def export(
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Where the files go.", show_default=False)],
    file_format: Annotated[FileFormat, typer.Option("--format", help="What to write.")] = FileFormat.JSONL,
    start: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help="An offset, or a time such as 2026-11-01T10:00 or 2h.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHERE", help="Up to this offset or time, which is not exported.")
    ] = None,
    partitions: Annotated[
        list[str] | None,
        typer.Option("-p", "--partitions", "--partition", metavar="N,...", help="Only these, as 0,2; may be repeated."),
    ] = None,
    records_per_file: Annotated[int, typer.Option(min=1, help="How many offsets a file covers.")] = RECORDS_PER_FILE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write files that are there already again.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Output.TABLE,
    properties: Property = None,
) -> None:
    """Write a topic's committed records to files named by their offsets. Run it again to go on where it stopped."""
    from moldau.cli.output import show_rows
    from moldau.cli.remote import on_cluster

    if file_format is FileFormat.PARQUET:
        require_arrow()
    chosen = _numbers(partitions or [])

    async def work(client: ClusterClient) -> list[dict[str, Any]]:
        files = await _plan(client, name, chosen, start, until, records_per_file, file_format)
        return await _export(client, bootstrap, to, files, set(files) if overwrite else _missing(to, files))

    rows = on_cluster(bootstrap, properties, work)
    show_rows(
        output, {"PARTITION": "partition", "FILES": "files", "RECORDS": "records", "START": "start", "END": "end"}, rows
    )


def _numbers(texts: list[str]) -> list[int]:
    numbers = [number.strip() for text in texts for number in text.split(",")]
    for number in numbers:
        if not (number.isascii() and number.isdigit()):
            raise usage(f"--partitions {number}: give numbers, as 0,2")
    return [int(number) for number in numbers]


async def _plan(
    client: ClusterClient,
    name: str,
    chosen: list[int],
    start: str | None,
    until: str | None,
    records_per_file: int,
    file_format: str,
) -> list[TopicFile]:
    from moldau.cli.topic import choose_partitions
    from moldau.cli.topic_files import plan_files
    from moldau.client import IsolationLevel, admin

    where = await choose_partitions(client, name, chosen)
    firsts = await admin.list_offsets(client, dict.fromkeys(where, admin.EARLIEST))
    # What is in open transactions is not exported, so it is not waited for either.
    lasts = await admin.list_offsets(
        client, dict.fromkeys(where, admin.LATEST), isolation_level=IsolationLevel.READ_COMMITTED
    )
    begins = await _offsets_of(client, where, start, "--from")
    stops = await _offsets_of(client, where, until, "--until")
    files: list[TopicFile] = []
    for one in where:
        low, high = firsts[one].offset, lasts[one].offset
        first = max(low, begins.get(one, low)) if begins.get(one, low) >= 0 else high
        last = min(high, stops[one]) if stops.get(one, -1) >= 0 else high
        files += plan_files(one, first, last, records_per_file, file_format)
    return files


async def _offsets_of(
    client: ClusterClient, where: list[TopicPartition], text: str | None, option: str
) -> dict[TopicPartition, int]:
    """What an offset or a time means for each partition; -1 where nothing is so new."""
    import time

    from moldau.cli.options import parse_time
    from moldau.client import admin

    if text is None:
        return {}
    if text.isascii() and text.isdigit():
        return dict.fromkeys(where, int(text))
    if text.startswith("-"):
        raise usage(f"{option} {text}: give an offset or a time")
    at_ms = parse_time(text, int(time.time() * 1000))
    found = await admin.list_offsets(client, dict.fromkeys(where, at_ms))
    return {one: found[one].offset for one in where}


def _missing(directory: str, files: list[TopicFile]) -> set[TopicFile]:
    return {file for file in files if not os.path.exists(f"{directory}/{file.path}")}


async def _export(
    client: ClusterClient, bootstrap: str, to: str, files: list[TopicFile], missing: set[TopicFile]
) -> list[dict[str, Any]]:
    import asyncio

    from moldau.cli.output import Progress
    from moldau.cli.topic_files import remove_parts

    rows: dict[int, dict[str, Any]] = {}
    done = 0
    with Progress("exporting", sum(file.end - file.start for file in files)) as progress:
        for file in files:
            path = f"{to}/{file.path}"
            row = rows.setdefault(
                file.where.partition,
                {"partition": file.where.partition, "files": 0, "records": 0, "start": file.start, "end": file.end},
            )
            if file in missing:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                if file.format == FileFormat.PARQUET:
                    count = await asyncio.to_thread(_write_parquet, bootstrap, path + PARTIAL_SUFFIX, file)
                else:
                    count = await _write_jsonl(client, path + PARTIAL_SUFFIX, file)
                os.replace(path + PARTIAL_SUFFIX, path)
                remove_parts(to, file)
                row["files"] += 1
                row["records"] += count
            row["end"] = file.end
            done += file.end - file.start
            progress.update(done, file.path)
    return list(rows.values())


def _write_parquet(bootstrap: str, path: str, file: TopicFile) -> int:
    import pyarrow.parquet as pq

    from moldau.cli.errors import EXIT_ERROR, CommandError
    from moldau.client import IsolationLevel
    from moldau.spark import SourceError
    from moldau.spark.clients import ClientTimes
    from moldau.spark.offsets import OffsetRange
    from moldau.spark.range_reader import ReadSettings, read_ranges, schema_of_topic

    settings = ReadSettings(
        bootstrap=bootstrap,
        times=ClientTimes(client_id="moldau-export"),
        isolation=IsolationLevel.READ_COMMITTED,
        fetch_bytes_max=50 << 20,
        fetch_wait_ms_max=500,
        fetch_bytes_min=1,
        poll_timeout_ms=POLL_TIMEOUT_MS,
        fail_on_data_loss=True,
        with_headers=True,
        topic_ids={},
    )
    # Topic and partition are in the path, where readers find them.
    columns = [name for name in schema_of_topic(with_headers=True).names if name not in ("topic", "partition")]
    schema = schema_of_topic(with_headers=True)
    for name in ("topic", "partition"):
        schema = schema.remove(schema.get_field_index(name))
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        try:
            for piece in read_ranges([OffsetRange(file.where, file.start, file.end)], settings):
                writer.write_batch(piece.select(columns))
                count += piece.num_rows
        except SourceError as error:
            raise CommandError(str(error), EXIT_ERROR) from None
    _sync(path)
    return count


async def _write_jsonl(client: ClusterClient, path: str, file: TopicFile) -> int:
    from moldau.cli.record_lines import record_line
    from moldau.client import IsolationLevel, PartitionReader

    count = 0
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        async with PartitionReader(
            client,
            {file.where: file.start},
            stop={file.where: file.end},
            isolation_level=IsolationLevel.READ_COMMITTED,
        ) as reader:
            async for records in reader:
                out.writelines(record_line(record) + "\n" for record in records)
                count += len(records)
    _sync(path)
    return count


def _sync(path: str) -> None:
    """A file that has its name is complete, also after a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
