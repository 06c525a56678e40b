"""Services for as long as something is measured through them, each in a process of its own."""

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
def started(*command: str) -> Iterator[list[str]]:
    """Run `python COMMAND`, which says where it listens and then that it is ready; end it afterwards.

    Yields:
        The addresses that it listens on, in the order in which it says them.

    Raises:
        ServeError: it did not start; it has said why.
    """
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, contextlib.ExitStack() as ending:
        ending.callback(process.terminate)
        addresses = []
        for line in process.stdout:
            if line.startswith("ready"):
                break
            if line.startswith("listening on "):
                addresses.append(line.split()[-1])
        else:
            raise ServeError(describe("bench", f"service {' '.join(command[:2])}", "not started", "ready"))
        yield addresses


@contextlib.contextmanager
def serving(directories: Sequence[Path]) -> Iterator[str]:
    """Serve `directories` on a Unix socket; give the target, and end it afterwards.

    Raises:
        ServeError: it did not start; it has said why.
    """
    with tempfile.TemporaryDirectory(prefix="rest-store-") as folder:
        named = [f"{place}={directory}" for place, directory in enumerate(directories)]
        with started("-m", "rest_store", "serve", *named, "--listen", f"unix:{folder}/socket") as (target,):
            yield target
