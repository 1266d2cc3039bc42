"""What these tests share: a disk with hooks under a real broker, and small requests. Holds no test itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from moldau.broker.host import SystemDisk
from moldau.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from moldau.protocol.messages.create_topics import CreateTopicsRequest
from moldau.protocol.messages.delete_records import DeleteRecordsRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest
from moldau.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from moldau.testing import Broker
from tests.differential.wire import Wire

SECONDS_MAX = 15.0
Hook = Callable[[str, str], None]


class HookedFile:
    """A real file whose reads, writes and syncs are announced first."""

    def __init__(self, file: Any, path: str, hook: Hook) -> None:
        self._file, self._path, self._hook = file, path, hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, position: int, count: int) -> Any:
        self._hook("read", self._path)
        return self._file.read(position, count)

    def write(self, position: int, buffers: Any) -> None:
        self._hook("write", self._path)
        self._file.write(position, buffers)

    def sync(self) -> None:
        self._hook("sync", self._path)
        self._file.sync()


class HookedDisk(SystemDisk):
    """The real disk; `hook(operation, path)` runs before each operation and may block or raise OSError."""

    hook: Hook = staticmethod(lambda operation, path: None)

    def __call__(self) -> HookedDisk:  # stands in for the class SystemDisk
        return self

    def _tell(self, operation: str, path: str) -> None:
        self.hook(operation, path)

    def open(self, path: str, *, create: bool = False) -> Any:
        self._tell("open", path)
        return HookedFile(super().open(path, create=create), path, self._tell)

    def rename(self, source: str, target: str) -> None:
        self._tell("rename", source)
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._tell("sync_directory", path)
        super().sync_directory(path)

    def replace_file(self, path: str, data: bytes) -> None:
        self._tell("replace_file", path)
        super().replace_file(path, data)


@contextmanager
def hooked_broker(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str] | None = None, data: str | None = None
) -> Iterator[tuple[Broker, HookedDisk]]:
    disk = HookedDisk()
    monkeypatch.setattr("moldau.testing.broker.SystemDisk", disk)
    broker = Broker(settings, data=data)
    with broker:
        try:
            yield broker, disk
        finally:
            disk.hook = lambda operation, path: None


class Gate:
    """A hook that holds whoever does `operation` on a path with `part` in it, until it is opened."""

    def __init__(self, operation: str, part: str) -> None:
        self._operation, self._part = operation, part
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, operation: str, path: str) -> None:
        if operation == self._operation and self._part in path and not self.opened.is_set():
            self.reached.set()
            self.opened.wait(SECONDS_MAX)


def wait_until(condition: Callable[[], bool], seconds: float = SECONDS_MAX) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def ask_in_thread(wire: Wire, request: Any, version: int) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(wire.ask(request, version))
        except TimeoutError:
            answers.append("timeout")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, answers


def delete_topic(*names: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)


def create_topics(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name in names
        ],
        timeout_ms=10_000,
    )


def trim(topic: str, offset: int) -> DeleteRecordsRequest:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=10_000
    )


def alter(kind: int, name: str, **configs: str) -> IncrementalAlterConfigsRequest:
    """`__` in a key stands for a dot."""
    return IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(key.replace("__", "."), 0, value)
                    for key, value in configs.items()
                ],
            )
        ]
    )


def move(topic: str, path: str) -> AlterReplicaLogDirsRequest:
    topics = [AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=[0])]
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=topics)])
