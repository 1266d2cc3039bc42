"""Opening the logs that an unclean stop left: every directory in a thread of its own, as disks do not share a head.

Nothing here decides anything: what an opening comes to, a log or an error, is handed back for `Replicas` to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from moldau.kernel import Clock, KafkaError, TopicPartition
from moldau.storage import PartitionLog

PROGRESS_MS = 1_000

Opened = PartitionLog | KafkaError | OSError


class LogToOpen(NamedTuple):
    name: TopicPartition
    open: Callable[[], PartitionLog]


def recover(
    by_directory: Mapping[str, Sequence[LogToOpen]], clock: Clock, say: Callable[[str], None]
) -> dict[TopicPartition, Opened]:
    """Open all of them; with progress for those who wait for a broker with much to look at."""
    found: dict[TopicPartition, Opened] = {}
    with ThreadPoolExecutor(max(len(by_directory), 1), thread_name_prefix="moldau-recovery") as threads:
        parts = [threads.submit(_open_all, path, logs, clock, say) for path, logs in by_directory.items()]
        for part in parts:
            found |= part.result()
    return found


def _open_all(
    path: str, logs: Sequence[LogToOpen], clock: Clock, say: Callable[[str], None]
) -> dict[TopicPartition, Opened]:
    began_ms = told_ms = clock.monotonic_ms()
    found: dict[TopicPartition, Opened] = {}
    for count, log in enumerate(logs, 1):
        try:
            found[log.name] = log.open()
        except (KafkaError, OSError) as error:
            found[log.name] = error
        if clock.monotonic_ms() - told_ms >= PROGRESS_MS:
            told_ms = clock.monotonic_ms()
            say(f"recovery_progress path={path} logs={count} of={len(logs)}")
    say(f"recovery_done path={path} logs={len(logs)} ms={clock.monotonic_ms() - began_ms}")
    return found
