"""The `moldau` command. Starting a broker and talking to one are different worlds, so each is imported when needed."""

from __future__ import annotations


def main() -> None:
    """Run the command line; the process ends with its exit code."""
    try:
        from moldau.cli.app import app

        app()
    except KeyboardInterrupt:  # before the command itself could take care of it
        raise SystemExit(130) from None


__all__ = ["main"]
