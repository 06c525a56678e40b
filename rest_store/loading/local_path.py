"""Paths as the user writes them."""

from __future__ import annotations

import os
from pathlib import Path


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` expanded.

    Unlike `Path.expanduser`, leave `~name` as it is if there is no such user.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111
