"""A peer in a process with an interpreter of its own: it answers each request, one line of JSON, with another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent


class PeerProcess:
    """A running peer; a context manager.

    Args:
        python: the interpreter in whose environment the peer's package is installed.
        program: name of the script beside this one that it runs.
        arguments: of the script.
    """

    def __init__(self, python: str, program: str, *arguments: str) -> None:
        self.name = program
        self._process = subprocess.Popen(
            [python, str(HERE / program), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            pass  # its pipes are closed, which ends it
        if self._process.returncode and kind is None:
            raise SystemExit(f"{self.name} ended with status {self._process.returncode}")

    def ask(self, what: str, **fields: Any) -> Any:
        """Return its answer to one request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"what": what, **fields}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}; its message is above")
        return json.loads(line)


def serve(answers: dict[str, Callable[..., Any]]) -> None:
    """Answer requests until the input ends: each names a function of `answers`; its other fields are the arguments.

    Runs in the peer. What the peer's package prints goes to standard error.
    """
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        fields = json.loads(line)
        print(json.dumps(answers[fields.pop("what")](**fields)), file=out, flush=True)
