"""What a client is made with, checked before anything is asked: arguments that can never work are refused by name."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from rest_store.errors import LimitError, TargetError, describe
from rest_store.service.channel import target_of

_LONGEST = 1e6  # seconds


def targets_of(targets: str | Sequence[str]) -> list[str]:
    """Return the addresses as gRPC takes them; raise TargetError unless there is one, and each is one."""
    several = targets if isinstance(targets, list | tuple) else [targets]
    if not several:
        raise TargetError(describe("client", "targets", "empty", "at least one address"))
    return [target_of(target) for target in several]


def names_of(datastore: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the datastores to ask, none for None; raise TargetError unless they are distinct names."""
    if datastore is None:
        return ()
    several = [datastore] if isinstance(datastore, str) else datastore
    try:
        names = tuple(several)
    except TypeError:
        names = ()
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise TargetError(describe("client", "datastore", repr(datastore), "one or more names, each once, or None"))
    return names


def at_least(least: int, name: str, value: int) -> int:
    """Return a whole number; raise LimitError unless it is one, `least` or more."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise LimitError(describe("client", name, repr(value), f"a whole number, {least} or more"))
    return number


def pause_of(pause: float) -> float:
    """Return the seconds of a pause; raise LimitError unless they are a number, 0 or more."""
    if not isinstance(pause, int | float) or isinstance(pause, bool) or not 0 <= pause < _LONGEST:
        raise LimitError(describe("client", "pause", repr(pause), f"seconds, 0 or more and less than {_LONGEST:.0f}"))
    return float(pause)
