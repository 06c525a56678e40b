"""Each fault of a corpus file has an error that names the file, and the line or row."""

from __future__ import annotations

import io
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index import corpus as corpus_module
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document
from build_index.readers import json_records
from rest_store.errors import CorpusError, CorpusFormatError, CorpusNotFoundError
from tests.shared.corpora import COMPRESSIONS, compressed
from tests.shared.corpora import documents_of as documents

GOOD = b'{"text": "x"}\n'
BAD_LINES = {
    b'{"text": "y"': r":2: content is not JSON \(.*\), expected JSON",
    b'{"text": "\xff"}': r":2: content is not UTF-8",
    b'"text"': ":2: record is a string, expected an object",
    b"3": ":2: record is a number, expected an object",
    b'{"other": "y"}': (
        ":2: record is one with fields 'other', expected a conversation or a text in.* or --field N"
    ),
    b'{"text": 3}': (
        ":2: record is one with fields 'text'; 'text' is a number, expected a conversation or a"
        " text in"
    ),
    b'{"messages": [{"role": "user"}, 3]}': (
        ":2: record is one with fields 'messages'; 'messages' is a list, expected"
    ),
    b'{"messages": "no JSON"}': (
        ":2: record is one with fields 'messages'; 'messages' is a string, expected"
    ),
    b'{"messages": [{"role": "user", "content": "x"}, 3]}': (
        ":2: turn 1 of 'messages' is a number, expected a text"
    ),
    b'{"messages": [{"role": "user", "content": "x"}, {"n": 1}]}': (
        ":2: turn 1 of 'messages' is one with fields 'n'"
    ),
    b'{"messages": [{"role": "user", "content": {}}]}'.replace(
        b"{}", b'{"a": 1}'
    ): ":2: turn 0 .* is a object",
    b'{"data": ["x", 3]}': ":2: turn 1 of 'data' is a number, expected a text, or role and content",
    b"[" * 100_000: r":2: content is JSON nested too deeply",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: line[:50].decode("latin-1"))
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + line + b"\n" + GOOD)
    reading = iter(open_corpus(CorpusSpec(str(path))))
    assert next(reading) == Document(text="x")
    with pytest.raises(CorpusFormatError, match=f"^{path}{BAD_LINES[line]}") as error:
        next(reading)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "x"}, "field 'code' is absent .fields 'text'., expected in each record"),
        ({"code": 3}, "field 'code' is a number, expected a text or a conversation"),
        ({"code": {"a": 1}}, "field 'code' is a object, expected a text or a conversation"),
    ],
)
def test_a_record_without_the_chosen_field_is_named(tmp_path, record, message):
    path = tmp_path / "a.jsonl"
    path.write_text('{"code": "x"}\n' + json.dumps(record))
    with pytest.raises(CorpusFormatError, match=f"^{path}:2: {message}"):
        documents(path, field="code")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"text": "x"}\n{"text": "y"}]', ":2: content is { after a record, expected ',' or ']'"),
        (
            b'[{"text": "x"},\n',
            ":2: content is more or less than a list, expected the end of the file after ']'",
        ),
        (
            b'[{"text": "x"}\n',
            ":2: content is the end of the file after a record, expected ',' or ']'",
        ),
        (
            b'[{"text": "x"}]\n3',
            ":2: content is more or less than a list, expected the end of the file",
        ),
        (b'[{"text": "x"},\n{"text": ', r":2: content is not JSON \(Expecting value"),
        (b'[{"text": "x"},\n{"text": "un', r":2: content is not JSON \(Unterminated string"),
        (b'[{"text": "x"},\n\xff', r":2: content is not UTF-8, expected UTF-8 JSON"),
        (b'[{"text": "x"},\n' + b"[" * 100_000, ":2: content is JSON nested too deeply"),
        (b'[{"text": "x"},\n3]', ":2: record is a number, expected an object"),
    ],
)
@pytest.mark.parametrize("chunk", [5, 1 << 18])
def test_a_bad_json_file_is_named_with_its_line(tmp_path, content, message, chunk, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    monkeypatch.setattr(json_records, "_CHUNK", chunk)
    with pytest.raises(CorpusFormatError, match=f"^{path}{message}"):
        documents(path)


def test_numbers_of_any_kind_may_stand_beside_a_document(tmp_path):
    path = tmp_path / "a.jsonl"
    for number in ("-" + "9" * 5000, "NaN", "-Infinity", "1e999"):
        path.write_text(f'{{"n": {number}, "text": "x"}}')
        assert documents(path) == [Document(text="x")]
        with pytest.raises(CorpusFormatError, match="field 'n' is a number, expected a text"):
            documents(path, field="n")


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_truncated_or_damaged_compressed_file_is_an_error(tmp_path, suffix, name):
    path = tmp_path / (name + suffix)
    data = compressed(b"".join(b'{"text": "%d"}\n' % number**5 for number in range(300)), suffix)
    flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]  # in the checksum, or the length
    cut = [data[:length] for length in (5, 20, len(data) // 2, len(data) - 1)]
    checked = () if suffix == ".lz4" else (flipped,)  # pyarrow writes LZ4 without checksums
    for bad in (*cut[suffix in (".xz", ".bz2") :], *checked, data + b"trailing garbage"):
        path.write_bytes(bad)
        with pytest.raises(
            CorpusFormatError, match=f"^{path}: compressed file is damaged or truncated"
        ):
            documents(path)
    path.write_bytes(data)
    assert len(documents(path)) == 300


def test_a_truncated_or_damaged_parquet_file_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": [f"x = {number**9}" for number in range(5000)]}), path)
    data = path.read_bytes()
    for damaged in (
        data[:-1],
        data[: len(data) // 2],
        data[:4],
        data[:100] + b"\xff" * 3000 + data[3100:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(
            CorpusFormatError, match=f"^{path}: parquet file is damaged or truncated"
        ) as error:
            documents(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (
            b"a\x00b",
            {},
            "binary, expected text, or records with one of the fields 'messages', .*--field names",
        ),
        (b"abc\xff", {}, r"not UTF-8 \(byte 0xff at 3\), expected UTF-8 text"),
        (b"x = 1", {"field": "code"}, r"text, expected records .* with the field 'code'"),
        (
            b'{"code": "x"}',
            {},
            r"JSONL without a known field \(fields 'code'\), expected text, or records with",
        ),
        (
            b'{"code":\n"x"}',
            {},
            r"JSON without a known field \(fields 'code'\), expected text, or records with",
        ),
        (
            b'{"code": "x"}',
            {"field": "body"},
            r"records without this field \(fields 'code'\), expected records .* 'body'",
        ),
        (
            None,
            {},
            r"table without a known column \(fields 'code', 'id'\), expected text, or records with",
        ),
        (
            None,
            {"field": "body"},
            r"table without a known column \(.*\), expected records .* the field 'body'",
        ),
        (None, {"field": "id"}, "a number, expected a text"),
    ],
)
def test_a_file_that_holds_no_documents_is_refused(tmp_path, content, options, message):
    path = tmp_path / "a"
    pq.write_table(pa.table({"code": ["x"], "id": [1]}), path)
    assert documents(path, field="code") == [Document(text="x")]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusFormatError, match=f"^{path}.* is {message}"):
        documents(path, **options)


@pytest.mark.parametrize("content", [b"text\n", b'{"text": "x"\n', b"[1\n"])
def test_a_file_named_jsonl_is_never_read_as_text(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(
        CorpusFormatError,
        match=f"^{path}:1: line is not a JSON object, expected one JSON object a line",
    ):
        documents(path)


def test_an_absent_file_is_an_error_also_when_it_vanishes(tmp_path):
    with pytest.raises(
        CorpusNotFoundError,
        match="absent: corpus is absent, expected a file, a directory or an address",
    ):
        documents(tmp_path / "absent")
    path = tmp_path / "a.txt"
    path.write_text("x")
    corpus = open_corpus(CorpusSpec(str(path)))
    path.unlink()
    with pytest.raises(CorpusNotFoundError, match=r"a.txt: corpus is absent"):
        list(corpus)
    os.mkfifo(path)
    with pytest.raises(
        CorpusError, match=r"a.txt: the corpus cannot be read \(not a regular file\)"
    ):
        list(corpus)


def test_failures_of_the_operating_system_are_errors_that_name_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("x")

    class BadDisk(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(corpus_module, "open_file", lambda path: BadDisk())
    with pytest.raises(
        CorpusError, match=r"a.txt: the corpus cannot be read \(Input/output error\)"
    ):
        documents(path)


def test_a_pipe_is_refused(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(
        CorpusError, match="pipe: corpus is a pipe, socket or device, expected a regular file"
    ):
        documents(path)
