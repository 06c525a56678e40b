"""A parquet file takes bounded memory: what does not fit, or contradicts itself, is refused by name."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.readers.page_header import DATA_PAGE, PageHeader, varint
from build_index.readers.parquet_pages import longest_row
from rest_store.errors import CorpusFormatError, DocumentSizeError, MemoryBudgetError

MIB = 1 << 20
LIMIT = 8 * MIB


@contextmanager
def pyarrow_pool():
    """Give pyarrow a memory pool whose peak is that of the block."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def documents(path, limit=LIMIT):
    corpus = open_corpus(CorpusSpec(str(path)))
    corpus.decoder_bytes = limit
    return list(corpus)


def chats(counts, role="user", content="x"):
    """Return a table of conversations with so many messages, all the same."""
    offsets = [sum(counts[:row]) for row in range(len(counts) + 1)]
    columns = [pa.repeat(pa.scalar(text, pa.string()), offsets[-1]) for text in (role, content)]
    messages = pa.StructArray.from_arrays(columns, ["role", "content"])
    return pa.table({"messages": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), messages)})


def one_page(path, **options):
    pq.write_table(pa.table({"text": ["abcdefgh" * (3 * MIB), "last"]}), path, use_dictionary=False, **options)


ONE_PAGE = {"data_page_size": 1 << 30, "write_batch_size": 1 << 24}
HOSTILE = {
    **{f"a page, {codec}": lambda path, codec=codec: one_page(path, compression=codec) for codec in ("zstd", "snappy")},
    "a page, gzip, version 2": lambda path: one_page(path, compression="gzip", data_page_version="2.0"),
    "a page, not compressed": lambda path: one_page(path, compression="none"),
    "a dictionary": lambda path: pq.write_table(pa.table({"text": ["abcdefgh" * (5 * MIB)] * 3}), path),
    "shared prefixes": lambda path: pq.write_table(
        chats([100], content="abcdefgh" * (MIB // 8)),
        path,
        use_dictionary=False,
        column_encoding={"messages.list.element.content": "DELTA_BYTE_ARRAY"},
        store_schema=False,
    ),
    "a row of nulls": lambda path: pq.write_table(chats([2 * MIB], None, None), path, **ONE_PAGE),
    "a row that repeats a value": lambda path: pq.write_table(
        chats([100], content="y" * MIB), path, dictionary_pagesize_limit=1 << 30, store_schema=False
    ),
}


@pytest.mark.parametrize("form", HOSTILE)
def test_what_pyarrow_would_expand_is_refused_by_name(tmp_path, form):
    path = tmp_path / "a.parquet"
    HOSTILE[form](path)
    expected = (
        rf"^{path}: the memory for a page of '(text|messages\S+)' is \S+ [MG]iB, expected at most 8.0 MiB, .*--memory"
    )
    with pyarrow_pool() as pool, pytest.raises(MemoryBudgetError, match=expected):
        documents(path)
    assert pool.max_memory() < LIMIT
    with pyarrow_pool() as pool, pytest.raises(DocumentSizeError):
        documents(path, 1 << 40)
    assert pool.max_memory() > 2 * LIMIT


MEASURE = """
import sys
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.memory import resident_bytes
import pyarrow.compute
from rest_store.errors import RestStoreError

small, large = (open_corpus(CorpusSpec(path)) for path in sys.argv[1:3])
list(small)
before = resident_bytes()
for limit in map(int, sys.argv[3:]):
    large.decoder_bytes = limit
    try:
        list(large)
    except RestStoreError as error:
        print(type(error).__name__, resident_bytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_resident_memory_stays_bounded(tmp_path):
    small, large = str(tmp_path / "small.parquet"), str(tmp_path / "large.parquet")
    pq.write_table(pa.table({"text": ["x"]}), small)
    pq.write_table(pa.table({"text": ["x" * (64 * MIB)]}), large, use_dictionary=False, compression="zstd")
    command = [sys.executable, "-c", MEASURE, small, large, str(LIMIT), str(1 << 40)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert output[::2] == ["MemoryBudgetError", "DocumentSizeError"]
    assert int(output[1]) < 16 * MIB
    assert int(output[3]) > 120 * MIB


# --- What fits is read -----------------------------------------------------------------------------------------------


def test_rows_that_share_a_large_value_are_read_a_few_at_once(tmp_path):
    path = tmp_path / "a.parquet"
    rows = ["y" * (MIB // 2)] * 200
    pq.write_table(pa.table({"text": rows, "path": ["p"] * 200}), path, store_schema=False)
    with pyarrow_pool() as pool:
        assert [document.text for document in documents(path)] == rows
    assert MIB < pool.max_memory() < LIMIT


def test_large_rows_after_small_ones_are_read_a_few_at_once(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [str(number) for number in range(3000)] + [f"{number}" + "x" * MIB for number in range(24)]
    pq.write_table(pa.table({"text": rows}), path, use_dictionary=False, write_batch_size=1, data_page_size=1)
    with pyarrow_pool() as pool:
        assert [document.text for document in documents(path)] == rows
    assert MIB < pool.max_memory() < LIMIT + MIB


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_long_pages_of_short_conversations_are_read(tmp_path, version):
    path = tmp_path / "a.parquet"
    table = chats([7, 1, 2] * 1000, content="z" * 5000)  # a page of 10,000 messages, 50 MB if it were decoded whole
    pq.write_table(table, path, data_page_version=version, store_schema=False, **ONE_PAGE)
    with pyarrow_pool() as pool:
        assert len(documents(path)) == 3000
    assert MIB < pool.max_memory() < LIMIT


def test_a_row_that_is_too_large_is_not_made_into_python_objects(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(chats([1, 500_000, 1]), path)
    with pytest.raises(DocumentSizeError, match=rf"^{path}:row 1: the size of the record is above 16.0 MiB"):
        documents(path, 64 * MIB)
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    assert len(list(corpus)) == 2
    assert corpus.provenance()["skipped"] == {"too large": 1}


def test_a_column_of_categories_is_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array(["one", "two", "one"]).dictionary_encode()}), path)
    assert [document.text for document in documents(path)] == ["one", "two", "one"]


# --- What contradicts itself -----------------------------------------------------------------------------------------


def number(value):
    """Return a 32-bit integer as Thrift writes it (zigzag)."""
    value = value << 1 ^ value >> 31
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def page_header(kind, uncompressed, compressed, values):
    """Return the beginning of a page header, as far as the number of values."""
    fields = [b"\x15" + number(value) for value in (kind, uncompressed, compressed, values)]
    return b"".join(fields[:3]) + b"\x2c" + fields[3]


def lying(path, change):
    """Write a file whose first page declares something else, in a header that is as long."""
    values = [f"{number} {number**9}" for number in range(1000)]
    pq.write_table(pa.table({"text": values}), path, use_dictionary=False, compression="snappy", write_statistics=False)
    data = path.read_bytes()
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    true = PageHeader.parse(data[start:])
    sizes = {"uncompressed": true.uncompressed, "compressed": true.compressed, "values": true.values}
    header = page_header(DATA_PAGE, **sizes)
    assert data[start:].startswith(header)
    lie = page_header(DATA_PAGE, **{name: change.get(name, lambda size: size)(size) for name, size in sizes.items()})
    assert len(lie) == len(header)
    path.write_bytes(data.replace(header, lie))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"uncompressed": lambda size: size - 100}, "parquet file is damaged"),
        ({"uncompressed": lambda size: size + 100}, "the size of the pages of 'text' is more than the footer says"),
        ({"compressed": lambda size: size + 100}, r"the end of a page is byte \d+, expected at most \d+"),
        ({"compressed": lambda size: size - 100}, "is damaged"),
        ({"values": lambda count: count + 100}, "the number of values of the pages of 'text' is more than the footer"),
        ({"values": lambda count: count - 100}, "row group 0 is 900 rows long, expected 1000 rows|is damaged"),
        ({"values": lambda count: -count}, "the header of a page is damaged, expected intact"),
    ],
)
def test_a_page_that_contradicts_the_footer_or_its_content_is_refused(tmp_path, change, message):
    path = tmp_path / "a.parquet"
    lying(path, change)
    with pytest.raises(CorpusFormatError, match=f"^{path}: .*({message})"):
        documents(path)


def test_a_footer_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    schema = pa.schema([("text", pa.string())], metadata={"note": "x" * (5 * MIB)})
    pq.write_table(pa.table({"text": ["x"]}, schema), path)
    assert len(documents(path, 1 << 30)) == 1
    expected = rf"^{path}: the footer of the parquet file is \S+ MiB, expected at most 256.0 KiB, .*--memory"
    with pytest.raises(MemoryBudgetError, match=expected):
        documents(path)


# --- Headers and levels ----------------------------------------------------------------------------------------------


def test_a_header_is_read_as_thrift_reads_it():
    header = page_header(DATA_PAGE, 300, 200, 7) + b"\x00\x00"
    plain = PageHeader.parse(header)
    assert (plain.uncompressed, plain.compressed, plain.values, plain.length) == (300, 200, 7, len(header))
    others = (
        b"\x19\x25\x02\x04"  # a list of two integers
        b"\x18\x03abc\x17" + bytes(8) + b"\x1b\x01\x58\x02\x01x\x11\x12"  # text, double, map, booleans
        b"\x05\x04\x63"  # field 2 again: the last one counts
        b"\x06\x04\x02"  # field 2 of another type: it does not count
    )
    header = header[:-1] + others + b"\x05" + number(2 + (1 << 16)) + number(77) + b"\x00"  # a field number of 16 bits
    read = PageHeader.parse(header + b"what follows")
    assert (read.uncompressed, read.length) == (77, len(header))
    for length in range(len(header)):
        with pytest.raises(IndexError):
            PageHeader.parse(header[:length])
    for bad in (b"\x00", b"\x1d", b"\x1c" * 100, b"\x15" + b"\x80" * 11, b"\x1c\x00\x00"):
        with pytest.raises(ValueError, match=r"page header|number|kind"):
            PageHeader.parse(bad)


@given(
    rows=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    width=st.integers(1, 3),
    cuts=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=20),
    data=st.data(),
)
def test_the_longest_row_is_found_in_any_encoding(rows, width, cuts, data):
    levels = [0 if place == 0 else data.draw(st.integers(1, 2**width - 1)) for row in rows for place in range(row)]
    encoded, place = b"", 0
    for packed, size in [*cuts, *[(True, 8)] * len(levels)]:
        part = levels[place : place + (8 * size if packed else size)]
        if not part:
            break
        if packed:
            groups = -(-len(part) // 8)
            bits = sum(level << width * position for position, level in enumerate(part))
            encoded += bytes([groups << 1 | 1]) + bits.to_bytes(groups * width, "little")
        else:
            part = part[: next((n for n, level in enumerate(part) if level != part[0]), len(part))]
            encoded += bytes([len(part) << 1, part[0]])
        place += len(part)
    assert place == len(levels)
    assert longest_row(encoded, width, len(levels)) == max(rows)
    assert varint(encoded, 0)[0] == encoded[0]
