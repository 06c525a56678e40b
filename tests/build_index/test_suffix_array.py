import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_index import suffix_array as module
from build_index.suffix_array import MAX_POSITIONS, max_positions, peak_bytes, suffix_array
from rest_store.datastore.shard import encode_symbols
from rest_store.errors import BuildError

SEPARATOR = {2: 0xFFFF, 3: 0xFFFFFF}


def width_of(vocabulary_size):
    return 2 if vocabulary_size <= 0xFFFF else 3


def brute_force(symbols, vocabulary_size):
    """Sort Python lists: numeric by symbol, the separator greatest by its value, a proper prefix first."""
    separator = SEPARATOR[width_of(vocabulary_size)]
    tokens = [position for position, symbol in enumerate(symbols) if symbol != separator]
    return sorted(tokens, key=lambda position: symbols[position:])


def payload_rows(symbols, vocabulary_size):
    """Symbols as the payload of a tokens file, a row of bytes each."""
    payload = np.frombuffer(encode_symbols(symbols, vocabulary_size), np.uint8)
    return payload.reshape(-1, width_of(vocabulary_size))


def sorted_by_us(symbols, vocabulary_size):
    return suffix_array(payload_rows(symbols, vocabulary_size), vocabulary_size=vocabulary_size)


def check(symbols, vocabulary_size):
    result = sorted_by_us(np.array(symbols, dtype=np.int64), vocabulary_size)
    assert result.dtype == np.int32
    assert result.tolist() == brute_force(list(symbols), vocabulary_size)


def check_neighbours(symbols, result, vocabulary_size):
    """Check what `brute_force` would take too long for: each token's position once, and neighbours in order.

    In order means: the first symbols differ, or are equal and the suffixes behind them are in order, known by rank. A
    suffix behind that starts at a separator has a rank too once separators are sorted as tokens are.
    """
    separator = SEPARATOR[width_of(vocabulary_size)]
    assert np.array_equal(np.sort(result), np.flatnonzero(symbols != separator))
    count = len(symbols)
    no_separators = np.where(symbols == separator, vocabulary_size, symbols).astype(np.uint32)
    everything = sorted_by_us(no_separators, vocabulary_size + 2)
    assert np.array_equal(everything[: len(result)], result)
    rank = np.full(count + 1, -1)
    rank[everything] = np.arange(count)
    left, right = everything[:-1], everything[1:]
    first, second = symbols[left], symbols[right]
    assert np.all((first < second) | ((first == second) & (rank[left + 1] < rank[right + 1])))


@st.composite
def shards(draw):
    vocabulary_size = draw(
        st.sampled_from([1, 2, 3, 255, 256, 257, 49_152, 65_534, 65_535, 65_536, 131_072, 2**24 - 1])
    )
    separator = SEPARATOR[width_of(vocabulary_size)]
    tokens = st.integers(0, vocabulary_size - 1)
    few = draw(st.lists(tokens, min_size=1, max_size=4))
    symbol = st.one_of(st.sampled_from(few), st.sampled_from([*few, separator]), tokens)
    pieces = st.lists(symbol, min_size=1, max_size=30).flatmap(
        lambda piece: st.integers(1, 4).map(lambda times: piece * times)
    )
    return vocabulary_size, [symbol for piece in draw(st.lists(pieces, max_size=4)) for symbol in piece]


@settings(deadline=None)
@given(shards())
def test_agrees_with_sorted_lists(shard):
    vocabulary_size, symbols = shard
    check(symbols, vocabulary_size)


@settings(deadline=None)
@given(st.integers(2, 600), st.integers(0, 2**32 - 1), st.sampled_from([2, 3]))
def test_many_distinct_symbols(distinct, seed, width):
    """More than 256 distinct symbols, so that codewords of one and of two bytes stand side by side."""
    random = np.random.default_rng(seed)
    vocabulary_size = {2: 65_535, 3: 151_936}[width]
    ids = random.choice(vocabulary_size, distinct, replace=False)
    picks = np.minimum(random.zipf(1.3, 900) - 1, distinct - 1)
    check([*ids[picks].tolist(), *ids.tolist(), SEPARATOR[width]], vocabulary_size)


@pytest.mark.parametrize(
    "symbols",
    [
        [],
        [7],
        [0xFFFF],
        [0xFFFF] * 5,
        [7, 0xFFFF],
        [7] * 1000,
        [7] * 1000 + [0xFFFF],
        [1, 2] * 500,
        [2, 1] * 500,
        [1, 2, 0xFFFF] * 300,
        list(range(700)) * 2,
        [*range(700, 0, -1), 0xFFFF] * 2,
    ],
    ids=lambda symbols: f"{symbols[:3]}x{len(symbols)}",
)
def test_shapes_of_repetition(symbols):
    check(symbols, 1000)


