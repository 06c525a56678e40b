"""The thread that calls one external source, so that no step waits for the source longer than its timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class Call(Future[_Result]):
    """A call of a source on its thread; `seconds` says how long it took, once it is done."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        super().__init__()
        self.seconds = 0.0
        self._function: Callable[[], _Result] | None = function

    def run(self) -> None:
        """Make the call."""
        function, self._function = self._function, None
        assert function is not None
        began = monotonic()
        try:
            result = function()
        except BaseException as error:
            self.seconds = monotonic() - began
            self.set_exception(error)
        else:
            self.seconds = monotonic() - began
            self.set_result(result)


_Calls = SimpleQueue[Call[Any] | None]  # None ends the thread


class SourceThread:
    """A daemon thread, started with the first call. It does not delay the end of the process.

    Attributes:
        pending: the last call.
        late: whether the latest answer took longer than the timeout; then no step waits for the next one.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self.pending: Call[Any] | None = None
        self.late = False
        self._calls: _Calls | None = None

    def submit(self, function: Callable[[], _Result], timeout: float) -> Call[_Result] | None:
        """Start a call; return None while the last one still runs.

        Args:
            function: the call.
            timeout: seconds after which the last one was late.
        """
        if self.pending is not None:
            if not self.pending.done():
                self.late = True
                return None
            self.late = self.pending.seconds > timeout
        self.pending = call = Call(function)
        try:
            if self._calls is None:
                calls: _Calls = SimpleQueue()
                threading.Thread(target=_run, args=(calls,), name="rest-store-source", daemon=True).start()
                self._calls = calls
            self._calls.put(call)
        except RuntimeError as error:  # no more threads; the next step tries again
            call.set_exception(error)
        return call

    def close(self, last: Callable[[], object] | None) -> None:
        """End once the last call returns and `last` has been called; may be called again."""
        if self._calls is None:
            if last is not None:
                last()
            return
        if last is not None:
            self._calls.put(Call(last))
        self._calls.put(None)


def _run(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # an idle thread keeps nothing alive
