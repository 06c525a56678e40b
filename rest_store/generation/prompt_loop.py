"""What a user types at `rest-store generate`, or pipes into it."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

_SIGN = "> "


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
    if not (is_shown := sys.stdout.isatty()):  # `input` would write the sign to what takes the texts
        click.echo(_SIGN, nl=False, err=True)
    while True:
        try:
            line = input(_SIGN if is_shown else "")
        except EOFError:
            click.echo(err=not is_shown)
            return
        except KeyboardInterrupt:
            line = ""
            click.echo(err=not is_shown)
        if line.strip():
            yield line
        if not is_shown:
            click.echo(_SIGN, nl=False, err=True)


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
