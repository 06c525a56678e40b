"""Rows of parquet and Arrow: which column holds the document, and JSON in columns."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document
from rest_store.errors import CorpusFormatError
from tests.shared.corpora import documents_of, read_corpus

TURN = pa.struct([("role", pa.string()), ("content", pa.string())])
CHATS = pa.list_(TURN)
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
MESSAGES = (("user", "Hi"), ("assistant", "Hello"))


def write_parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def write_arrow_file(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def write_arrow_stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.fixture(params=[write_parquet, write_arrow_file, write_arrow_stream])
def write(request, tmp_path):
    """Writes a table as each kind of file."""
    return lambda table: request.param(tmp_path / "table", table)


# --- Which column ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        {"messages": pa.array([None, None], CHATS)},
        {"messages": pa.array([[], []], CHATS)},
        {"messages": pa.nulls(2)},
        {"data": ["meta", "data"]},
        {"data": [b"a picture", b"\xff"]},
        {"data": pa.array([[1], [2]])},
        {"conversation": ["c1", "c2"]},
        {"messages": pa.array([[{"id": 1}], [{"id": 2}]])},
        {"messages": pa.array([["a"], ["b"]])},
        {"conversations": [7, 8]},
    ],
)
@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]
)
def test_a_column_that_is_a_conversation_by_its_name_alone_is_passed_over(write, columns, type_):
    texts = (
        pa.array(["one", "two"]).cast(type_) if type_ != pa.binary() else pa.array([b"one", b"two"])
    )
    path = write(pa.table({**columns, "text": texts}))
    assert documents_of(path) == [Document(text="one"), Document(text="two")]


def test_a_row_without_a_conversation_is_its_text(write):
    path = write(
        pa.table({"messages": pa.array([CHAT, None, []], CHATS), "text": ["no", "a text", None]})
    )
    corpus, documents = read_corpus(path)
    assert documents == [Document(messages=MESSAGES), Document(text="a text")]
    assert corpus.counts.skipped == {"empty": 1}


def test_rows_are_the_documents_that_json_of_the_same_records_has(write, tmp_path):
    records = [
        {"messages": CHAT, "text": "x", "data": None},
        {"messages": None, "text": "only text", "data": None},
        {"messages": None, "text": None, "data": ["Hi", "Hello"]},
    ]
    schema = pa.schema({"messages": CHATS, "text": pa.string(), "data": pa.list_(pa.string())})
    lines = tmp_path / "a.jsonl"
    lines.write_text("\n".join(map(json.dumps, records)))
    assert documents_of(write(pa.Table.from_pylist(records, schema))) == documents_of(lines)


def test_a_table_without_a_document_says_of_which_types_its_columns_are(write):
    path = write(pa.table({"messages": pa.array([[{"id": 1}]]), "n": [1]}))
    expected = (
        r"fields 'messages', 'n'; 'messages' is list<.*id: int64>>\), expected text, or .*--field"
        r" names another"
    )
    with pytest.raises(CorpusFormatError, match=expected):
        documents_of(path)


def test_columns_that_have_one_name_are_no_documents(write, tmp_path):
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(CorpusFormatError, match="table without a known column"):
        documents_of(write(table))


def test_large_lists_and_lists_of_a_size_are_conversations(write):
    for kind in (pa.large_list(TURN), pa.list_(TURN, 2)):
        path = write(pa.table({"messages": pa.array([CHAT], kind)}))
        assert documents_of(path) == [Document(messages=MESSAGES)]


# --- JSON in columns ------------------------------------------------------------------------------


def as_json(values):
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.json_())


def test_a_column_of_json_is_decoded(write):
    turns = [
        {"role": "user", "content": 'line one\nline "two"'},
        {"role": "assistant", "content": "a", "name": "x"},
    ]
    path = write(pa.table({"messages": as_json([turns, None]), "text": ["no", "yes"]}))
    first, second = documents_of(path)
    assert first.messages[0] == ("user", 'line one\nline "two"')
    assert first.messages[1][:2] == ("assistant", "a")
    assert second == Document(text="yes")


@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_json_inside_a_column_is_decoded(write, make):
    contents = as_json(['line one\nline "two"', [{"type": "text", "text": "part"}], None])
    roles = pa.array(["user", "assistant", "user"])
    turns = pa.StructArray.from_arrays([roles, contents], ["role", "content"])
    offsets = pa.array([0, 2, 3], pa.int32() if make is pa.list_ else pa.int64())
    kind = pa.ListArray if make is pa.list_ else pa.LargeListArray
    path = write(pa.table({"messages": kind.from_arrays(offsets, turns)}))
    (document,) = documents_of(path)
    assert document.messages == (("user", 'line one\nline "two"'), ("assistant", "part"))


def test_a_list_of_json_is_decoded(write):
    path = write(pa.table({"messages": pa.ListArray.from_arrays([0, 2], as_json(CHAT))}))
    assert documents_of(path) == [Document(messages=MESSAGES)]


def test_json_that_the_field_leads_into_is_decoded(write):
    path = write(pa.table({"log": as_json([{"turns": CHAT}])}))
    assert documents_of(path, field="log.turns") == [Document(messages=MESSAGES)]


@pytest.mark.parametrize(
    "answer", ["42", "true", '{"a": 1}', '["x"]', '[{"a": 1}]', "null of JSON", '{"broken']
)
def test_a_text_that_datasets_has_left_as_it_is_stays_a_text(write, answer):
    """`Json` of datasets encodes a text unless it is JSON already."""
    turns = pa.StructArray.from_arrays(
        [pa.array(["assistant"]), pa.array([answer], pa.json_())], ["role", "content"]
    )
    path = write(pa.table({"messages": pa.ListArray.from_arrays([0, 1], turns)}))
    assert documents_of(path) == [Document(messages=(("assistant", answer),))]


def test_json_is_decoded_where_pyarrow_does_not_know_the_type(tmp_path):
    """Releases before 19 have the name of the type in the metadata of the field."""
    field = pa.field("messages", pa.string(), metadata={"ARROW:extension:name": "arrow.json"})
    table = pa.table([pa.array([json.dumps(CHAT)])], schema=pa.schema([field]))
    pq.write_table(table, tmp_path / "a", store_schema=False)
    assert documents_of(write_parquet(tmp_path / "a", table)) == [Document(messages=MESSAGES)]


@pytest.mark.parametrize("name", ["messages", "conversations", "conversation", "data"])
def test_a_conversation_may_be_a_text_of_json(write, tmp_path, name):
    path = write(pa.table({name: [json.dumps(CHAT)]}))
    assert documents_of(path) == [Document(messages=MESSAGES)]
    assert documents_of(path, field=name) == [Document(messages=MESSAGES)]
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps({name: json.dumps(CHAT)}) + "\n")
    assert documents_of(lines) == [Document(messages=MESSAGES)]
    lines.write_text(json.dumps({"log": {name: json.dumps(CHAT)}}) + "\n")
    assert documents_of(lines, field=f"log.{name}") == [Document(messages=MESSAGES)]


@pytest.mark.parametrize(
    "text", ["[1, 2]", "[", '["a"]', "[" * 100_000, '[{"other": 1}]', "no list"]
)
def test_another_text_where_a_conversation_may_be_is_no_conversation(write, text):
    assert documents_of(write(pa.table({"messages": [text], "text": ["x"]}))) == [
        Document(text="x")
    ]


def test_a_text_that_is_a_conversation_in_json_is_stored_as_it_is(write):
    """It may be a file of source code or data."""
    source = json.dumps(CHAT)
    path = write(pa.table({"content": [source]}))
    assert documents_of(path) == documents_of(path, field="content") == [Document(text=source)]


# --- Bad rows -------------------------------------------------------------------------------------


def test_turns_that_are_not_utf8_are_dropped_and_counted(write):
    raw = pa.array([b"x", b"\xff", b"y"], pa.binary())
    contents = pa.StringArray.from_buffers(3, *raw.buffers()[1:])
    turns = pa.StructArray.from_arrays([pa.array(["user"] * 3), contents], ["role", "content"])
    path = write(pa.table({"messages": pa.ListArray.from_arrays([0, 1, 2, 3], turns)}))
    # Whose offsets have to be looked at together with texts.
    if open_corpus(CorpusSpec(str(path))).reader == "arrow":
        with pytest.raises(CorpusFormatError, match=r"Arrow file is damaged or truncated .*UTF"):
            documents_of(path)
        return
    corpus, documents = read_corpus(path)
    assert [document.messages[0][1] for document in documents] == ["x", "y"]
    assert corpus.counts.skipped == {"not UTF-8": 1}
    assert corpus.counts.largest["not UTF-8"] == (0, f"{path}:row 1")


def test_a_malformed_row_in_a_directory_is_counted_and_the_next_one_read(write, tmp_path):
    path = write(pa.table({"messages": as_json([CHAT, [{"role": "user", "content": 3}], CHAT])}))
    corpus, documents = read_corpus(tmp_path)
    assert documents == [Document(messages=MESSAGES)] * 2
    assert corpus.counts.skipped == {"malformed record": 1}
    assert corpus.counts.largest["malformed record"][1].startswith(
        f"{path}:row 1: turn 0 of 'messages' is "
    )
    with pytest.raises(CorpusFormatError, match=f"^{path}:row 1: turn 0"):
        documents_of(path)


def test_texts_that_are_not_utf8_are_dropped_and_counted(write):
    raw = pa.array([b"x", b"\xff", b"y"], pa.binary())
    path = write(pa.table({"text": pa.StringArray.from_buffers(3, *raw.buffers()[1:])}))
    corpus, documents = read_corpus(path)
    assert documents == [Document(text="x"), Document(text="y")]
    assert corpus.counts.skipped == {"not UTF-8": 1}


# --- Arrow ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_is_read_batch_by_batch(tmp_path, new, compression):
    path = tmp_path / "a.arrow"
    table = pa.table(
        {"text": [f"text {number}" for number in range(250)], "other": ["x" * 99] * 250}
    )
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    corpus, documents = read_corpus(path)
    assert corpus.reader == "arrow"
    assert [document.text for document in documents] == table["text"].to_pylist()
    assert documents[201].origin == f"{path}:row 201"
    assert corpus.counts.bytes_read == corpus.size


def test_a_stream_whose_writer_did_not_end_it_is_read(tmp_path):
    path = write_arrow_stream(tmp_path / "a", pa.table({"text": ["x"] * 9}))
    data = path.read_bytes()
    end = b"\xff\xff\xff\xff\0\0\0\0"
    assert data.endswith(end)
    path.write_bytes(data.removesuffix(end))
    assert len(documents_of(path)) == 9


@pytest.mark.parametrize("write_table", [write_arrow_file, write_arrow_stream])
def test_a_damaged_arrow_file_is_an_error_or_counted_in_a_directory(tmp_path, write_table):
    path = write_table(
        tmp_path / "a", pa.table({"text": [f"{number}" * 9 for number in range(500)]})
    )
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data[:30], data[:150] + b"\xff" * 60 + data[210:]):
        path.write_bytes(damaged)
        with pytest.raises(
            CorpusFormatError, match=f"^{path}: Arrow file is damaged or truncated"
        ) as error:
            documents_of(path)
        assert "\n" not in str(error.value)
        corpus, documents = read_corpus(tmp_path)
        assert corpus.counts.skipped == {"damaged": 1}
        assert documents == []


def test_a_list_of_row_numbers_is_no_table_of_documents(tmp_path):
    path = write_arrow_stream(
        tmp_path / "cache.arrow", pa.table({"indices": pa.array([1, 2], pa.uint64())})
    )
    with pytest.raises(
        CorpusFormatError, match=r"table of row numbers.*Dataset.save_to_disk writes the rows"
    ):
        open_corpus(CorpusSpec(str(path)))
