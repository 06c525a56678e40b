"""What does not fit into memory is refused by name, or counted in a directory; the rest takes bounded memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from build_index import target_tokenizer
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.document_stream import DocumentStream
from build_index.documents import Document
from build_index.journal import CHAIN_START, Cursor
from build_index.readers import json_values, parquet, records
from build_index.readers.compression import open_stream
from rest_store.errors import DocumentSizeError, MemoryBudgetError
from tests.shared.models import conversation

LIMIT = 1000
LARGE = "x" * LIMIT
SMALL = [Document(text="first"), Document(text="last")]


def documents(path, **options):
    return list(open_corpus(CorpusSpec(str(path), **options)))


# --- Compressed files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["zst", "gz"])
def test_repeated_blocks_are_decompressed_in_bounded_memory(tmp_path, suffix):
    size = 48 << 20
    path = tmp_path / f"a.{suffix}"
    data = bytes(size)
    path.write_bytes(gzip.compress(data) if suffix == "gz" else zstandard.compress(data))
    assert path.stat().st_size < size / 1000
    del data
    tracemalloc.start()
    try:
        with open_stream(path, "a") as stream:
            read = 0
            while part := stream.read1(1 << 16):
                read += len(part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == size
    assert peak < 20 << 20


@pytest.mark.parametrize("suffix", ["zst", "gz"])
def test_members_may_begin_anywhere_in_what_a_decoder_is_fed(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    compress = gzip.compress if suffix == "gz" else zstandard.compress
    parts = [f"{number}\n".encode() * (number**3 % 997) for number in range(200)]
    path.write_bytes(b"".join(map(compress, parts)))
    with open_stream(path, "a") as stream:
        assert stream.read() == b"".join(parts)


def frame(path, window_log, content):
    """Write a zstd frame that needs this window, as `zstd --long` does."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log)
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(path.open("wb")) as file:
        file.write(content)
    return path


def test_a_window_beyond_the_memory_is_refused_with_its_size(tmp_path):
    frame(tmp_path / "a.txt.zst", 28, b"some text")
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    assert list(corpus) == [Document(text="some text")]
    corpus.decoder_bytes = 128 << 20
    expected = r"a.txt.zst: the window of the zstd file is 256.0 MiB, expected at most 128.0 MiB, .*--memory"
    with pytest.raises(MemoryBudgetError, match=expected):
        list(corpus)
    frame(tmp_path / "a.txt.zst", 27, b"some text")
    assert list(corpus) == [Document(text="some text")]
    corpus.decoder_bytes = 1 << 36  # more than a decoder takes as a limit
    assert list(corpus) == [Document(text="some text")]


# --- Records ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(monkeypatch):
    for module in (json_values, records):
        monkeypatch.setattr(module, "LARGEST_DOCUMENT_BYTES", LIMIT)


def text(content, **others):
    return json.dumps({"text": content, **others})


NESTED = text("x", other=[{"a": '"]}\\', "b": [["\\\\"]] * 100}] * 3)
FORMS = {
    "lines": "\n".join([text("first"), text(LARGE), text("last")]),
    "a line of nested values": "\n".join([text("first"), NESTED, text("last")]),
    "a list": "[" + ",\n".join([text("first"), text(LARGE), text("last")]) + "]",
    "a list of nested values": "[" + ",\n".join([text("first"), NESTED, text("last")]) + "]",
    "the first line": "\n".join([text(LARGE), text("first"), text("last")]),
    "the first of a list": "[" + ",".join([text(LARGE), text("first"), text("last")]) + "]",
}


@pytest.mark.parametrize("chunk", [7, 1 << 18])
@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_is_too_large_is_an_error_or_counted_in_a_directory(
    tmp_path, small_limit, form, chunk, monkeypatch
):
    monkeypatch.setattr(json_values, "CHUNK_BYTES", chunk)
    path = tmp_path / ("a.json" if "list" in form else "a.jsonl")
    path.write_text(FORMS[form])
    line = 1 if "first" in form else 2
    with pytest.raises(
        DocumentSizeError, match=rf"^{path}:{line}: the size of the record is above 1000 bytes, expected"
    ):
        documents(path)
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    assert list(corpus) == SMALL
    assert corpus.provenance()["skipped"] == {"too large": 1}


