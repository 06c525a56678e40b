"""Services to measure, each in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.errors import ServeError, describe

if TYPE_CHECKING:
    from rest_store.service.client.client import DatastoreClient

TIMEOUT = 60.0  # seconds for an answer: a busy machine must not end a measurement


@contextlib.contextmanager
def started(*command: str) -> Iterator[list[str]]:
    """Run `python COMMAND` until it prints that it is ready, and terminate it afterwards.

    Yields:
        The addresses that it prints: those that it listens on, then that of its metrics, if it has any.

    Raises:
        ServeError: the process did not start; it has printed the reason.
    """
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.terminate)
        addresses = []
        for line in process.stdout:
            if line.startswith("ready"):
                break
            if line.startswith(("listening on ", "metrics on ")):
                addresses.append(line.split()[-1])
        else:
            raise ServeError(describe("bench", f"service {' '.join(command[:2])}", "not started", "ready"))
        yield addresses


@contextlib.contextmanager
def serving(directories: Sequence[Path]) -> Iterator[str]:
    """Serve `directories` on a Unix socket and yield its address; end the service afterwards.

    Raises:
        ServeError: the service did not start; it has printed the reason.
    """
    with tempfile.TemporaryDirectory(prefix="rest-store-") as folder:
        named = [f"{place}={directory}" for place, directory in enumerate(directories)]
        with started("-m", "rest_store", "serve", *named, "--listen", f"unix:{folder}/socket") as (target,):
            yield target


@contextlib.contextmanager
def asking(directories: Sequence[Path]) -> Iterator[DatastoreClient]:
    """Serve `directories` and yield a client of the service.

    Raises:
        ServeError: the service did not start; it has printed the reason.
    """
    from rest_store.service.client.client import DatastoreClient

    with serving(directories) as target, DatastoreClient(target, timeout=TIMEOUT) as client:
        client.connect()
        yield client
