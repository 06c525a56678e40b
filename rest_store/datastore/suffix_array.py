"""The suffixes of a shard, sorted by libdivsufsort and packed by the kernel (FORMAT.md, section 3).

The sorter takes the bytes of the tokens file: symbols are big-endian and equally wide, so the order
of the bytes is that of the symbols, and positions inside a symbol are dropped. Shorter codes for
frequent symbols would sort in 0.8 of the time, and making them would take back most of it.

Limits: the sorter counts bytes in 32 bits, so a shard has at most 2^30 - 1 positions of two bytes,
or 715,827,882 of three. The 64-bit sorter is not used.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import (
    KEY_STRIDE,
    MAX_POSITIONS,
    TAIL_SIZE,
    entry_bits,
    token_width,
)
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.shard import ShardView

_MAX_BYTES = 2**31 - 1  # a signed int counts them
_MIB = 1 << 20


def sorted_suffixes(
    symbols: npt.NDArray[np.uint8], width: int, token_count: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Sort the suffixes of a shard.

    Args:
        symbols: the payload of a tokens file and its tail, uint8; must not change meanwhile, as a
            mapping might.
        width: bytes of a symbol, 2 or 3.
        token_count: symbols that are not separators.

    Returns:
        The keys and the packed entries of the suffixes file, the latter with the tail.

    Raises:
        IndexError: `token_count` is too small.
        MemoryError: there is less memory than `peak_bytes`.

    Thread-safe; releases the GIL. Deterministic, whatever the number of threads (OMP_NUM_THREADS).
    """
    bits = entry_bits((symbols.size - TAIL_SIZE) // width)
    keys, entries = _room(token_count, bits)
    if native_kernel().sort_suffixes(byte_sorter(), symbols, width, bits, keys, entries):
        raise MemoryError(f"libdivsufsort cannot sort {symbols.size - TAIL_SIZE} bytes of text")
    return keys, entries


def remaining_suffixes(
    view: ShardView,
    begins: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.uint64],
    symbols: npt.NDArray[np.uint8],
    token_count: int,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]] | None:
    """Return the suffixes of a shard without some of its documents. Nothing is sorted.

    Suffixes that are equal up to the end of their documents keep their order, which FORMAT.md
    defines by what follows. No answer depends on it.

    Args:
        view: the shard.
        begins: the first positions of removed documents, uint64, ascending.
        ends: the positions behind their separators, uint64.
        symbols: the symbols that remain, with a tail, uint8.
        token_count: tokens among them.

    Returns:
        As `sorted_suffixes`; None: the shard is damaged.

    Thread-safe; releases the GIL.
    """
    bits = entry_bits((symbols.size - TAIL_SIZE) // view.width)
    keys, entries = _room(token_count, bits)
    is_whole = native_kernel().remaining_suffixes(
        view, begins, ends, symbols, token_count, bits, keys, entries
    )
    return (keys, entries) if is_whole else None


def _room(token_count: int, bits: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Return arrays for the keys and the packed entries of so many tokens."""
    keys = np.empty(-(-token_count // KEY_STRIDE), np.uint64)
    entries = np.empty(8 * -(-token_count * bits // 64) + TAIL_SIZE, np.uint8)
    return keys, entries


@functools.cache
def byte_sorter() -> int:
    """Return the address of the C function that sorts, `divsufsort(text, order, size)`."""
    from pydivsufsort.dll import libdivsufsort  # of the [build] extra

    return int(ctypes.cast(libdivsufsort.divsufsort, ctypes.c_void_p).value or 0)


def peak_bytes(positions: int, vocabulary_size: int) -> int:
    """Return a bound on the bytes that sorting a shard takes, its symbols and the result included.

    Args:
        positions: tokens and separators of the shard.
        vocabulary_size: `V`, 1..16,777,215.
    """
    text = token_width(vocabulary_size) * positions
    order = 4 * text
    return (
        text + order + positions // 8 * entry_bits(positions) + 8 * positions // KEY_STRIDE + _MIB
    )


def max_positions(vocabulary_size: int) -> int:
    """Return the bound on positions of a shard: 2^30 - 1 if `V <= 65,535`, or 715,827,882."""
    return min(MAX_POSITIONS, _MAX_BYTES // token_width(vocabulary_size))
