"""What commands say on a terminal while they work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from rest_store.datastore.render import one_line


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show on a terminal that something is loaded, and in the end the seconds that it took.

    Args:
        what: such as "tokenizer SmolLM2.gguf".
    """
    if not sys.stderr.isatty():
        yield
        return
    began = time.perf_counter()
    click.echo(f"loading {one_line(what)} ...", nl=False, err=True)
    try:
        yield
    except BaseException:
        click.echo(err=True)
        raise
    click.echo(f" {time.perf_counter() - began:.1f} s", err=True)
