"""Compaction: a log that keeps the last record of every key, and forgets the others.

`selection` says how far a log may be cleaned and whether it is worth it, `rules` what becomes of a batch, `job`
runs over the segments and writes cleaned ones beside them. Putting those in the place of the old is the log's own part
(`stored_log`). Nothing here knows a broker, a loop or a process.
"""

from moldau.storage.cleaning.job import Cleaned, CleanedGroup, CleaningJob, RatedPace, run
from moldau.storage.cleaning.selection import Dirt
from moldau.storage.cleaning.swap import announce, give_up, retire

__all__ = [
    "Cleaned",
    "CleanedGroup",
    "CleaningJob",
    "Dirt",
    "RatedPace",
    "announce",
    "give_up",
    "retire",
    "run",
]
