"""A service of datastores for as long as something is measured through it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rest_store.errors import ServeError, describe

PATIENCE = 60.0  # seconds for an answer that is measured: a machine that was busy elsewhere ends no benchmark


@contextlib.contextmanager
def serving(directories: Sequence[Path]) -> Iterator[str]:
    """Serve `directories` on a Unix socket, in a process of its own; give the target, and end it afterwards.

    Raises:
        ServeError: it did not start; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="rest-store-") as folder:
        named = [f"{place}={directory}" for place, directory in enumerate(directories)]
        target = f"unix:{folder}/socket"
        process = subprocess.Popen(
            [sys.executable, "-m", "rest_store", "serve", *named, "--listen", target], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process, contextlib.ExitStack() as ending:
            ending.callback(process.terminate)
            if not any(line.startswith("ready") for line in process.stdout):
                raise ServeError(describe("bench", "service of the datastores", "not started", "ready"))
            yield target
