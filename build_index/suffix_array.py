"""The suffix array of a shard: its symbols packed into as few bytes as possible, then sorted by libdivsufsort.

libdivsufsort sorts bytes. Its time and memory grow with their number: each byte of text takes five bytes, one for
itself and four for its place. So ids get codewords of one to three bytes, shorter for frequent ids and in the order of
the ids (`SymbolCode`). After sorting, the place of a codeword's first byte is turned back into a position through a map
in the memory of the text (`_write_locator`), and other places are dropped.

Measured on Python source with the tokenizers of SmolLM2 and Mistral (Tekken), one thread, against the big-endian bytes
of the tokens file: 12.8 seconds for 15.7 (97.9M symbols of 1.47 bytes instead of two), and 13.4 for 17.1 (90.5M of 1.60
instead of three). A second thread changes little, since only one stage of libdivsufsort is parallel.

Limits: the sorter counts bytes in 32 bits, so the text may have 2^31 - 1. At worst, with all ids equally frequent, a
symbol takes two bytes for `V <= 65,535` and three above: 2^30 - 1 and 715,827,882 positions are always possible, and
FORMAT.md's 2^30 if symbols take less than two bytes on average. The 64-bit sorter is not used.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import MAX_POSITIONS, token_width
from rest_store.errors import BuildError, describe

Symbols = npt.NDArray[np.uint8]

MAX_TEXT_BYTES = 2**31 - 1  # the 32-bit sorter counts bytes in a signed int
BLOCK = 2**14  # symbols or ranks at once, a multiple of _STRIDE; larger blocks take fresh pages from malloc
_STRIDE = 128  # text bytes for each anchor of the locator: what seven bits can count
_START = 0x80  # locator bit: a codeword starts here


def suffix_array(symbols: Symbols, *, vocabulary_size: int) -> npt.NDArray[np.int32]:
    """Sort the suffixes of a shard (FORMAT.md, section 3).

    Args:
        symbols: tokens and separators in order, big-endian bytes, uint8 of shape `(P, w)`: the payload of a tokens
            file. May be a read-only mapping; it is read in blocks, three times. `0 <= P <= 2^30`.
        vocabulary_size: `V`, 1..16,777,215. Every symbol is below `V`, or the separator `2^(8w) - 1`.

    Returns:
        int32 of shape `(N,)`, a new array: the positions of all tokens in ascending order of the suffixes that start
        there; separators are greatest, and a proper prefix comes first.

    Raises:
        BuildError: `symbols` has another type or shape, or more than 2^30 symbols, or holds an id that is neither
            below `V` nor the separator; or the packed text exceeds 2^31 - 1 bytes (never below `max_positions`).
        MemoryError: there is less memory than `peak_bytes`.

    Thread-safe; releases the GIL while it sorts. Deterministic, whatever the number of threads (OMP_NUM_THREADS).
    """
    width = _token_width(vocabulary_size)
    if symbols.dtype != np.uint8 or symbols.ndim != 2 or symbols.shape[1] != width:
        problem, expected = f"{symbols.dtype} of shape {symbols.shape}", f"uint8 of shape (P, {width})"
        raise BuildError(describe("suffix array", "the type of symbols", problem, expected))
    if len(symbols) > MAX_POSITIONS:
        raise BuildError(describe("suffix array", "the number of symbols", len(symbols), f"at most {MAX_POSITIONS}"))

    counts = np.zeros(vocabulary_size + 1, dtype=np.int64)
    for ids in _blocks(symbols, vocabulary_size, max(BLOCK, vocabulary_size)):
        counts += np.bincount(ids, minlength=vocabulary_size + 1)
    code = SymbolCode(counts)
    if code.text_bytes > MAX_TEXT_BYTES:
        size, expected = f"{code.text_bytes} bytes", f"at most {MAX_TEXT_BYTES}"
        raise BuildError(describe("suffix array", "the packed text", size, expected))

    # Whole strides, and two more bytes, which `_encode` writes after the last codeword.
    text = np.empty((code.text_bytes + 2 + _STRIDE - 1) // _STRIDE * _STRIDE, dtype=np.uint8)
    _encode(symbols, code, text)
    order = np.empty(code.text_bytes, dtype=np.int32)
    sort_bytes(text[: code.text_bytes], order)
    anchors = _write_locator(symbols, code, text)
    _keep_symbols(order, text, anchors, len(symbols) - int(counts[vocabulary_size]))
    return order


def sort_bytes(text: npt.NDArray[np.uint8], order: npt.NDArray[np.int32]) -> None:
    """Fill `order` int32[n] with the places of all bytes of `text` uint8[n] in the order of the suffixes there.

    Raises:
        MemoryError: there is not enough.

    Thread-safe; releases the GIL.
    """
    from pydivsufsort.dll import libdivsufsort  # of the [build] extra

    status = libdivsufsort.divsufsort(
        ctypes.c_void_p(text.ctypes.data), ctypes.c_void_p(order.ctypes.data), ctypes.c_int32(len(order))
    )
    if status:
        raise MemoryError(f"suffix array: libdivsufsort returned {status} for {len(order)} bytes of text")


@functools.cache
def byte_sorter() -> int:
    """Return the address of the C function that `sort_bytes` calls, `divsufsort(text, order, size)`."""
    from pydivsufsort.dll import libdivsufsort  # of the [build] extra

    return int(ctypes.cast(libdivsufsort.divsufsort, ctypes.c_void_p).value or 0)


def peak_bytes(position_count: int, vocabulary_size: int) -> int:
    """Return a bound on the bytes that `suffix_array` allocates, its result included and `symbols` not.

    The bound holds for any symbols: it counts two bytes of text a symbol where 65,536 codewords suffice and three
    otherwise. Real text takes less (see above).

    Args:
        position_count: `P`, symbols of the shard.
        vocabulary_size: `V`, 1..16,777,215.
    """
    text_bytes = position_count * _token_width(vocabulary_size)
    tables = 192 * (vocabulary_size + 1) + 2**24  # counts, the fitting of the code, blocks and huge-page rounding
    return -(-text_bytes * 41 // 8) + tables  # text, four-byte order, anchors


def max_positions(vocabulary_size: int) -> int:
    """Return the most positions that can always be sorted: 2^30 - 1 if `V <= 65,535`, otherwise 715,827,882."""
    return min(MAX_POSITIONS, MAX_TEXT_BYTES // _token_width(vocabulary_size))


def _token_width(vocabulary_size: int) -> int:
    """Return `w` of FORMAT.md, section 1, in bytes: also the most that a codeword takes on average."""
    if not 1 <= vocabulary_size <= 0xFFFFFF:
        raise BuildError(describe("suffix array", "the vocabulary size", vocabulary_size, "1..16777215"))
    return token_width(vocabulary_size)


def _blocks(symbols: Symbols, vocabulary_size: int, size: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the symbols, `size` at once, as ids, the separator as `vocabulary_size`: just above the tokens."""
    separator = 2 ** (8 * _token_width(vocabulary_size)) - 1
    for start in range(0, len(symbols), size):
        block = symbols[start : start + size]
        ids = np.zeros(len(block), dtype=np.intp)
        for column in block.T:
            ids = ids << 8 | column
        beyond = np.flatnonzero(ids >= vocabulary_size)
        if len(beyond):
            invalid = beyond[ids[beyond] != separator]
            if len(invalid):
                what, symbol = f"the symbol at position {start + invalid[0]}", ids[invalid[0]]
                raise BuildError(describe("suffix array", what, symbol, f"less than {vocabulary_size} or {separator}"))
            ids[beyond] = vocabulary_size
        yield ids


