"""Exact duplicates: the set of documents already read, in at most 16 bytes of memory for each."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from build_index.documents import Document

BYTES_A_DOCUMENT = 16  # 8 for the digest, as many while runs are merged
Digests = npt.NDArray[np.uint64]


def content_digest(document: Document) -> bytes:
    """Return the SHA-256 of a document's content, 32 bytes; its origin does not count.

    A text and a conversation never have the same digest, nor do conversations that differ in roles
    or in the bounds of messages.
    """
    if not document.is_conversation:
        return hashlib.sha256(b"text\0" + document.text.encode("utf-8", "surrogatepass")).digest()
    sha256 = hashlib.sha256(b"chat\0")
    for message in document.messages:
        for text in message:
            data = text.encode("utf-8", "surrogatepass")
            sha256.update(len(data).to_bytes(8, "little") + data)
    return sha256.digest()


def digest_keys(digests: bytes) -> Digests:
    """Return the first 64 bits of each of some digests: uint64[n]."""
    return np.frombuffer(digests, dtype="<u8")[::4].astype(np.uint64)


class SeenDocuments:
    """A set of digests.

    It keeps 64 bits of each digest in sorted runs, each at least twice as long as the next. With n
    documents, the probability that two different ones count as equal is below n^2 / 2^65: 3e-4 for
    100 million.

    Args:
        byte_budget: memory for runs; further runs go to disk, where the search for a digest reads a
            few pages.
        directory: for runs on disk; the files have no names and vanish with the process.

    Not thread-safe. Adding raises OSError if the disk is full.
    """

    def __init__(self, byte_budget: int, directory: Path) -> None:
        self._max_in_memory = max(1, byte_budget // BYTES_A_DOCUMENT)
        self.directory = directory
        self._runs: list[Digests] = []
        self._runs_on_disk: list[Digests] = []

    def add(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Add documents.

        Args:
            digests: uint64[n], the first 8 bytes of each document's digest.

        Returns:
            bool[n]: whether each is new, neither in the set before nor earlier in `digests`.
        """
        distinct, first = np.unique(digests, return_index=True)
        seen = np.zeros(len(distinct), dtype=bool)
        for run in (*self._runs, *self._runs_on_disk):
            indices = np.searchsorted(run, distinct)
            indices[indices == len(run)] = 0
            seen |= run[indices] == distinct
        is_new = np.zeros(len(digests), dtype=bool)
        is_new[first[~seen]] = True
        self._keep(distinct[~seen])
        return is_new

    def _keep(self, run: Digests) -> None:
        if not len(run):
            return
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            self._runs[-2:] = [_merged(self._runs[-2:])]
        if sum(map(len, self._runs)) > self._max_in_memory:
            with tempfile.TemporaryFile(dir=self.directory) as file:
                file.write(_merged(self._runs).data)
                file.flush()
                self._runs_on_disk.append(np.memmap(file, np.uint64, "r"))
            self._runs.clear()


def _merged(runs: list[Digests]) -> Digests:
    merged = np.concatenate(runs)
    merged.sort()
    return merged
