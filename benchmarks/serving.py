"""Services to measure, each in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rest_store.errors import ServeError, describe

TIMEOUT = 60.0  # seconds for an answer: a busy machine must not end a measurement


@contextlib.contextmanager
def serving(directories: Sequence[Path], *others: str) -> Iterator[list[str]]:
    """Serve `directories` by their numbers; yield the addresses, and end the service afterwards.

    Args:
        directories: of datastores.
        others: addresses to listen on besides a Unix socket, which is the last.

    Raises:
        ServeError: the service did not start; it has printed the reason.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rest-store-"))
        named = [f"{number}={directory}" for number, directory in enumerate(directories)]
        listen = [word for address in (*others, f"unix:{folder}/socket") for word in ("--listen", address)]
        command = [sys.executable, "-m", "rest_store", "serve", *named, *listen]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        assert process.stdout is not None
        addresses = []
        for line in process.stdout:
            if line.startswith("ready"):
                break
            if line.startswith("listening on "):
                addresses.append(line.split()[-1])
        else:
            raise ServeError(describe("bench", "service", "not started", "ready"))
        yield addresses