class SymbolCode:
    """An order-preserving, prefix-free code of one to three bytes a symbol, short for frequent symbols.

    The first byte divides the occurring symbols, in numeric order, into at most 256 runs; a run of more than one is
    divided by the second byte, and so on. No codeword is a prefix of another, and codewords are ordered as symbols are,
    so encoded suffixes are ordered as the suffixes, ends included.

    Attributes:
        lengths: uint8 of shape `(V + 1,)`, bytes of each symbol's codeword, 0 if it does not occur.
        columns: uint8 of shape `(longest, V + 1)`, the bytes themselves.
        text_bytes: bytes of all symbols, encoded.
    """

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        """Fit the code to `counts`, int64 of shape `(V + 1,)`: how often each symbol occurs, the separator last."""
        present = np.flatnonzero(counts)
        self.lengths = np.zeros(len(counts), dtype=np.uint8)
        self.columns = np.zeros((3, len(counts)), dtype=np.uint8)
        self._divide(present, counts[present], depth=0)
        flat = 2 if len(present) <= 2**16 else 3
        if self._total(counts) > flat * int(counts.sum()):
            self.lengths[present] = flat
            for depth in range(flat):
                self.columns[depth, present] = np.arange(len(present)) >> 8 * (flat - 1 - depth) & 0xFF
        self.columns = self.columns[: self.lengths.max(initial=0)]
        self.text_bytes = self._total(counts)

    def _total(self, counts: npt.NDArray[np.int64]) -> int:
        return int((counts * self.lengths).sum())

    def _divide(self, ids: npt.NDArray[np.intp], weights: npt.NDArray[np.int64], depth: int) -> None:
        for byte, (start, stop) in enumerate(pairwise(_cuts(weights, deepest=depth == 1))):
            self.columns[depth, ids[start:stop]] = byte
            self.lengths[ids[start:stop]] = depth + 1
            if stop - start > 1:
                self._divide(ids[start:stop], weights[start:stop], depth + 1)


