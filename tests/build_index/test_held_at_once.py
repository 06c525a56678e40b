"""Files of which pyarrow has to hold too much at once are refused.

The message says which memory suffices.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.memory_plan import MIB, plan_memory, sufficient_budget
from build_index.readers import parquet_pages
from build_index.readers.parquet import HeldAtOnceError
from build_index.readers.parquet_pages import largest_pages
from build_index.size import parse_size
from rest_store.errors import MemoryBudgetError
from tests.shared.builds import run_build

NOISE = os.urandom(1 << 16).hex()


def texts(number: int, size: int) -> list[str]:
    source = random.Random(number)
    starts = (source.randrange(len(NOISE) - size) for _ in range(number))
    return [NOISE[start : start + size] for start in starts]


def pages(path: Path) -> list[int]:
    """The largest page of each column in the first row group, with its dictionary."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    with path.open("rb") as file:
        return [largest_pages(file, group.column(place)) for place in range(group.num_columns)]


# --- Pages ----------------------------------------------------------------------------------------

OPTIONS = {
    "one page": {"data_page_size": 1 << 30, "use_dictionary": False},
    "small pages": {"data_page_size": 1 << 16, "write_batch_size": 4, "use_dictionary": False},
    "packed": {
        "data_page_size": 1 << 16,
        "write_batch_size": 4,
        "use_dictionary": False,
        "compression": "zstd",
    },
    "of version 2": {
        "data_page_version": "2.0",
        "data_page_size": 1 << 16,
        "write_batch_size": 4,
        "use_dictionary": False,
    },
    "with checksums": {
        "write_page_checksum": True,
        "data_page_size": 1 << 16,
        "write_batch_size": 4,
        "use_dictionary": False,
    },
    "with an index": {
        "write_page_index": True,
        "data_page_size": 1 << 16,
        "write_batch_size": 4,
        "use_dictionary": False,
    },
    "without statistics": {
        "write_statistics": False,
        "data_page_size": 1 << 16,
        "write_batch_size": 4,
        "use_dictionary": False,
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_largest_page_of_a_column_is_found_by_the_headers(tmp_path, name):
    path = tmp_path / "a.parquet"
    size = 400 * 5004
    pq.write_table(pa.table({"text": texts(400, 5000), "n": range(400)}), path, **OPTIONS[name])
    text, number = pages(path)
    assert number < 8 * 400 + 1000
    if name == "one page":
        assert size <= text < size + 1000
    else:
        assert 1 << 16 <= text < (1 << 16) + 4 * 5004 + 1000


def test_a_dictionary_counts_beside_the_pages(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"text": texts(50, 5000) * 40})
    pq.write_table(table, path, use_dictionary=["text"], dictionary_pagesize_limit=1 << 20)
    (size,) = pages(path)
    assert 50 * 5004 <= size < 50 * 5004 + 10_000


def number(value: int) -> bytes:
    """An integer as Thrift's compact protocol writes it: zigzag, seven bits a byte."""
    value <<= 1
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def test_a_header_may_have_fields_of_any_type() -> None:
    sizes = b"\x15" + number(0) + b"\x15" + number(300) + b"\x15" + number(200)
    others = (
        b"\x19\x25\x02\x04"  # field 4: a list of two integers
        b"\x1a\x21\x01\x02"  # a set of two booleans
        b"\x18\x03abc\x17" + bytes(8) + b"\x13\x07\x11\x12"  # text, double, byte, booleans
        b"\x1c\x15" + number(7) + b"\x00"  # a struct with an integer
    )
    far = b"\x05" + number(1 << 12) + number(77)  # a field whose id does not fit beside its type
    header = sizes + others + far + b"\x00"
    read, size = parquet_pages._page_header(io.BytesIO(b"before" + header + b"page"), 6)
    assert (read[1], read[2], read[3], read[1 << 12], size) == (0, 300, 200, 77, len(header))
    for length in range(len(header)):
        with pytest.raises(IndexError):
            parquet_pages._page_header(io.BytesIO(header[:length]), 0)
    for bad in (b"\x1d", b"\x15" + b"\x80" * 11):
        with pytest.raises(ValueError, match=r"page header|number"):
            parquet_pages._page_header(io.BytesIO(bad), 0)


def test_headers_that_cannot_be_read_count_as_one_page(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts(40, 5000)}), path, **OPTIONS["small pages"])
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    for damage in (b"\xff" * 8, b"\x15" * 40, b"\x1c" * 4000, b"\x00"):
        path.write_bytes(data[:4] + damage + data[4 + len(damage) :])
        with path.open("rb") as file:
            assert largest_pages(file, chunk) == chunk.total_uncompressed_size


