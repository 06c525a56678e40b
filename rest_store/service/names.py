"""Names in messages and options of gRPC: of datastores, of what sessions share, of hosts."""

from __future__ import annotations

from typing import TypeGuard


def is_name(name: object) -> TypeGuard[str]:
    """Return whether `name` is text that can be sent: not empty, and without lone surrogates."""
    if not isinstance(name, str):
        return False
    try:
        return bool(name.encode())
    except UnicodeEncodeError:  # as in the name of a directory that is not UTF-8
        return False
