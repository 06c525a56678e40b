"""CSV and TSV: a document a row, by the names in the first row."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc

import pytest

from build_index.documents import Document
from build_index.readers import separated_values
from rest_store.errors import CorpusFormatError
from tests.shared.corpora import compressed, documents_of, read_corpus, write_files

TEXTS = [
    "plain",
    'with "quotes"',
    "with,comma; and\ttab",
    "two\nlines",
    "two\r\nlines",
    "naïve ☃",
    " spaces ",
]


def write_table(
    texts: list[str], delimiter: str = ",", ends: str = "\r\n", name: str = "text"
) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=ends)
    writer.writerows(
        [["id", name, "n"], *([number, text, ""] for number, text in enumerate(texts))]
    )
    return file.getvalue().encode()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("delimiter", "ending"),
    [(",", ".csv"), (";", ".csv"), ("\t", ".tsv"), ("\t", ".csv"), ("|", ".csv")],
)
def test_a_row_is_a_document(tmp_path, delimiter, ending, ends, suffix):
    path = tmp_path / f"a{ending}{suffix}"
    path.write_bytes(compressed(write_table(TEXTS, delimiter, ends), suffix))
    corpus, documents = read_corpus(path)
    assert [document.text for document in documents] == TEXTS
    assert corpus.reader == "table"
    assert read_corpus(tmp_path)[1] == documents


def test_origins_name_the_line_on_which_a_row_ends(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(write_table(["a", "b\nc", "d"]) + b"\r\n")
    assert [document.origin for document in documents_of(path)] == [
        f"{path}:2",
        f"{path}:4",
        f"{path}:5",
    ]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbftext,n\nx,1\n")
    assert documents_of(path) == [Document(text="x")]


def test_any_column_can_be_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(write_table(["x"], name="body"))
    assert documents_of(path, field="body") == [Document(text="x")]
    with pytest.raises(
        CorpusFormatError,
        match=r"a.csv: content is table without a known column \(fields 'id', 'body'",
    ):
        documents_of(path)


def test_conversations_may_be_json_in_a_column(tmp_path):
    turns = [{"role": "user", "content": "Hi, you"}, {"role": "assistant", "content": "Hello"}]
    path = tmp_path / "a.csv"
    path.write_bytes(write_table([json.dumps(turns)], name="messages"))
    assert documents_of(path) == [Document(messages=(("user", "Hi, you"), ("assistant", "Hello")))]


def test_a_table_without_a_known_column_in_a_directory_is_counted(tmp_path):
    write_files(
        tmp_path, {"a.csv": "x,y\n1,2\n", "b.csv": write_table(["x"]), "c.txt": "text,n\n1,2\n"}
    )
    corpus, documents = read_corpus(tmp_path)
    assert documents == [Document(text="x"), Document(text="text,n\n1,2\n")]
    assert corpus.counts.skipped == {"table without a known column": 1}
    assert corpus.counts.largest["table without a known column"] == (
        8,
        f"{tmp_path}/a.csv (fields 'x', 'y')",
    )


BAD = {
    "another number of values": (
        b"text,n\na,1\nb\nc,3\n",
        ":3: the number of values is 1, expected 2, as in the first row",
    ),
    "not UTF-8": (b"text,n\na,1\n\xff,2\n", r":3: line is not UTF-8, expected UTF-8 \(iconv"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_or_counted_in_a_directory(tmp_path, name):
    path = tmp_path / "a.csv"
    content, message = BAD[name]
    path.write_bytes(content)
    with pytest.raises(CorpusFormatError, match=f"^{path}{message}"):
        documents_of(path)
    corpus, documents = read_corpus(tmp_path)
    is_row = name == "another number of values"
    assert [document.text for document in documents] == (["a", "c"] if is_row else ["a"])
    assert corpus.counts.skipped == {"malformed record" if is_row else "damaged": 1}


@pytest.mark.parametrize(
    "content", [b'text\n"' + b"x" * 5000, b'text\n"' + b"x\n" * 5000, b"text\n" + b"x" * 5000]
)
def test_a_row_that_does_not_end_is_not_held(tmp_path, monkeypatch, content):
    monkeypatch.setattr(separated_values, "MAX_DOCUMENT_BYTES", 1000)
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(
        CorpusFormatError,
        match=r"a.csv:\d+: the size of the row is above 1000 bytes, expected at most",
    ):
        documents_of(path)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(write_table([f"{number} " * 2000 for number in range(2000)]))
    assert path.stat().st_size > 15_000_000
    reading = iter(read_corpus(path, max_documents=1)[0])
    next(reading)
    corpus = read_corpus(path, max_documents=1)[0]
    tracemalloc.start()
    try:
        assert (
            sum(
                1
                for file in corpus.files(corpus.counts)
                for _ in corpus.documents(file, corpus.counts)
            )
            == 2000
        )
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