def _cuts(weights: npt.NDArray[np.int64], *, deepest: bool) -> list[int]:
    """Divide a sequence of symbols into at most 256 runs, so that its text becomes short.

    A symbol heavier than a limit is a run of its own, which takes one byte. The others are gathered in runs of up to
    256, which take two, or longer ones that weigh no more than the limit, which take three, or two for their heaviest.
    The limit is the lowest, by bisection, that leaves 256 runs. With SmolLM2's tokenizer, the text of 90 million
    symbols is within 0.3 % of that of the best division, a shortest path.

    Args:
        weights: int64 of shape `(m,)`, how often each symbol occurs, in numeric order; all positive.
        deepest: whether only one more byte may follow; then `m <= 65,536`.

    Returns:
        The bounds of the runs, from 0 to `m`.
    """
    if len(weights) <= 256:
        return list(range(len(weights) + 1))
    before = np.concatenate([[0], np.cumsum(weights)])
    longest = 256 if deepest else 2**16
    low, high = 0, int(before[-1])
    while high - low > max(1, low // 64):
        limit = (low + high) // 2
        if len(_runs(weights, before, limit, longest)) - 1 <= 256:
            high = limit
        else:
            low = limit
    return _runs(weights, before, high, longest)


def _runs(weights: npt.NDArray[np.int64], before: npt.NDArray[np.int64], limit: int, longest: int) -> list[int]:
    """Return the bounds of the runs of at most `longest` symbols at a limit (`_cuts`), or the first 257 of them.

    `before`, int64 of shape `(m + 1,)`, is the weight of the symbols before each place.
    """
    alone = np.append(np.flatnonzero(weights > limit), len(weights))
    bounds = [0]
    while bounds[-1] < len(weights) and len(bounds) <= 257:
        start = bounds[-1]
        heavy = int(alone[np.searchsorted(alone, start)])
        light = int(np.searchsorted(before, before[start] + limit, side="right")) - 1
        bounds.append(start + 1 if heavy == start else min(heavy, max(start + 256, light), start + longest))
    return bounds


def _codeword_starts(symbols: Symbols, code: SymbolCode) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Yield the symbols in blocks as `(ids, offsets)`, both of shape `(block,)`: where in the text each one starts."""
    done = 0
    for ids in _blocks(symbols, len(code.lengths) - 1, BLOCK):
        lengths = code.lengths.take(ids)
        offsets = np.cumsum(lengths, dtype=np.intp)
        offsets += done
        done = int(offsets[-1])
        offsets -= lengths
        yield ids, offsets


def _encode(symbols: Symbols, code: SymbolCode, text: npt.NDArray[np.uint8]) -> None:
    """Write the codewords of all symbols one after another; up to two bytes after the last are written as well."""
    for ids, offsets in _codeword_starts(symbols, code):
        # Last bytes first: what a short codeword writes too far is overwritten by the codewords after it, whose bytes
        # at the same place come earlier in them.
        for depth in reversed(range(len(code.columns))):
            text[offsets + depth] = code.columns[depth].take(ids)


def _write_locator(symbols: Symbols, code: SymbolCode, text: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """Turn the text, sorted and no longer needed, into a map from text offsets to positions.

    Where a codeword starts, its byte becomes `_START | position mod 128`, all others 0. The rest of the position comes
    from an anchor, the position of the first codeword that starts in a stride of 128 bytes: the position is at most
    127 further. A stride holds 42 starts at least, so anchors follow from the low bits of each other.

    Returns:
        The anchors, int32 of shape `(len(text) / 128,)`.
    """
    text[:] = 0
    low_bits = (np.arange(BLOCK) % _STRIDE | _START).astype(np.uint8)
    for ids, offsets in _codeword_starts(symbols, code):
        text[offsets] = low_bits[: len(ids)]
    first, second, third = text.reshape(-1, _STRIDE)[:, :3].T
    low_bits = np.where(first, first, np.where(second, second, third))
    anchors = np.zeros(len(low_bits), dtype=np.int32)
    np.cumsum((low_bits[1:] - low_bits[:-1] - 1) % _STRIDE + 1, out=anchors[1:])
    return anchors


def _keep_symbols(
    order: npt.NDArray[np.int32], locator: npt.NDArray[np.uint8], anchors: npt.NDArray[np.int32], token_count: int
) -> None:
    """Shrink the sorted text offsets, in place, to the positions of tokens: of the codeword starts the first ones."""
    kept = 0
    for start in range(0, len(order), BLOCK):
        offsets = order[start : start + BLOCK]
        marks = locator.take(offsets)
        starts = np.flatnonzero(marks & _START)
        nearest = anchors.take(offsets.take(starts) >> _STRIDE.bit_length() - 1)
        positions = nearest + (marks.take(starts) - nearest & _STRIDE - 1)
        positions = positions[: token_count - kept]  # separators come last
        order[kept : kept + len(positions)] = positions
        kept += len(positions)
    order.resize(token_count, refcheck=False)
