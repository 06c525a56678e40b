"""The texts that the groups of a live datastore may learn of each other: `shared_after`.

A draft shows a group only tokens that it wrote itself, or that at least `shared_after` groups
wrote. The kernel enforces it (`rest_store/native/search/sharing.hpp`), in all queries.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.validation import check_int

MAX_SHARED_AFTER = 64  # groups; as in the kernel

# Without it, somebody could look for names of groups that have the same key.
_SECRET = secrets.token_bytes(16)


def parse_shared_after(value: Any) -> int | None:
    """Return the `shared_after` that a caller asks for.

    Raises:
        ArgumentError: `value` is neither None nor a whole number of 1..64.
    """
    if value is None:
        return None
    return check_int("shared_after", value, MAX_SHARED_AFTER, where="live datastore")


def group_keys(groups: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return the key of the group of each document; they mean something in this process alone."""
    return np.fromiter(map(group_key, groups), np.uint64)


def group_key(group: str) -> int:
    """Return the key of a group."""
    digest = hashlib.blake2b(group.encode(), digest_size=8, key=_SECRET).digest()
    return int.from_bytes(digest, "little")


def reader_key(group: str) -> int | None:
    """Return the key of a group that reads; None: a reader without a group has no documents.

    Documents without a group count as those of one group together, which nobody is in.
    """
    return group_key(group) if group else None
