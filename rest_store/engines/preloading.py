"""Datastores are read once before the first request, so that no step waits for pages from a disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.memory import available_bytes
from rest_store.datastore.shard import decode_symbols
from rest_store.datastore.shard_view import ShardView
from rest_store.datastore.store import Store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession

_PAGE = 4096
_CHUNK = 1 << 24  # bytes between looks at the clock
_SECONDS = 10.0
_SHARE = 0.5  # of the available memory
_TEXTS, _TOKENS = 64, 64  # drafted from of each shard, and of each text


def preload(
    stores: Sequence[Store], seconds: float = _SECONDS, *, clock: Callable[[], float] = time.monotonic
) -> tuple[int, int]:
    """Touch the pages that queries read: of each shard its keys, then its suffix array, then its tokens.

    A search reads the keys first, so they come first for all datastores. A disk reads pages in order many times as fast
    as steps would read them one by one. Then a few texts of each shard are drafted from, which fills what the kernel
    keeps of searches.

    Args:
        stores: the datastores.
        seconds: for all together; what is left is read by the steps that need it.
        clock: seconds that pass.

    Returns:
        The bytes touched, at most half of the available memory, and those of all datastores.
    """
    arrays = list(_arrays(stores))
    total = sum(array.size for array in arrays)
    available = available_bytes()
    most = total if available is None else int(_SHARE * available)
    end, touched = clock() + seconds, 0
    for array in arrays:
        for start in range(0, array.size, _CHUNK):
            if touched >= most or clock() >= end:
                return touched, total
            chunk = array[start : start + _CHUNK]
            chunk[::_PAGE].max()
            touched += chunk.size
    calibration = Calibration.default()
    for store in stores:
        for text in _texts(store):
            if clock() >= end:
                return touched, total
            with DraftSession([store], text, calibration=calibration, learn=False) as session:
                session.draft()
    return touched, total


def _arrays(stores: Sequence[Store]) -> Iterator[npt.NDArray[np.uint8]]:
    views = [view for store in stores for view in store.snapshot.views]
    yield from (view.keys for view in views)
    yield from (view.entries for view in views)
    yield from (view.symbols for view in views)


def _texts(store: Store) -> Iterator[npt.NDArray[np.int32]]:
    """Yield pieces of the documents, spread over the shards, without separators."""
    for view in store.snapshot.views:
        for start in np.linspace(0, view.position_count, _TEXTS, endpoint=False, dtype=np.int64).tolist():
            symbols = _symbols(view, start)
            yield symbols[symbols < store.vocabulary_size].astype(np.int32)


def _symbols(view: ShardView, start: int) -> npt.NDArray[np.unsignedinteger[Any]]:
    end = min(start + _TOKENS, view.position_count)
    return decode_symbols(view.symbols[view.width * start : view.width * end], view.width)
