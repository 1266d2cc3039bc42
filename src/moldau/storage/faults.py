"""What an error of the disk means: a state that passes by itself, or a disk that is not to be believed any more."""

from __future__ import annotations

import errno

from moldau.kernel import ErrorCode, KafkaError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# The process or the machine ran out of something that is not the disk.
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})


class DamagedLogError(KafkaError):
    """Something is wrong below the recovery point, where all was safe once. Nothing is removed: a person decides."""

    def __init__(self, directory: str, offset: int, recovery_point: int, reason: str) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{directory} is damaged at offset {offset}, below its recovery point {recovery_point}: {reason};"
            " nothing was removed. Restore the files from a copy, or see with 'moldau log verify' what is left and keep"
            " that with 'moldau log repair'",
        )


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def is_passing(error: OSError) -> bool:
    """Whether the same call may succeed later. Not to be asked about a sync: after its error nothing is known."""
    return error.errno in _FULL or error.errno in _SHORT
