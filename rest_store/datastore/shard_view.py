"""A shard as the kernel reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rest_store.datastore.mapped_file import MappedFile


@dataclass(frozen=True)
class ShardView:
    """The arrays of one shard, in mapped files or in memory.

    Attributes:
        symbols: uint8[w * P + 8], payload and tail of the tokens file.
        keys: uint8[8 * K], the keys of the suffixes file.
        entries: uint8, its packed entries and tail.
        position_count: positions P.
        entry_count: suffix array entries N.
        key_count: keys K.
        width: bytes of one symbol w, 2 or 3.
        bits: bits of one entry b.
        files: what is mapped; none of a shard in memory.
    """

    symbols: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.uint8]
    position_count: int
    entry_count: int
    key_count: int
    width: int
    bits: int
    files: tuple[MappedFile, ...] = ()

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""
        for file in self.files:
            file.require_readable()
