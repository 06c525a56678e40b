"""Paths and addresses as the user writes them."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` expanded; unlike `Path.expanduser`, leave `~name` as it is if there is no such user."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def scheme_of(path: str) -> str | None:
    """Return the scheme of an address such as `s3://bucket/key`, as it is written; None: a path."""
    match = _SCHEME.match(path)
    return match[1] if match else None


def is_directory(path: str) -> bool:
    """Whether there is a directory; False for a path that the system refuses, such as one that is too long.

    An address is not looked up: it is one of a directory if its last name has a wildcard or no ending.
    """
    if scheme_of(path) is not None:
        name = path.rpartition("/")[2]
        return "*" in name or not PurePosixPath(name).suffix
    try:
        return local_path(path).is_dir()
    except OSError:
        return False
