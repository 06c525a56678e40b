"""SIGINT and SIGTERM as one exception: the command cleans up, says one line, and can be resumed."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The process is asked to end.

    Attributes:
        signal: by which signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


@contextmanager
def interrupts() -> Iterator[None]:
    """Raise Interrupted inside at the first SIGINT or SIGTERM.

    Later ones do nothing until the block is left, since cleaning up is brief; while Python ends after that, they end
    the process without a traceback. Outside the main thread, signals are left as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ignore(number: int, frame: FrameType | None) -> None:  # unlike SIG_IGN not inherited by processes
        pass

    def interrupt(number: int, frame: FrameType | None) -> None:
        for signal_number in _SIGNALS:
            signal.signal(signal_number, ignore)
            atexit.register(signal.signal, signal_number, signal.SIG_DFL)
        raise Interrupted(number)

    before = {signal_number: signal.signal(signal_number, interrupt) for signal_number in _SIGNALS}
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
