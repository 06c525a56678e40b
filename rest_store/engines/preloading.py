"""Datastores are read once before the first request, so that no step waits for pages from a disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rest_store.datastore.memory import available_bytes
from rest_store.datastore.store import Store

_PAGE = 4096
_CHUNK = 1 << 24  # bytes between looks at the clock
_SECONDS = 10.0
_SHARE = 0.5  # of the available memory


def preload(stores: Sequence[Store], seconds: float = _SECONDS, *, clock: Callable[[], float] = time.monotonic) -> int:
    """Touch the pages that queries read: of each shard its keys, then its suffix array, then its tokens.

    A search reads the keys first, so they come first for all datastores. A disk reads pages in order many times as fast
    as steps would read them one by one.

    Args:
        stores: the datastores.
        seconds: for all together; what is left is read by the steps that need it.
        clock: seconds that pass.

    Returns:
        The bytes touched, at most half of the available memory.
    """
    views = [view for store in stores for view in store.snapshot.views]
    arrays = [view.keys for view in views] + [view.entries for view in views] + [view.symbols for view in views]
    available = available_bytes()
    most = None if available is None else int(_SHARE * available)
    end, touched = clock() + seconds, 0
    for array in arrays:
        for start in range(0, array.size, _CHUNK):
            if clock() >= end or (most is not None and touched >= most):
                return touched
            chunk = array[start : start + _CHUNK]
            chunk[::_PAGE].max()
            touched += chunk.size
    return touched
