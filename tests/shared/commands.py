"""Commands in this process."""

from __future__ import annotations

from click.testing import CliRunner

from rest_store.cli import main


def run(*words: object) -> tuple[int, str]:
    """Run `rest-store` with these words; return its exit status and all that it printed."""
    done = CliRunner().invoke(main, list(map(str, words)))
    return done.exit_code, done.output
