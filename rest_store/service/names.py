"""Names in messages: of datastores, and of what sessions share."""

from __future__ import annotations

from typing import TypeGuard


def is_name(name: object) -> TypeGuard[str]:
    """Return whether `name` is text that a message can hold: not empty, and without lone surrogates."""
    if not isinstance(name, str):
        return False
    try:
        return bool(name.encode())
    except UnicodeEncodeError:  # as in the name of a directory that is not UTF-8
        return False
