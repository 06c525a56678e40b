"""Records that do not fit into memory are refused by name, or counted in a directory.

Other records take bounded memory.
"""

from __future__ import annotations

import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index import target_tokenizer
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document
from build_index.readers import json_records, record_reader
from rest_store.errors import CorpusError
from tests.shared.corpora import documents_of as documents
from tests.shared.corpora import read_corpus
from tests.shared.models import conversation, decoded

LIMIT = 1000
LARGE = "x" * LIMIT
SMALL = [Document(text="first"), Document(text="last")]


# --- Records --------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(monkeypatch):
    for module in (json_records, record_reader):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", LIMIT)


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
    monkeypatch.setattr(json_records, "_CHUNK", chunk)
    path = tmp_path / ("a.json" if "list" in form else "a.jsonl")
    path.write_text(FORMS[form])
    line = 1 if "first" in form else 2
    with pytest.raises(
        CorpusError, match=rf"^{path}:{line}: the size of the record is above 1000 bytes, expected"
    ):
        documents(path)
    corpus, stored = read_corpus(tmp_path)
    assert stored == SMALL
    assert corpus.counts.skipped == {"too large": 1}


def test_the_end_of_a_file_inside_a_record_that_is_too_large_is_passed_over(tmp_path, small_limit):
    (tmp_path / "a.jsonl").write_text(text("first") + "\n" + text(LARGE)[:-2])
    corpus, stored = read_corpus(tmp_path)
    assert stored == SMALL[:1]
    assert corpus.counts.skipped == {"too large": 1}


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
    with pytest.raises(
        CorpusError, match=rf"^{path}:row 1: the size of the record is above 1000 bytes"
    ):
        documents(path)
    corpus, stored = read_corpus(tmp_path)
    assert stored == SMALL
    assert corpus.counts.skipped == {"too large": 1}


def test_a_line_that_is_too_large_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(json_records, "MAX_DOCUMENT_BYTES", 1 << 16)
    (tmp_path / "a.jsonl").write_text(
        "\n".join([text("first"), text("x" * (24 << 20)), text("last")])
    )
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    tracemalloc.start()
    try:
        assert list(corpus) == SMALL
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# --- Pieces ---------------------------------------------------------------------------------------


def test_long_conversations_are_encoded_in_pieces(chat, monkeypatch):
    turns = ["word " * 20 + "\n" + "x" * 500, "<|im_end|>" * 10, "", "line\n" * 30]
    document = conversation(*turns)
    whole = chat.encode_documents([document, conversation("a", "b")])
    longest = []
    batches = target_tokenizer._batches
    monkeypatch.setattr(
        target_tokenizer,
        "_batches",
        lambda texts: longest.append(max(map(len, texts))) or batches(texts),
    )
    for size in range(40, 60):
        monkeypatch.setattr(target_tokenizer, "PIECE_CHARACTERS", size)
        pieces = chat.encode_documents([document, conversation("a", "b")])
        assert longest.pop() <= size
        assert [decoded(chat, tokens) for tokens in pieces] == [
            decoded(chat, tokens) for tokens in whole
        ]
        controls = set(chat.identity.special_tokens.values())
        assert [token for token in pieces[0].tolist() if token in controls] == [
            token for token in whole[0].tolist() if token in controls
        ]
        assert pieces[1].tolist() == whole[1].tolist()
