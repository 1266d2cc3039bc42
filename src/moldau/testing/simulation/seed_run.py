"""What became of one seed, and how to tell it."""

from __future__ import annotations

from dataclasses import dataclass, field

from moldau.testing.history import History

STORY_LINES_MAX = 40


@dataclass(slots=True)
class Run:
    """What became of a seed; `problems` is empty when all is well."""

    seed: int
    command: str
    trace_hash: str = ""
    steps: int = 0
    lives: int = 0
    problems: list[str] = field(default_factory=list)
    # What happened, in order, each line with the seconds of the simulated world.
    story: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)

    def __str__(self) -> str:
        """What went wrong and what came before it."""
        count = len(self.problems)
        head = f"seed {self.seed}: {count} problem{'' if count == 1 else 's'}; to replay it: {self.command}"
        return "\n".join([head, *(f"  {each}" for each in self.problems), *self._last_lines()])

    def _last_lines(self) -> list[str]:
        if len(self.story) <= STORY_LINES_MAX:
            return self.story
        left_out = len(self.story) - STORY_LINES_MAX
        # The first line says what kind of world it is.
        return [self.story[0], f"      ... {left_out} lines, the replay has them", *self.story[1 - STORY_LINES_MAX :]]
