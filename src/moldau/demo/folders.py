"""The pipelines of the demo as folders that `moldau pipeline run` takes, with the settings of one demo written in."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

PIPELINES = ("analytics", "archive")
_SHIPPED = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What pipeline.toml is to say."""

    bootstrap: str = "127.0.0.1:9092"
    day: str = "5m"
    lake: str = "lake"
    postgres: str = ""
    master: str = "local[*]"

    def lines(self) -> dict[str, str]:
        """By the key that stands at the beginning of a line."""
        return {
            "bootstrap": self.bootstrap,
            "master": self.master,
            '"spark.moldau.demo.day"': self.day,
            '"spark.moldau.demo.lake"': self.lake,
            '"spark.moldau.demo.postgres"': self.postgres,
        }


def write_folders(directory: Path, settings: PipelineSettings) -> list[Path]:
    """Copy the shipped pipelines below `directory`; what is there is replaced, state and checkpoints stay."""
    written = []
    for name in PIPELINES:
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((_SHIPPED / name).glob("*.py")):
            shutil.copyfile(path, folder / path.name)
        shipped = (_SHIPPED / name / "pipeline.toml").read_text(encoding="utf-8")
        (folder / "pipeline.toml").write_text(_with_settings(shipped, settings), encoding="utf-8")
        written.append(folder)
    return written


def _with_settings(text: str, settings: PipelineSettings) -> str:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for key, value in settings.lines().items():
            if line.startswith(f"{key} = "):
                # JSON's texts are TOML's.
                lines[number] = f"{key} = {json.dumps(value)}"
    return "\n".join(lines) + "\n"
