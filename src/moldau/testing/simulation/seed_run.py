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
    story: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {len(self.problems)} problems; to replay it: {self.command}"
        return "\n".join([head, *self.problems, "", *self.story[-STORY_LINES_MAX:]])
