"""A cleaning job in a process of its own: the broker's loop, and the lock that Python has on its threads, stay free.

The job goes in on stdin, what it comes to comes out on stdout, pickled by and for us. The process lives
for one job. It is less important to the system than the broker is: where both want the same core, the broker has it.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
import sys
from collections.abc import AsyncIterator

from moldau.storage.cleaning import Cleaned, CleanedGroup, CleaningJob, RatedPace, run

NICENESS = 15
_LENGTH = struct.Struct(">I")
# Before anything is imported, which is work as well.
_PROGRAM = f"import os; os.nice({NICENESS}); from {__name__} import main; main()"


async def clean_in_process(job: CleaningJob, rate: float) -> AsyncIterator[CleanedGroup | Cleaned]:
    """OSError, CorruptBatchError: as the job itself raised it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PROGRAM, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(pickle.dumps((job, rate)))
        process.stdin.close()
        while True:
            try:
                (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
                step = pickle.loads(await process.stdout.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                raise OSError(f"the cleaner's process ended with status {await process.wait()}") from None
            if isinstance(step, Exception):
                raise step
            yield step
            if isinstance(step, Cleaned):
                return
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def main() -> None:
    from moldau.broker.host import SystemDisk

    job, rate = pickle.load(sys.stdin.buffer)
    try:
        for step in run(job, SystemDisk(), RatedPace(rate)):
            _send(step)
    except Exception as error:
        _send(error if isinstance(error, OSError | ValueError) else OSError(f"{type(error).__name__}: {error}"))


def _send(step: object) -> None:
    data = pickle.dumps(step)
    sys.stdout.buffer.write(_LENGTH.pack(len(data)) + data)
    sys.stdout.buffer.flush()
