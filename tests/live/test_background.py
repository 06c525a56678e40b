"""The thread beside queries and additions: its pauses."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from rest_store.live import background
from rest_store.live.background import Background


def test_pauses_grow_while_there_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    outcomes: list[bool | Exception] = [False] * 5
    outcomes += [True, False, False, OSError("full"), OSError("full"), False, False]

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.append(round(timeout, 3))
            return self.is_set()

    def work() -> bool:
        is_made.wait()
        outcome = outcomes.pop(0)
        if not outcomes:
            thread._stopped.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    is_made = threading.Event()
    fakes = {"Event": Waits, "Thread": threading.Thread, "get_native_id": threading.get_native_id}
    monkeypatch.setattr(background, "threading", SimpleNamespace(**fakes))
    thread = Background(is_made, work, abandoned=is_made.set, idle_seconds=0.3)
    is_made.set()
    thread._thread.join()
    idle = [0.04, 0.08, 0.16, 0.3, 0.3]
    failing = [0.16, 0.32]
    assert pauses == [*idle, 0.04, 0.08, *failing, 0.02, 0.04]
