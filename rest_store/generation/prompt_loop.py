"""What a user types at `rest-store generate`, or pipes into it."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click


def is_interactive() -> bool:
    """Whether somebody types."""
    return sys.stdin.isatty()


def lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank, to its end; on a terminal, after a prompt sign.

    There Ctrl-C gives up a line, and Ctrl-D ends the input.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not is_interactive():
        yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        return
    with suppress(ImportError):  # editing and a history of lines
        import readline  # noqa: F401
    sign = "> " if sys.stdout.isatty() else ""  # not into what takes the texts
    while True:
        try:
            line = input(sign)
        except EOFError:
            click.echo(err=not sign)
            return
        except KeyboardInterrupt:
            line = ""
            click.echo(err=not sign)
        if line.strip():
            yield line


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Catch the first Ctrl-C; yield a function that tells whether it came. A second one interrupts as usual."""
    came = False
    before = signal.getsignal(signal.SIGINT)  # known before the handler can run

    def note(*_: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