@pytest.mark.parametrize("block", [128, 256])
def test_blocks_join(monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    random = np.random.default_rng(block)
    for length in (127, 128, 129, 255, 256, 257, 1000, 5000):
        symbols = np.minimum(random.zipf(1.2, length), 65_535).astype(np.uint16)
        check(symbols.tolist(), 65_535)


def test_more_than_65535_distinct_ids():
    random = np.random.default_rng(1)
    every = random.permutation(70_000)
    frequent = np.minimum(random.zipf(1.2, 300_000), 69_999)
    symbols = np.concatenate([every, [0xFFFFFF], frequent, [0xFFFFFF], every[::-1], frequent[:50_000], [0xFFFFFF]])
    symbols = symbols.astype(np.uint32)
    counts = np.bincount(np.minimum(symbols, 70_000), minlength=70_001)
    code = module.SymbolCode(counts)
    assert set(code.lengths.tolist()) == {1, 2, 3}
    check_neighbours(symbols, sorted_by_us(symbols, 70_000), 70_000)


def test_all_65536_symbols_take_two_bytes():
    symbols = np.random.default_rng(2).permutation(65_536).astype(np.uint16)
    code = module.SymbolCode(np.ones(65_536, dtype=np.int64))
    assert code.text_bytes == 2 * 65_536
    check_neighbours(symbols, sorted_by_us(symbols, 65_535), 65_535)


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(1, 9), st.integers(1, 10**6)), min_size=1, max_size=1500))
def test_code_is_ordered_prefix_free_and_short(weights):
    counts = np.array([0, *weights, 0, *weights[::-1], 0, 0, 1])
    code = module.SymbolCode(counts)
    present = np.flatnonzero(counts)
    assert np.array_equal(np.flatnonzero(code.lengths), present)
    codewords = [bytes(code.columns[: code.lengths[symbol], symbol]) for symbol in present]
    assert codewords == sorted(set(codewords))
    assert not any(after.startswith(before) for before, after in pairwise(codewords))
    assert code.text_bytes == sum(counts[symbol] * len(word) for symbol, word in zip(present, codewords, strict=True))
    assert code.text_bytes <= 2 * counts.sum()


@pytest.mark.parametrize(("vocabulary_size", "width"), [(300, 2), (70_000, 3)])
def test_reads_the_payload_of_a_tokens_file(tmp_path, vocabulary_size, width):
    random = np.random.default_rng(width)
    symbols = random.integers(0, vocabulary_size, 2000)
    symbols[::50] = SEPARATOR[width]
    expected = brute_force(symbols.tolist(), vocabulary_size)
    path = tmp_path / "shard-00000.tokens"
    payload = symbols.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - width :]
    path.write_bytes(bytes(256) + payload.tobytes() + bytes(8))
    rows = np.memmap(path, dtype=np.uint8, mode="r", offset=256, shape=(2000, width))
    assert suffix_array(rows, vocabulary_size=vocabulary_size).tolist() == expected


@pytest.mark.parametrize(
    ("symbols", "vocabulary_size", "message"),
    [
        (np.array([1, 2], dtype=np.uint16), 4, "the type of symbols is uint16 of shape (2,), expected"),
        (np.zeros((4, 3), dtype=np.uint8), 4, "the type of symbols is uint8 of shape (4, 3), expected"),
        (np.array([[0, 1], [0, 4]], dtype=np.uint8), 4, "the symbol at position 1 is 4, expected less than 4 or 65535"),
        (np.zeros((1, 2), dtype=np.uint8), 0, "the vocabulary size is 0, expected 1..16777215"),
        (np.zeros((1, 3), dtype=np.uint8), 2**24, "the vocabulary size is 16777216, expected"),
        (np.broadcast_to(np.uint8(0), (2**30 + 1, 2)), 4, "the number of symbols is 1073741825, expected at most"),
    ],
)
def test_refuses(symbols, vocabulary_size, message):
    with pytest.raises(BuildError, match=re.escape(f"suffix array: {message}")):
        suffix_array(symbols, vocabulary_size=vocabulary_size)


def test_refuses_a_text_beyond_the_sorter(monkeypatch):
    monkeypatch.setattr(module, "MAX_TEXT_BYTES", 9)
    assert sorted_by_us(np.arange(9), 9).tolist() == list(range(9))
    with pytest.raises(BuildError, match="the packed text is 10 bytes, expected at most 9"):
        sorted_by_us(np.arange(10), 10)


@pytest.mark.parametrize("vocabulary_size", [1, 65_535, 65_536, 2**24 - 1])
def test_the_worst_text_of_the_most_positions_fits_the_sorter(vocabulary_size):
    positions, width = max_positions(vocabulary_size), width_of(vocabulary_size)
    assert positions <= MAX_POSITIONS
    assert positions * width <= module.MAX_TEXT_BYTES < (positions + 1) * width


PEAK = """
import sys
from itertools import pairwise
from pathlib import Path
import numpy as np
from build_index.suffix_array import suffix_array

def resident(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024

vocabulary_size = int(sys.argv[1])
symbols = np.load(sys.argv[2])
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
result = suffix_array(symbols, vocabulary_size=vocabulary_size)
print(resident("VmHWM") - before, result.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(("vocabulary_size", "distinct"), [(65_535, 65_535), (16_777_215, 300_000)])
def test_peak_stays_within_the_bound(tmp_path, vocabulary_size, distinct):
    """Uniform ids, which take the most bytes: the bound must hold, and not be idle."""
    count = 4_000_000
    symbols = np.random.default_rng(4).integers(0, distinct, count)
    np.save(tmp_path / "symbols.npy", payload_rows(symbols, vocabulary_size))
    command = [sys.executable, "-c", PEAK, str(vocabulary_size), str(tmp_path / "symbols.npy")]
    root = Path(module.__file__).parents[1]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    peak, result_bytes = map(int, output.split())
    assert result_bytes < peak <= peak_bytes(count, vocabulary_size)
    text_bytes = count * width_of(vocabulary_size)
    assert peak >= 5 * text_bytes - 2**22
