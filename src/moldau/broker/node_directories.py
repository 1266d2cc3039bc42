"""A node's directories as its start finds them: locked, checked for whose they are, formatted where they are empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moldau.broker.endpoints import ListenerSpec, controller_endpoint
from moldau.broker.errors import StartError
from moldau.broker.formatting import format_directories, random_uuid
from moldau.broker.quorum_setup import QuorumSettings, cluster_id_of
from moldau.broker.replicas import directory_id_of
from moldau.broker.settings import Settings
from moldau.kernel import Dice, Disk, uuid_text
from moldau.storage import LogDirectory, LogDirectoryError


class NodeDirectories:
    """Those of `log.dirs` and that of the metadata log, from `take` to `unlock`."""

    def __init__(self, disk: Disk, settings: Settings, say: Callable[[str], None]) -> None:
        self._disk = disk
        self._settings = settings
        self._say = say
        self._locked: list[LogDirectory] = []
        # Directories of log.dirs that failed before they could say who they are.
        self.unusable: list[LogDirectory] = []
        self.metadata_path = settings.metadata_directory

    def take(
        self,
        specs: Sequence[ListenerSpec],
        quorum: QuorumSettings,
        *,
        wanted_cluster_id: str | None,
        dice: Dice,
        now_ms: int,
    ) -> str:
        """Lock, check and format all of them. The cluster's id, which they agree on."""
        reserve_bytes = self._settings.integer("moldau.log.dir.reserve.bytes")
        for path in self._settings.all_directories:
            directory = LogDirectory(self._disk, path, reserve_bytes)
            if self._lock(directory):
                self._locked.append(directory)
        node_id = self._settings.node_id
        cluster_id = self._agree(quorum, node_id, wanted_cluster_id, dice)
        try:
            format_directories(
                self._disk,
                self._locked,
                self.metadata_path,
                cluster_id=cluster_id,
                node_id=node_id,
                dice=dice,
                now_ms=now_ms,
                static_voters=not quorum.is_alone,
                controller_endpoint=controller_endpoint(specs),
            )
        except OSError as error:
            raise LogDirectoryError(f"{self.metadata_path} cannot be written: {error.strerror or error}") from None
        for directory in self._locked:
            self._fill_reserve(directory)
        return cluster_id

    def unlock(self) -> None:
        for directory in self._locked:
            directory.unlock()

    @property
    def of_logs(self) -> dict[bytes, LogDirectory]:
        """Those of `log.dirs` that work, by their ids."""
        chosen = [directory for directory in self._locked if directory.path in self._settings.log_directories]
        return {_id_of(directory): directory for directory in chosen}

    @property
    def of_metadata(self) -> LogDirectory:
        return next(each for each in self._locked if each.path == self.metadata_path)

    @property
    def metadata_id(self) -> bytes:
        return _id_of(self.of_metadata)

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the disk under a directory."""
        return self._disk.total_bytes(path), self._disk.free_bytes(path)

    def _lock(self, directory: LogDirectory) -> bool:
        """Whether the directory works. One that does not costs its partitions, unless nothing goes without it."""
        try:
            directory.lock()
        except LogDirectoryError as error:
            is_only = len(self._settings.log_directories) == 1
            if is_only or directory.path == self.metadata_path or error.__cause__ is None:
                raise
            self.unusable.append(directory)
            self._say(f"log_directory_offline path={directory.path} reason={str(error)!r}")
            return False
        return True

    def _agree(self, quorum: QuorumSettings, node_id: int, wanted_cluster_id: str | None, dice: Dice) -> str:
        """Whose they are; what is another's is refused."""
        metas = [meta for directory in self._locked if (meta := directory.read_meta_properties()) is not None]
        known = next((meta.cluster_id for meta in metas if meta.cluster_id), None)
        agreed = cluster_id_of(quorum.voters)
        is_newcomer = agreed is None and not quorum.is_alone and node_id not in quorum.voters
        if is_newcomer and not (wanted_cluster_id or known):
            raise StartError(
                "this node joins a cluster and does not know which: format it first, moldau storage format"
                " --cluster-id ID, with the id that moldau cluster describe shows there"
            )
        cluster_id = wanted_cluster_id or known or agreed or uuid_text(random_uuid(dice))
        for directory in self._locked:
            directory.check_meta_properties(cluster_id, node_id)
        return cluster_id

    def _fill_reserve(self, directory: LogDirectory) -> None:
        try:
            directory.reserve.fill()
        except OSError as error:
            # The first look at the space decides whether anything is written beside what has to be.
            directory.reserve.is_spent = True
            self._say(f"reserve_not_kept path={directory.path} reason={str(error)!r}")


def _id_of(directory: LogDirectory) -> bytes:
    meta = directory.read_meta_properties()
    assert meta is not None and meta.directory_id is not None
    return directory_id_of(meta.directory_id)
