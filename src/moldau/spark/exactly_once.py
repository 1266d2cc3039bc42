"""Exactly once into topics: what is decided, without Spark, broker or clock.

One transaction per micro-batch. The driver owns it, tasks write in it with the driver's producer id and epoch.

State      of a query, kept where the transaction keeps it: the offsets of the group that is named like the
           transactional id. The metadata of each says `Mark(query id, batch id, digest of the batch's source offsets)`.
           In the driver: the epoch that it holds, or none.
Events     Spark hands over batch N; tasks report what they wrote, or fail; the coordinator answers, refuses, is silent.
Effects    take the id (fences older drivers, ends what they left); read the mark; write; verify; commit mark and source
           offsets; abort.

Invariants
1. A batch is written only while the mark says that it is the next one: `decide`.
2. The mark of N and the records of N become visible together, or neither does.
3. A transaction is committed only if every output partition was written by one task attempt, and holds exactly as many
   sequences as that one reported: `check_written`. Brokers take a second producer's sequence 0 for a retry of the first
   one's, say "delivered" and drop it, so this is looked at before anything is committed.
4. An epoch is written with in one transaction only, from sequence 0 in each partition.
5. Whoever does not know how a transaction ended takes the id again, which waits for its end, and then reads the mark;
   the mark is never read without having taken the id, and nothing is guessed.
6. A driver that another one fenced does not take the id back: `judge_failure`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moldau.kernel import TopicPartition

SEQUENCES = 1 << 31
_FORMAT = 1


class ExactlyOnceRefused(RuntimeError):
    """The batch cannot be written exactly once, and trying again will not help. One line, with the remedy."""


# -- the mark ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """What a committed batch leaves behind."""

    query_id: str
    batch_id: int
    digest: str

    def to_metadata(self) -> str:
        return json.dumps(
            {"moldau": _FORMAT, "query": self.query_id, "batch": self.batch_id, "offsets": self.digest},
            separators=(",", ":"),
        )


def mark_from(metadata: Iterable[str]) -> Mark | None:
    """The newest mark among the texts of a group's offsets."""
    marks = [mark for mark in map(_parse_mark, metadata) if mark is not None]
    return max(marks, key=lambda mark: mark.batch_id, default=None)


def _parse_mark(text: str) -> Mark | None:
    try:
        fields = json.loads(text)
        if fields["moldau"] == _FORMAT:
            return Mark(str(fields["query"]), int(fields["batch"]), str(fields["offsets"]))
    except (ValueError, TypeError, KeyError):
        pass  # some other text: not ours
    return None


# -- before the batch --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """The batch is the next one."""


@dataclass(frozen=True, slots=True)
class Skip:
    """The batch is in the topics already."""


@dataclass(frozen=True, slots=True)
class Refuse:
    why: str


def decide(stored: Mark | None, batch: Mark, transactional_id: str) -> Write | Skip | Refuse:
    """What to do with a batch when `stored` is the newest one that was committed under the transactional id."""
    return decide_under(stored, batch, f"transactional id {transactional_id!r}", "transactionalId")


def decide_under(stored: Mark | None, batch: Mark, name: str, naming: str) -> Write | Skip | Refuse:
    """The same where marks are kept under another `name`, which `naming` sets."""
    if stored is None or (stored.query_id == batch.query_id and stored.batch_id < batch.batch_id):
        return Write()
    if stored.query_id != batch.query_id:
        return Refuse(
            f"{name} belongs to query {stored.query_id}, not to {batch.query_id}: the checkpoint was lost or is "
            f"another query's; go on with that query's, or choose another {naming} to write everything anew"
        )
    if stored == batch:
        return Skip()
    return Refuse(
        f"{name} has committed batch {stored.batch_id} and now gets "
        f"{'another batch' if stored.batch_id == batch.batch_id else 'batch'} {batch.batch_id}: the checkpoint is "
        f"older than what was written; restore the newest one, or choose another {naming} to write everything anew"
    )


# -- before the commit -------------------------------------------------------------------------------------------------

REMEDY = "write with writeStream.foreachBatch(moldau.spark.foreach_batch(...)), or with one task (coalesce(1))"


def several_tasks(where: str) -> str:
    return f"several tasks wrote to one partition ({where}), and exactly once needs one task for each: {REMEDY}"


def check_written(reports: Sequence[Mapping[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """The records of each partition, when each was written by one task only."""
    written: dict[TopicPartition, int] = {}
    for report in reports:
        for where, count in report.items():
            if where in written:
                raise ExactlyOnceRefused(several_tasks(str(where)))
            written[where] = count
    return written


def unlike_reported(written: Mapping[TopicPartition, int], last_sequences: Mapping[TopicPartition, int]) -> str | None:
    """Where a log holds another number of records than its task reported, in words; None when all is well."""
    for where, count in written.items():
        expected = (count - 1) % SEQUENCES
        found = last_sequences.get(where)
        if found != expected:
            return f"{where} has last sequence {found} where its task wrote up to {expected}"
    return None


# -- after a failure ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Again:
    """Take the id anew, read the mark, and write the batch unless it is in."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    why: str | None  # None: what happened says it all


def judge_failure(
    transactional_id: str,
    *,
    is_fenced: bool,
    elapsed_ms: float,
    transaction_timeout_ms: int,
    attempts: int,
    attempts_max: int,
) -> Again | GiveUp:
    """What to do after an attempt at a batch failed. A coordinator that gave up a transaction and one that has another
    owner now answer alike; but no coordinator gives up before the transaction's time is over."""
    if is_fenced and elapsed_ms < transaction_timeout_ms:
        return GiveUp(
            f"transactional id {transactional_id!r} was taken by another driver of this query: this one has stopped, "
            "and has written nothing that it did not commit before"
        )
    if attempts < attempts_max:
        return Again()
    if is_fenced:
        return GiveUp(
            f"transactional id {transactional_id!r}: the batch took longer than transaction.timeout.ms="
            f"{transaction_timeout_ms}, {attempts} times: make batches smaller (maxOffsetsPerTrigger), or raise "
            "kafka.transaction.timeout.ms"
        )
    return GiveUp(None)


# -- Spark's offset log ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """Up to where a batch has read its sources."""

    digest: str
    by_partition: dict[TopicPartition, int]  # of sources whose offsets are those of topics


def parse_offset_log(text: str) -> SourceOffsets:
    """An entry of a checkpoint's `offsets` directory: a version, a line about the batch, a line per source."""
    lines = text.split("\n")
    sources = lines[2:]
    if not lines[0].startswith("v") or not sources:
        raise ExactlyOnceRefused(f"the checkpoint's offset log begins with {lines[0]!r}: it is not one that is known")
    offsets: dict[TopicPartition, int] = {}
    for line in sources:
        offsets |= _topic_offsets(line)
    return SourceOffsets(hashlib.sha256("\n".join(sources).encode()).hexdigest()[:16], offsets)


def _topic_offsets(line: str) -> dict[TopicPartition, int]:
    """`{"orders":{"0":23}}`, as Spark's `kafka` source and ours write it; anything else has no topics."""
    try:
        found = json.loads(line)
        return {
            TopicPartition(topic, int(number)): _offset(offset)
            for topic, partitions in found.items()
            for number, offset in partitions.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
