"""The latest remembered outputs of some requests, for engines that search them on the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.live.namespace import Namespace

END = -1  # follows each output
MAX_TOKENS = 1 << 18
NO_TOKENS: npt.NDArray[np.int32] = np.zeros(0, np.int32)
_MAX_DOCUMENTS = 1 << 13
_FIRST_DOCUMENTS = 1 << 9  # that are read at first
_SECONDS = 5.0  # between two readings
_UNREAD = (-1, 0)


class LatestOutputs:
    """The latest remembered outputs as one array. Thread-safe.

    There are none if the outputs are in no datastore of this process. There are none either if a
    group is told of a text only once several groups have written it: queries alone can tell.

    Args:
        target: outputs are added to it; or None.
        clock: returns the time in seconds.
    """

    def __init__(self, target: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._target = target if isinstance(target, Namespace) else None
        self._clock = clock
        self._is_wanted = False
        self._tokens = NO_TOKENS
        # When it was read: the target's newest change, and how many groups share.
        self._state = _UNREAD
        self._read_at: float | None = None
        self._lock = threading.Lock()

    def tokens(self) -> npt.NDArray[np.int32]:
        """Return the documents as of the latest `refresh`, which reads them from now on.

        Returns:
            int32[n], at most `MAX_TOKENS`: each document followed by `END`, the latest last. The
            array is replaced and never changed.
        """
        self._is_wanted = True
        return self._tokens

    def refresh(self) -> None:
        """Read the documents anew if the target has changed; at most every five seconds.

        So a document that is deleted is gone five seconds later.

        Raises:
            RestStoreError: they cannot be read. There are none then.
        """
        if self._target is None or not self._is_wanted:
            return
        with self._lock:
            now = self._clock()
            if self._read_at is not None and now - self._read_at < _SECONDS:
                return
            self._read_at = now
            try:
                state = (self._target.newest_change, self._target.shared_after)
                if state != self._state:
                    self._tokens = _read(self._target)
                    self._state = state
            except BaseException:
                self._tokens = NO_TOKENS
                self._state = _UNREAD
                raise


def _read(target: Namespace) -> npt.NDArray[np.int32]:
    """Return the latest documents of a target."""
    if target.shared_after > 1:
        return NO_TOKENS
    count = _FIRST_DOCUMENTS
    while True:
        arrays: list[npt.NDArray[Any]] = []
        for document in target.documents(latest=count):
            arrays += [document.tokens, np.array([END])]
        size = sum(array.size for array in arrays)
        if size >= MAX_TOKENS or len(arrays) < 2 * count or count >= _MAX_DOCUMENTS:
            break
        count *= 4
    tokens: npt.NDArray[np.int32] = np.concatenate(
        [NO_TOKENS, *arrays], dtype=np.int32, casting="unsafe"
    )
    tokens = tokens[-MAX_TOKENS:].copy()
    tokens.flags.writeable = False
    return tokens
