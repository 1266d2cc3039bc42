"""Formatting and describing a node's directories without starting it (`moldau storage`)."""

from __future__ import annotations

from typing import Any

from moldau.broker.endpoints import controller_endpoint, read_listeners
from moldau.broker.formatting import format_directories, random_uuid
from moldau.broker.host import SystemClock, SystemDice, SystemDisk
from moldau.broker.quorum_setup import read_quorum_settings
from moldau.broker.settings import Settings
from moldau.kernel import parse_uuid, uuid_text
from moldau.storage import LogDirectory


class AlreadyFormattedError(Exception):
    """One of the directories has an identity already."""


def format_storage(settings: Settings, cluster_id: str | None, *, ignore_formatted: bool) -> list[tuple[str, str]]:
    """Format every empty directory of `log.dirs` and `metadata.log.dir`; (path, cluster id) of each.

    ValueError for a cluster id that is none.
    """
    disk, dice = SystemDisk(), SystemDice()
    directories = [LogDirectory(disk, path) for path in settings.all_directories]
    formatted = [directory.path for directory in directories if directory.read_meta_properties() is not None]
    if formatted and not ignore_formatted:
        raise AlreadyFormattedError(
            f"{formatted[0]} is formatted already; give --ignore-formatted to leave it as it is"
        )
    if cluster_id is not None:
        parse_uuid(cluster_id)
    chosen = cluster_id or uuid_text(random_uuid(dice))
    for directory in directories:
        directory.make()
    format_directories(
        disk,
        directories,
        settings.metadata_directory,
        cluster_id=chosen,
        node_id=settings.node_id,
        dice=dice,
        now_ms=SystemClock().now_ms(),
        static_voters=not read_quorum_settings(settings).is_alone,
        controller_endpoint=controller_endpoint(read_listeners(settings)),
    )
    return [(directory.path, chosen) for directory in directories if directory.path not in formatted]


def describe_storage(settings: Settings) -> list[dict[str, Any]]:
    """A row per directory: identity, whether it was stopped cleanly, how many partitions it holds."""
    disk = SystemDisk()
    rows: list[dict[str, Any]] = []
    for path in settings.all_directories:
        directory = LogDirectory(disk, path)
        if not disk.exists(directory.path):
            rows.append({"directory": directory.path, "state": "missing"})
            continue
        meta = directory.read_meta_properties()
        if meta is None:
            rows.append({"directory": directory.path, "state": "not formatted"})
            continue
        rows.append(
            {
                "directory": directory.path,
                "state": "stopped cleanly" if directory.was_closed_cleanly() else "in use or not stopped cleanly",
                "cluster_id": meta.cluster_id,
                "node_id": meta.node_id,
                "directory_id": meta.directory_id,
                "partitions": sum(1 for each in directory.partition_directories() if not each.kind),
            }
        )
    return rows