def test_the_end_of_a_file_inside_a_record_that_is_too_large_is_passed_over(tmp_path, small_limit):
    (tmp_path / "a.jsonl").write_text(text("first") + "\n" + text(LARGE)[:-2])
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    assert list(corpus) == SMALL[:1]
    assert corpus.provenance()["skipped"] == {"too large": 1}


def test_a_record_of_just_the_limit_is_read(tmp_path, small_limit):
    path = tmp_path / "a.jsonl"
    record = text("x" * (LIMIT - len(text(""))))
    assert len(record) == LIMIT
    for end in ("", "\n"):
        path.write_text(record + end)
        assert len(documents(path)) == 1


def test_a_row_that_is_too_large_is_an_error_or_counted_in_a_directory(tmp_path, small_limit):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["first", LARGE + "x", "last"]}), path)
    with pytest.raises(DocumentSizeError, match=rf"^{path}:row 1: the size of the record is above 1000 bytes"):
        documents(path)
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    assert list(corpus) == SMALL
    assert corpus.provenance()["skipped"] == {"too large": 1}


def test_few_large_rows_are_held_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "LARGEST_DOCUMENT_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    rows = [f"{number} " + "x" * (1 << 20) for number in range(20)]
    pq.write_table(pa.table({"text": rows}), path, use_dictionary=False, write_batch_size=1)  # a row a page
    before, largest = pa.total_allocated_bytes(), 0
    for _ in open_corpus(CorpusSpec(str(path))):
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert 0 < largest < 8 << 20


def test_a_line_that_is_too_large_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(json_values, "LARGEST_DOCUMENT_BYTES", 1 << 16)
    (tmp_path / "a.jsonl").write_text("\n".join([text("first"), text("x" * (24 << 20)), text("last")]))
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    tracemalloc.start()
    try:
        assert list(corpus) == SMALL
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# --- Batches ---------------------------------------------------------------------------------------------------------


def test_the_roles_of_a_conversation_count_in_a_batch(tmp_path, chat):
    path = tmp_path / "a.jsonl"
    turn = {"role": "r" * 300_000, "content": "x"}
    path.write_text(
        "".join(json.dumps({"messages": [turn, {"role": "b", "content": str(n)}]}) + "\n" for n in range(6))
    )
    start = Cursor(0, CHAIN_START.hex(), 0, 0, ())
    stream = DocumentStream([open_corpus(CorpusSpec(str(path)))], chat, None, start, path)
    assert [len(batch.documents) for batch in stream.batches()] == [2, 2, 2]


def test_long_conversations_are_encoded_in_pieces(chat, monkeypatch):
    turns = ["word " * 20 + "\n" + "x" * 500, "<|im_end|>" * 10, "", "line\n" * 30]
    document = conversation(*turns)
    whole = chat.encode_conversations([document, conversation("a", "b")])
    longest = []
    batches = target_tokenizer._batches
    monkeypatch.setattr(
        target_tokenizer, "_batches", lambda texts: longest.append(max(map(len, texts))) or batches(texts)
    )
    for size in range(40, 60):
        monkeypatch.setattr(target_tokenizer, "PIECE_CHARACTERS", size)
        pieces = chat.encode_conversations([document, conversation("a", "b")])
        assert longest.pop() <= size
        assert [chat.decode(tokens) for tokens in pieces] == [chat.decode(tokens) for tokens in whole]
        controls = set(chat.identity.special_tokens.values())
        assert [token for token in pieces[0].tolist() if token in controls] == [
            token for token in whole[0].tolist() if token in controls
        ]
        assert pieces[1].tolist() == whole[1].tolist()
