"""What an import noted beside its files, `DIR/_imported-TOPIC`: how far it is, so that it can go on after any end.

A line of JSON before the first record of a file is sent (`at` is where the partition ended then), and one when all of
it is acknowledged. Notes are about one topic of one cluster, by its id: a topic that was made anew has none.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from moldau.cli.errors import CommandError
from moldau.kernel import uuid_text

if TYPE_CHECKING:
    from moldau.cli.topic_files import TopicFile


@dataclass(frozen=True, slots=True)
class Note:
    """The files' offsets [start, end) of a partition are being sent, or `done`, to the topic's offsets from `at` on."""

    topic_id: str
    partition: int
    start: int
    end: int
    at: int
    done: bool = False


class ImportNotes:
    """The notes on one topic. What is written is on disk when a method returns."""

    def __init__(self, path: str, topic_id: str, notes: list[Note]) -> None:
        self._path, self._topic_id = path, topic_id
        self._notes = {(note.partition, note.start): note for note in notes}

    @classmethod
    def open(cls, directory: str, topic: str, topic_id: bytes) -> Self:
        # Spark and others look at no file whose name begins so.
        path, text_id = f"{directory}/_imported-{topic}", uuid_text(topic_id)
        data = b""
        if os.path.exists(path):
            with open(path, "r+b") as file:
                data = file.read()
                # What follows the last newline is a note that a power cut left unfinished.
                data = data[: data.rfind(b"\n") + 1]
                file.truncate(len(data))
        try:
            notes = [Note(**json.loads(line)) for line in data.splitlines()]
        except (ValueError, TypeError):
            raise CommandError(
                f"{path} holds no notes of an import; if nothing of it is needed, start anew with --again"
            ) from None
        return cls(path, text_id, [note for note in notes if note.topic_id == text_id])

    @classmethod
    def anew(cls, directory: str, topic: str, topic_id: bytes) -> Self:
        """Forget what was done before."""
        path = f"{directory}/_imported-{topic}"
        if os.path.exists(path):
            os.unlink(path)
        return cls(path, uuid_text(topic_id), [])

    def is_done(self, file: TopicFile) -> bool:
        note = self._notes.get((file.where.partition, file.start))
        return note is not None and note.done and note.end == file.end

    def begun_at(self, file: TopicFile) -> int | None:
        """Where in the topic this file was begun, or a shorter one that it replaced; None for a new one."""
        note = self._notes.get((file.where.partition, file.start))
        return None if note is None else note.at

    def begin(self, file: TopicFile, at: int) -> None:
        self._add(Note(self._topic_id, file.where.partition, file.start, file.end, at))

    def finish(self, file: TopicFile, at: int) -> None:
        self._add(Note(self._topic_id, file.where.partition, file.start, file.end, at, done=True))

    def _add(self, note: Note) -> None:
        is_new = not os.path.exists(self._path)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(note)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_directory(os.path.dirname(self._path))
        self._notes[note.partition, note.start] = note


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
