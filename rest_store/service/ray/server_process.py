"""A `rest-store serve` process that is started again whenever it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

# The process ends with the one that started it, however that ends: an orphan would hold the address.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):  # it ended before
    sys.exit(1)
os.execv(sys.executable, [sys.executable, "-m", "rest_store", "serve", *sys.argv[2:]])
"""
_LEAST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds before the next start


class ServerState(NamedTuple):
    """The state of a server process.

    Attributes:
        address: where it listens, or listened last; None: it has not listened yet.
        starts: how often it has begun to answer.
        failure: why a process ended last; None: none has ended.
        metrics: HOST:PORT of its metrics, likewise.
    """

    address: str | None
    starts: int
    failure: str | None
    metrics: str | None = None


class ServerProcess:
    """Runs `rest-store serve` until `stop`; after the first time, on the addresses that it had. Thread-safe.

    Args:
        arguments: of the command, without `--listen` and `--metrics`.
        listen: HOST:PORT.
        metrics: HOST:PORT of its metrics; None: it has none.
        variables: environment variables beside those of this process; not on its command line, which others can read.

    What the process logs goes to standard error.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        listen: str,
        metrics: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = list(arguments)
        self._listen = listen
        self._metrics = metrics
        self._environment = {**os.environ, **(variables or {})}
        self._state = ServerState(None, 0, None)
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of starting and of stopping
        self._thread = threading.Thread(target=self._run, name="rest-store server", daemon=True)
        self._thread.start()  # the processes are those of this thread, and end with it

    @property
    def state(self) -> ServerState:
        """Its present state."""
        return self._state

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that runs now, if one does."""
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def stop(self) -> None:
        """Let the process end its running calls, and wait until it has. May be called again."""
        self._stopping.set()
        self.send_signal(signal.SIGTERM)
        self._thread.join()

    def _run(self) -> None:
        pause = _LEAST_PAUSE
        while True:
            starts = self._state.starts
            try:
                process = self._start()
            except OSError as error:  # for want of memory or descriptors, for instance
                failure = f"it cannot be started ({error.strerror})"
            else:
                if process is None:
                    return
                failure = self._follow(process)
            self._state = self._state._replace(failure=failure)
            pause = _LEAST_PAUSE if self._state.starts > starts else min(2 * pause, _LONGEST_PAUSE)
            self._stopping.wait(pause)

    def _start(self) -> subprocess.Popen[str] | None:
        """Start a process; return None if `stop` was called."""
        with self._lock:
            if self._stopping.is_set():
                return None
            words = ["-c", _TIED, str(os.getpid()), *self._arguments, "--listen", self._listen]
            if self._metrics is not None:
                words += ["--metrics", self._metrics]
            self._process = subprocess.Popen(
                [sys.executable, *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            return self._process

    def _follow(self, process: subprocess.Popen[str]) -> str:
        """Read the output of a process until it ends; return why it ended."""
        assert process.stdout is not None
        address, metrics, last = None, None, ""
        with process, process.stdout as lines:
            for line in lines:
                if line.startswith("listening on "):
                    address = line.removeprefix("listening on ").strip()
                elif line.startswith("metrics on "):
                    metrics = urlsplit(line.removeprefix("metrics on ").strip()).netloc
                elif line == "ready\n":
                    self._listen, self._metrics = address or self._listen, metrics or self._metrics
                    self._state = ServerState(address, self._state.starts + 1, self._state.failure, metrics)
                else:
                    last = line.strip() or last
                    sys.stderr.write(line)
        return last if process.returncode == 1 else f"it ended with status {process.returncode}"
