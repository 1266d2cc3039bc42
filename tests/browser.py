"""A real browser without a window: a page as it is once its scripts have run, and what it complained about."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

SECONDS_MAX = 90
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
)
_CONSOLE = re.compile(r'CONSOLE[:(\d)]*\] "?(.*)')


@dataclass(frozen=True)
class Page:
    html: str
    console: list[str]


def require_browser() -> str:
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        complain = pytest.fail if os.environ.get("MOLDAU_TEST_STRICT") == "1" else pytest.skip
        complain("no Chromium: run tools/install-test-tools")
    assert found is not None
    return found


def look_at(url: str, *, width: int = 1400, height: int = 2000, screenshot: Path | None = None) -> Page:
    """The page after some seconds of its own time, which pass at once."""
    output = ["--dump-dom"] if screenshot is None else [f"--screenshot={screenshot}", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run(
            [
                require_browser(),
                *_FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                "--virtual-time-budget=5000",
                *output,
                url,
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
    assert done.returncode == 0, done.stderr
    return Page(done.stdout, [match[1] for line in done.stderr.splitlines() if (match := _CONSOLE.search(line))])
