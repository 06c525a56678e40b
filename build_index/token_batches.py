"""Batches of tokenized documents in a file: from the process that tokenizes to the one that writes shards.

A batch is 24 bytes of numbers, the 32-byte digests of its documents, their lengths in tokens as 8-byte numbers, and the
token ids of all of them, one after another. The bytes are those of the machine: the files live no longer than a task.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from build_index.duplicates import DIGEST_BYTES
from build_index.encoder import Tokens

_NUMBERS = struct.Struct("=QQQ")  # documents, token ids, bytes of each
_NO_TOKENS = -1


@dataclass(frozen=True)
class TokenBatch:
    """Documents, some of them tokenized.

    Attributes:
        digests: their digests, 32 bytes each.
        lengths: int64[n], in tokens; -1: a document was not tokenized.
        ids: token ids of all documents.
    """

    digests: bytes
    lengths: npt.NDArray[np.int64]
    ids: Tokens

    def tokens(self, places: Sequence[int]) -> list[Tokens]:
        """Return the tokens of the documents at `places`, which must have been tokenized."""
        ends = np.cumsum(np.maximum(self.lengths, 0))
        assert all(self.lengths[place] != _NO_TOKENS for place in places), "a document without tokens"
        return [self.ids[ends[place] - self.lengths[place] : ends[place]] for place in places]


class BatchWriter:
    """Writes batches to a new file; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, digests: bytes, is_tokenized: npt.NDArray[np.bool_], tokens: Sequence[Tokens]) -> None:
        """Append a batch.

        Args:
            digests: of its n documents.
            is_tokenized: bool[n].
            tokens: of those that are tokenized.
        """
        lengths = np.full(len(is_tokenized), _NO_TOKENS, dtype=np.int64)
        lengths[is_tokenized] = [len(ids) for ids in tokens]
        ids = np.concatenate(tokens) if tokens else np.empty(0, dtype=np.uint16)
        self._file.write(_NUMBERS.pack(len(lengths), len(ids), ids.itemsize))
        for data in (digests, lengths.tobytes(), ids.tobytes()):
            self._file.write(data)


def read_batches(path: Path) -> Iterator[TokenBatch]:
    """Yield the batches of a file in order."""
    with path.open("rb") as file:
        while numbers := file.read(_NUMBERS.size):
            documents, count, width = _NUMBERS.unpack(numbers)
            digests = file.read(documents * DIGEST_BYTES)
            lengths = np.frombuffer(file.read(documents * 8), dtype=np.int64)
            ids = np.frombuffer(file.read(count * width), dtype=np.dtype(f"u{width}"))
            yield TokenBatch(digests, lengths, ids)
