"""One of the sessions at once of `bench_service.py`: a process that runs one session after another.

Its arguments are the place of its first session and a file with the rest of what it needs.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import time
from pathlib import Path

from peer_process import serve
from session_steps import WAYS, Material, Sessions, Times

from rest_store.bench.datastores import open_datastores


class Worker:
    """Runs sessions in one way at a time.

    Args:
        material: what they are run with.
        number: the first session is that of the walk with this number.
    """

    def __init__(self, material: Material, number: int) -> None:
        self._material = material
        self._number = number
        self._open = contextlib.ExitStack()
        self._sessions: Sessions | None = None

    def open(self, way: str, nodes: int) -> int:
        """Connect, and run one session; return its steps."""
        self._open.close()
        self._sessions = self._open.enter_context(WAYS[way](self._material, nodes))
        return len(self._run())

    def count(self, begin: float, end: float) -> int:
        """Run sessions until `end`; return the steps that ended between `begin` and `end` (`time.perf_counter`)."""
        steps = 0
        while time.perf_counter() < end:
            steps += sum(begin <= ended < end for _, ended in self._run())
        return steps

    def _run(self) -> Times:
        assert self._sessions is not None
        self._number += 1
        return self._sessions(self._number % len(self._material.walks))


if __name__ == "__main__":
    fields = pickle.loads(Path(sys.argv[2]).read_bytes())
    stores = list(open_datastores(fields.pop("stores")).values())
    worker = Worker(Material(stores=stores, **fields), int(sys.argv[1]))
    serve({"open": worker.open, "count": worker.count})