# --- Refused or read ------------------------------------------------------------------------------


def test_a_large_row_group_of_small_pages_is_read_and_little_is_held(tmp_path):
    path = tmp_path / "a.parquet"
    # Another column is not read, and does not count.
    table = {"text": texts(400, 5000), "a": ["y" * 9000] * 400}
    pq.write_table(pa.table(table), path, **OPTIONS["small pages"])
    corpus = open_corpus(CorpusSpec(str(path)))
    corpus.held_bytes = 1 << 18
    assert len(list(corpus)) == 400


def test_rows_are_held_by_their_size(tmp_path):
    """The number of rows that are held depends on their size, and is not always 64."""
    path = tmp_path / "a.parquet"
    size = len(NOISE)
    pq.write_table(
        pa.table({"text": texts(300, size - 1)}), path, write_batch_size=1, use_dictionary=False
    )
    assert path.stat().st_size > 36 * MIB
    before = pa.total_allocated_bytes()
    largest = 0
    for _ in open_corpus(CorpusSpec(str(path))):
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert 0 < largest < 20 * MIB


def test_a_page_beyond_the_memory_is_refused_with_its_size(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts(400, 5000)}), path, **OPTIONS["one page"])
    corpus = open_corpus(CorpusSpec(str(path)))
    corpus.held_bytes = 1 << 18
    expected = (
        r"a.parquet: the size of the largest page of 'text' in row group 0 is 1.9 MiB, expected at"
        r" most 256.0 KiB, "
    )
    with pytest.raises(
        MemoryBudgetError,
        match=expected + "as --memory .*; or write the file again with smaller pages",
    ):
        list(corpus)
    corpus.held_bytes = None
    assert len(list(corpus)) == 400


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_record_batch_beyond_the_memory_is_refused_with_its_size(tmp_path, new):
    path = tmp_path / "a.arrow"
    table = pa.table({"text": texts(400, 5000)})
    for rows in (400, 10):
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
        corpus = open_corpus(CorpusSpec(str(path)))
        corpus.held_bytes = 1 << 18
        if rows == 10:
            assert len(list(corpus)) == 400
            continue
        expected = (
            r"a.arrow: the size of a record batch is 1.9 MiB, expected at most 256.0 KiB, as"
            r" --memory .* allow; or"
        )
        with pytest.raises(MemoryBudgetError, match=expected):
            list(corpus)


def test_the_error_is_the_same_from_another_process():
    error = HeldAtOnceError.for_size("a", "a page", 3000, 2000, "smaller pages")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.needed) == (str(error), 3000)


# --- Which memory suffices ------------------------------------------------------------------------


@pytest.mark.parametrize("positions", [None, 1 << 20])
@pytest.mark.parametrize("workers", [0, 2, 8])
def test_a_budget_that_suffices_is_found(positions, workers):
    def planned(budget, positions):
        return plan_memory(budget, 150 * MIB, 32_000, positions, max(workers, 1), workers)

    for needed in (200 * MIB, 500 * MIB, 3000 * MIB):
        budget = sufficient_budget(planned, 1 << 30, positions, needed)
        assert planned(budget, positions).decoder_bytes >= needed
        assert budget == 1 << 30 or budget % (256 * MIB) == 0


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_the_memory_that_the_message_names_suffices(tokenizer, out, tmp_path, resume):
    """It also suffices to continue the build, whose shards keep their size."""
    path = tmp_path / "a.parquet"
    large = texts(3000, len(NOISE) - 1)
    pq.write_table(pa.table({"text": large}), path, **OPTIONS["one page"], compression="none")
    arguments = (
        "--corpus",
        path,
        "--tokenizer",
        tokenizer,
        "--out",
        out,
        "--workers",
        1,
        "--max-documents",
        3,
    )
    failed = run_build(*arguments, "--memory", "700M")
    assert failed.returncode == 1
    match = re.search(
        r"; --memory (\w+) suffices, or write .* \(continue with --resume\)$", failed.stderr.strip()
    )
    assert match, failed.stderr
    assert 700 * MIB < parse_size(match[1]) < 4 << 30
    done = run_build(*arguments, "--memory", match[1], *resume, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["peak_memory"] <= summary["memory"]
