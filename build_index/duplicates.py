"""Exact duplicates: the set of documents already read, in at most 16 bytes of memory for each."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from build_index.documents import Document

DIGEST_BYTES = 32  # of a document
BYTES_A_DOCUMENT = 16  # 8 for the digest, as many while runs are merged
_KNOWN = 1 << 20  # digests in a table of KnownDocuments
_FENCE = 512  # digests between two fences of a run on disk: one page
Digests = npt.NDArray[np.uint64]


def content_digest(document: Document) -> bytes:
    """Return the SHA-256 of a document's content, 32 bytes; its origin does not count.

    A text and a conversation never have the same digest, nor do conversations that differ in roles or in the bounds of
    messages.
    """
    if not document.is_conversation:
        return hashlib.sha256(b"text\0" + document.text.encode("utf-8", "surrogatepass")).digest()
    sha256 = hashlib.sha256(b"chat\0")
    for part in (part for message in document.messages for part in message):
        data = part.encode("utf-8", "surrogatepass")
        sha256.update(len(data).to_bytes(8, "little") + data)
    return sha256.digest()


def digest_keys(digests: bytes) -> Digests:
    """Return the first 64 bits of each of some digests: uint64[n]."""
    return np.frombuffer(digests, dtype="<u8")[::4].astype(np.uint64)


class SeenDocuments:
    """A set of digests.

    It keeps 64 bits of each digest in sorted runs, each at least twice as long as the next. With n documents, the
    probability that two different ones count as equal is below n^2 / 2^65: 3e-4 for 100 million.

    Args:
        byte_budget: memory for runs; then they go to disk, where looking a digest up reads one page.
        directory: where; the files have no names and vanish with the process.

    Not thread-safe. Adding raises OSError if the disk is full.
    """

    def __init__(self, byte_budget: int, directory: Path) -> None:
        self._most_in_memory = max(1, byte_budget // BYTES_A_DOCUMENT)
        self.directory = directory
        self._runs: list[Digests] = []
        self._runs_on_disk: list[_RunOnDisk] = []

    def add(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Add documents.

        Args:
            digests: uint64[n], the first 8 bytes of each document's digest.

        Returns:
            bool[n]: whether each is new, neither in the set before nor earlier in `digests`.
        """
        distinct, first = np.unique(digests, return_index=True)
        seen = np.zeros(len(distinct), dtype=bool)
        for run in self._runs:
            places = np.searchsorted(run, distinct)
            places[places == len(run)] = 0
            seen |= run[places] == distinct
        for run_on_disk in self._runs_on_disk:
            unseen = np.flatnonzero(~seen)
            seen[unseen] = run_on_disk.holds(distinct[unseen])
        is_new = np.zeros(len(digests), dtype=bool)
        is_new[first[~seen]] = True
        self._keep(distinct[~seen])
        return is_new

    def _keep(self, run: Digests) -> None:
        if not len(run):
            return
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate(self._runs[-2:])
            del self._runs[-2:]
            merged.sort()
            self._runs.append(merged)
        if sum(map(len, self._runs)) > self._most_in_memory:
            everything = np.concatenate(self._runs)
            everything.sort()
            self._runs.clear()
            self._runs_on_disk.append(_RunOnDisk(everything, self.directory))

    def close(self) -> None:
        """Free memory and disk."""
        self._runs.clear()
        for run in self._runs_on_disk:
            run.file.close()
        self._runs_on_disk.clear()


class KnownDocuments:
    """Some of the documents that are stored already, for other processes on this machine, which need not tokenize them.

    A table of 2^20 digests in a file: one process adds to it, others read. A later document may take the place of an
    earlier one.

    Args:
        path: the file.
        create: whether to make it.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self._table: Digests = np.memmap(path, np.uint64, "w+" if create else "r", shape=(_KNOWN,))

    def add(self, digests: Digests) -> None:
        """Add documents by their digests uint64[n]."""
        self._table[digests % _KNOWN] = digests

    def holds(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Return bool[n]: whether each of the documents is certainly stored."""
        known: npt.NDArray[np.bool_] = (self._table[digests % _KNOWN] == digests) & (digests != 0)
        return known


class _RunOnDisk:
    """A sorted run in a file, and every 512th digest of it in memory."""

    def __init__(self, run: Digests, directory: Path) -> None:
        self._fences = run[::_FENCE].copy()
        self.file: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - open as long as the run exists
        try:
            self.file.write(run.data)
            self.file.flush()
        except BaseException:
            self.file.close()
            raise

    def holds(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Return bool[n]: whether each of the sorted `digests` uint64[n] is in the run."""
        is_present = np.zeros(len(digests), dtype=bool)
        pages = np.searchsorted(self._fences, digests, side="right") - 1
        for page in np.unique(pages[pages >= 0]):
            self.file.seek(int(page) * _FENCE * 8)
            block = np.frombuffer(self.file.read(_FENCE * 8), dtype=np.uint64)
            on_page = pages == page
            is_present[on_page] = np.isin(digests[on_page], block)
        return is_present
