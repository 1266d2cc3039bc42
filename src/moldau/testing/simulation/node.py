"""A real node in a simulated process: it dies at any operation of its disk, or at any other moment, and comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from moldau.broker import Node, load_settings
from moldau.testing.dice import SeededDice
from moldau.testing.disk import PowerLoss, SimulatedDisk
from moldau.testing.loop import LoopClock, Process, SeededLoop
from moldau.testing.simulation.network import HOST, SimulatedNetwork

DIRECTORY = "/node"
NEVER = 1 << 60
# Few and small, so that a start is cheap and logs roll.
SETTINGS = {
    "log.dirs": DIRECTORY,
    "moldau.http.listener": "",
    "moldau.log.dir.reserve.bytes": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "2",
}


class SimulatedNode:
    """`start`, and after each death `start` again: the next life finds the disk as the last one left it."""

    def __init__(
        self,
        network: SimulatedNetwork,
        dice: SeededDice,
        *,
        port: int,
        settings: Mapping[str, str],
        say: Callable[[str], None],
        host: str = "",
    ) -> None:
        self._network = network
        self._loop: SeededLoop = network.loop
        self._dice = dice
        self.port = port
        self.host = host
        self._settings = {**SETTINGS, "listeners": f"PLAINTEXT://{HOST}:{port}", **settings}
        self._say = say
        self.clock = LoopClock(self._loop)
        self.disk = SimulatedDisk(dice)
        self.process = Process("unborn")
        self.process.is_dead = True
        self.node: Node | None = None
        self.lives = 0
        self._steps_at_start: int | None = None
        # Whether a death takes what was not synced with it.
        self.loses_power = False
        self.on_death: Callable[[], None] = lambda: None

    @property
    def is_alive(self) -> bool:
        return not self.process.is_dead

    def start(self) -> bool:
        """Whether it came up; it may die on the way."""
        assert not self.is_alive
        if self.lives:
            self.disk = self.disk.crash() if self.loses_power else self.disk.kill()
        self.lives += 1
        process = self.process = Process(f"node {self.lives}", self.host)
        process.on_death.append(self._on_death)
        self.disk.on_power_loss = process.die
        if self._steps_at_start is not None:
            self.disk.lose_power_after(self._steps_at_start)
            self._steps_at_start = None
        settings, _ = load_settings(None, self._settings.items(), {})
        try:
            process.run(lambda: self._start(process, settings))
        except PowerLoss:
            return False
        return True

    def _start(self, process: Process, settings: object) -> None:
        node = self.node = Node(
            settings,  # type: ignore[arg-type]
            disk=self.disk,
            clock=self.clock,
            dice=self._dice,
            loop=self._loop,
            say=self._say,
            listen=self._network.listener_of(process),
        )
        node.start()
        node.replicas.closing_threads = 1

    def _on_death(self) -> None:
        self._say(f"node_died life={self.lives} at_step={self.disk.steps}")
        self.node = None
        self.on_death()

    def kill_after(self, disk_steps: int) -> None:
        """Die in the middle of the change of the disk that many changes from now."""
        self.disk.lose_power_after(disk_steps)

    def kill_at_start(self, disk_steps: int) -> None:
        """The same for the next life."""
        self._steps_at_start = disk_steps

    def never_kill(self) -> None:
        """Forget about it."""
        self._steps_at_start = None
        self.disk.lose_power_after(NEVER)

    def kill(self) -> None:
        """Die now, between two steps."""
        self.process.die()

    async def stop(self) -> None:
        """A clean end, unless a death is ordered on the way."""
        node, process = self.node, self.process
        assert node is not None
        self.never_kill()
        try:
            await process.run(lambda: self._loop.create_task(node.stop()))
        except PowerLoss:
            pass
        process.die()
