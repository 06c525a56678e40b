"""Forks of this process: gRPC's threads do not survive one, so that a connection is of no use after it."""

from __future__ import annotations

import os

_forks = 0


def forks() -> int:
    """Return how many forks lie between the first process and this one."""
    return _forks


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)
