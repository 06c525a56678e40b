"""Paths and addresses as the user writes them."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` expanded; unlike `Path.expanduser`, leave `~name` as it is if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def scheme_of(path: str) -> str | None:
    """Return the scheme of an address such as `s3://bucket/key`, as it is written; None: a path."""
    match = _SCHEME.match(path)
    return match[1] if match else None
