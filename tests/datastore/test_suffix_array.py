"""Builds sort and pack the suffixes that brute force gives, or plain numpy where there are many."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rest_store.datastore import suffix_array as module
from rest_store.datastore.header import (
    MAX_POSITIONS,
    TAIL_SIZE,
    entry_bits,
    separator_id,
    token_width,
)
from rest_store.datastore.shard import encode_symbols
from rest_store.datastore.suffix_array import max_positions, peak_bytes, sorted_suffixes
from tests.shared import strategies


def sort(symbols, vocabulary_size):
    """The keys and the suffix array of some symbols."""
    symbols = np.array(symbols, dtype=np.int64)
    payload = encode_symbols(symbols, vocabulary_size) + bytes(TAIL_SIZE)
    count = int(np.count_nonzero(symbols != separator_id(vocabulary_size)))
    keys, entries = sorted_suffixes(
        np.frombuffer(payload, np.uint8), token_width(vocabulary_size), count
    )
    order = strategies.gather_entries(entries, entry_bits(len(symbols)), np.arange(count))
    places = (order[::64] * token_width(vocabulary_size)).tolist()
    expected = [int.from_bytes(payload[place : place + 8], "big") for place in places]
    assert keys.tolist() == expected
    return order


@st.composite
def shards(draw):
    vocabulary_size = draw(st.sampled_from(strategies.VOCABULARY_SIZES))
    tokens = st.integers(0, vocabulary_size - 1)
    few = draw(st.lists(tokens, min_size=1, max_size=4))
    symbol = st.one_of(
        st.sampled_from(few), st.sampled_from([*few, separator_id(vocabulary_size)]), tokens
    )
    pieces = st.lists(symbol, min_size=1, max_size=30).flatmap(
        lambda piece: st.integers(1, 4).map(lambda times: piece * times)
    )
    return vocabulary_size, [
        symbol for piece in draw(st.lists(pieces, min_size=1, max_size=4)) for symbol in piece
    ]


@given(shards())
@example((1000, [7]))
@example((1000, [0xFFFF] * 5))
@example((1000, [7] * 1000 + [0xFFFF]))
@example((1000, [1, 2, 0xFFFF] * 300))
@example((1000, [*range(700, 0, -1), 0xFFFF] * 2))
def test_agrees_with_sorted_lists(shard):
    vocabulary_size, symbols = shard
    expected = strategies.sorted_suffixes(symbols, separator_id(vocabulary_size))
    assert sort(symbols, vocabulary_size).tolist() == expected


@pytest.mark.parametrize("vocabulary_size", [65_535, 70_000])
def test_many_symbols_are_in_order(vocabulary_size):
    """Neighbours are in order by their first symbols, or by the suffixes behind equal ones."""
    random = np.random.default_rng(1)
    separator = separator_id(vocabulary_size)
    every = random.permutation(vocabulary_size)
    frequent = np.minimum(random.zipf(1.2, 300_000), vocabulary_size - 1)
    symbols = np.concatenate(
        [every, [separator], frequent, [separator], every[::-1], frequent[:50_000], [separator]]
    )
    order = sort(symbols, vocabulary_size)
    assert np.array_equal(np.sort(order), np.flatnonzero(symbols != separator))
    rank = np.full(len(symbols) + 1, len(symbols))  # separators are greatest, wherever they are
    rank[order] = np.arange(len(order))
    left = order[:-1]
    right = order[1:]
    first = symbols[left]
    second = symbols[right]
    behind = (rank[left + 1] < rank[right + 1]) | (symbols[left + 1] == separator) & (
        symbols[right + 1] == separator
    )
    assert np.all((first < second) | (first == second) & behind)


@pytest.mark.parametrize("vocabulary_size", [1, 65_535, 65_536, 2**24 - 1])
def test_the_most_positions_fit_the_sorter(vocabulary_size):
    positions = max_positions(vocabulary_size)
    width = token_width(vocabulary_size)
    assert positions <= MAX_POSITIONS
    assert positions * width < 2**31 <= (positions + 1) * width


PEAK = """
import sys
from pathlib import Path
import numpy as np
from rest_store.datastore.suffix_array import byte_sorter, sorted_suffixes
from rest_store.datastore.kernel import native_kernel

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(field))
    return int(line.split()[1]) * 1024

width = int(sys.argv[1])
byte_sorter(), native_kernel()
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
symbols = np.fromfile(sys.argv[2], np.uint8)
sorted_suffixes(symbols, width, (symbols.size - 8) // width)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(("vocabulary_size", "distinct"), [(65_535, 65_535), (16_777_215, 300_000)])
def test_peak_stays_within_the_bound_which_is_not_idle(tmp_path, vocabulary_size, distinct):
    count = 4_000_000
    symbols = np.random.default_rng(4).integers(0, distinct, count)
    (tmp_path / "symbols").write_bytes(encode_symbols(symbols, vocabulary_size) + bytes(TAIL_SIZE))
    command = [
        sys.executable,
        "-c",
        PEAK,
        str(token_width(vocabulary_size)),
        str(tmp_path / "symbols"),
    ]
    root = Path(module.__file__).parents[1]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout)
    assert 0.9 * peak_bytes(count, vocabulary_size) < peak <= peak_bytes(count, vocabulary_size)
