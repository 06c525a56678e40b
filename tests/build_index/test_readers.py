"""Each layout of a corpus, compressed or not, and each way in which a file can be bad."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document
from build_index.readers import files, json_records
from build_index.readers import text as text_reader
from rest_store.errors import CorpusFormatError
from tests.shared.corpora import COMPRESSIONS, compressed, read_corpus
from tests.shared.corpora import documents_of as documents

TURNS = ["Hi", "Hello", "Bye", "Good bye"]
CHAT = (("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "Good bye"))
CALLS = '{"tool_calls": [1], "content": null}'
RECORDS = {
    "UltraChat": {"id": "0", "data": TURNS},
    "UltraChat-200k": {
        "prompt": "Hi",
        "prompt_id": "a",
        "messages": [{"role": r, "content": c} for r, c in CHAT],
    },
    "ShareGPT": {
        "conversations": [
            {"from": {"user": "human", "assistant": "gpt"}[r], "value": c} for r, c in CHAT
        ]
    },
    "LMSYS-Chat": {"conversation": [{"content": c, "role": r} for r, c in CHAT], "model": "x"},
    "parts": {
        "messages": [
            {"role": r, "content": [{"type": "text", "text": c}, {"type": "image"}]}
            for r, c in CHAT
        ]
    },
    "The Stack": {"content": "x = 1\n", "lang": "Python", "max_stars_repo_path": "a/b.py"},
    "text": {"text": "x = 1\n", "url": "u"},
}


def expected_document(layout):
    return Document(text="x = 1\n") if layout in ("The Stack", "text") else Document(messages=CHAT)


# --- Layouts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
@pytest.mark.parametrize("layout", RECORDS)
@pytest.mark.parametrize("form", ["jsonl", "list", "values", "pretty"])
def test_json_of_each_layout_is_recognised_by_content(tmp_path, layout, form, suffix):
    record = RECORDS[layout]
    text = {
        "jsonl": "".join(json.dumps(record) + "\n" for _ in range(3)),
        "list": json.dumps([record] * 3, indent=1),
        "values": "\ufeff" + "\n".join(json.dumps(record, indent=2) for _ in range(3)),
        "pretty": json.dumps(record, indent=2) + "\n",
    }[form]
    path = tmp_path / "named_by_nobody"
    path.write_bytes(compressed(text.encode(), suffix))
    corpus, documents = read_corpus(path)
    assert corpus.reader == ("jsonl" if form == "jsonl" else "json")
    assert documents == [expected_document(layout)] * (1 if form == "pretty" else 3)
    assert corpus.counts.bytes_read == corpus.size == path.stat().st_size


@pytest.mark.parametrize("layout", RECORDS.keys() - {"parts"})
def test_parquet_of_each_layout_is_recognised_by_content(tmp_path, layout):
    path = tmp_path / "shard"
    pq.write_table(pa.Table.from_pylist([RECORDS[layout]] * 150), path, row_group_size=70)
    corpus, documents = read_corpus(path)
    assert corpus.reader == "parquet"
    assert documents == [expected_document(layout)] * 150
    assert corpus.counts.bytes_read == corpus.size


@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
@pytest.mark.parametrize(
    "text", ["x = 1\r\n", "{ braces }", "[section]\nkey = 1\n", "[1, 2]", '"text"', "naïve"]
)
def test_text_is_one_document_as_it_is(tmp_path, text, suffix):
    path = tmp_path / "notes"
    path.write_bytes(compressed(text.encode(), suffix))
    corpus, documents = read_corpus(path)
    assert documents == [Document(text=text)]
    assert corpus.reader == "text"
    assert documents[0].origin == str(path)


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfx")
    assert documents(path) == [Document(text="x")]
    path.write_bytes(b'\xef\xbb\xbf{"text": "x"}\n{"text": "y"}\n')
    assert documents(path) == [Document(text="x"), Document(text="y")]


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_all_members_of_a_compressed_file_are_read(tmp_path, suffix):
    path = tmp_path / "a.jsonl"
    parts = [
        compressed(json.dumps({"text": f"part {number}"}).encode() + b"\n", suffix)
        for number in range(3)
    ]
    padding = {".gz": b"\0" * 512, ".xz": b"\0" * 8}.get(suffix, b"")
    path.write_bytes(b"".join(parts) + padding)
    assert [document.text for document in documents(path)] == ["part 0", "part 1", "part 2"]
    path.write_bytes(padding.join(parts) if suffix == ".xz" else b"".join(parts))
    assert len(documents(path)) == 3


SKIPPABLE = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"


def test_zstd_frames_without_content_size_and_skippable_frames_are_read(tmp_path):
    path = tmp_path / "a.zst"
    compressor = zstandard.ZstdCompressor().compressobj()
    frame = compressor.compress(b"x = 1\n" * 100_000) + compressor.flush()
    path.write_bytes(frame + SKIPPABLE + frame)
    assert documents(path) == [Document(text="x = 1\n" * 200_000)]


@pytest.mark.parametrize("suffix", [".zst", ".lz4"])
@pytest.mark.parametrize("number", [1, 3])
def test_skippable_frames_may_come_first(tmp_path, suffix, number):
    """`pzstd` writes one into each file, with the size of the next frame."""
    data = json.dumps({"text": "x" * 1000}).encode()
    frames = [bytes([0x50 + kind]) + SKIPPABLE[1:] for kind in range(number)]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(b"".join(frames) + compressed(data, suffix))
    assert documents(path) == documents(tmp_path) == [Document(text="x" * 1000)]


@pytest.mark.parametrize("tail", [b"", b"\x50\x2a\x4d\x18\xff\xff\xff\xff"])
def test_skippable_frames_alone_are_nothing(tmp_path, tail):
    (tmp_path / "a.zst").write_bytes(SKIPPABLE * 2 + tail)
    corpus, documents = read_corpus(tmp_path)
    assert documents == []
    assert sum(corpus.counts.skipped.values()) == 1


@pytest.mark.skipif(shutil.which("pzstd") is None, reason="reads what pzstd writes")
def test_files_of_pzstd_are_read(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(200))
    )
    subprocess.run(["pzstd", "-q", lines, "-o", tmp_path / "b.jsonl.zst"], check=True)
    assert documents(tmp_path / "b.jsonl.zst") == documents(lines)


def test_xz_that_needs_too_much_memory_is_an_error(tmp_path):
    path = tmp_path / "a.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 26}]
    path.write_bytes(lzma.compress(b"x = 1", filters=filters))
    assert documents(path) == [Document(text="x = 1")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_XZ_MEMORY", 1 << 20)
        with pytest.raises(
            CorpusFormatError, match=r"compressed file is damaged .* \(Memory usage limit"
        ):
            documents(path)


def test_origins_name_file_and_line_or_row(tmp_path):
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert [document.origin for document in documents(lines)] == [f"{lines}:1", f"{lines}:3"]
    values = tmp_path / "a.json"
    values.write_text('[\n{"text":\n "a"}\n,{"text": "b"}, {"text": "c"}]\n')
    assert [document.origin for document in documents(values)] == [
        f"{values}:2",
        f"{values}:4",
        f"{values}:4",
    ]
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": ["a", "b"], "path": ["x.py", None]}), table)
    assert [document.origin for document in documents(table)] == [
        f"{table}:row 0",
        f"{table}:row 1",
    ]


# --- Fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "field", "expected"),
    [
        ({"text": "no", "code": "yes"}, "code", Document(text="yes")),
        ({"a": {"b": ["no", "yes"]}}, "a.b.1", Document(text="yes")),
        ({"a.b": "yes", "a": {"b": "no"}}, "a.b", Document(text="yes")),
        ({"chat": {"turns": TURNS}}, "chat.turns", Document(messages=CHAT)),
        (
            {"chat": [{"role": "a", "content": None, "tool_calls": [1]}]},
            "chat",
            Document(messages=(("a", "", CALLS),)),
        ),
        (
            {"chat": [{"role": "tool", "content": None}, {"role": "user", "content": "x"}]},
            "chat",
            None,
        ),
    ],
)
def test_any_field_can_be_read(tmp_path, record, field, expected):
    expected = expected or Document(messages=(("tool", ""), ("user", "x")))
    path = tmp_path / "a"
    path.write_text(json.dumps(record) + "\n" + json.dumps(record))
    assert documents(path, field=field) == [expected, expected]


def test_a_field_inside_a_column_can_be_read(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"meta": [{"code": "x", "n": 1}, {"code": "y", "n": 2}], "text": ["no", "no"]}),
        path,
    )
    assert documents(path, field="meta.code") == [Document(text="x"), Document(text="y")]


def test_empty_documents_are_dropped_and_counted(tmp_path):
    records = [{"text": "x"}, {"text": ""}, {"text": " \n\t"}, {"text": None}, {"messages": []}]
    records += [{"messages": [{"role": "user", "content": " "}]}, {"data": ["", ""]}]
    path = tmp_path / "a"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    corpus, documents = read_corpus(path)
    assert documents == [Document(text="x")]
    assert corpus.counts.skipped == {"empty": 6}


def test_lone_surrogates_in_json_are_replaced(tmp_path):
    path = tmp_path / "a"
    path.write_text('{"text": "a\\ud800b\\ud83d\\ude00"}\n{"data": ["\\udc00", "b"]}\n')
    first, second = documents(path)
    assert first.text == "a\ufffdb\U0001f600"
    assert second.messages == (("user", "\ufffd"), ("assistant", "b"))


def test_rows_that_are_not_utf8_are_dropped_and_counted(tmp_path):
    path = tmp_path / "a.parquet"
    data = [b"x", b"\xff", b"y"]
    pq.write_table(pa.table({"content": pa.array(data, pa.binary())}), path)
    corpus = open_corpus(CorpusSpec(str(path)))
    assert [document.text for document in corpus] == ["x", "y"]
    assert corpus.provenance()["skipped"] == {"not UTF-8": 1}
    # Says UTF-8, and is not.
    text = pa.StringArray.from_buffers(3, *pa.array(data, pa.binary()).buffers()[1:])
    pq.write_table(pa.table({"content": text}), path)
    assert [document.text for document in corpus] == ["x", "y"]
    assert corpus.provenance()["skipped"] == {"not UTF-8": 1}


# --- Memory ------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 7, 1 << 18])
def test_json_values_do_not_depend_on_where_chunks_end(tmp_path, chunk, monkeypatch):
    records = [
        {"text": f'naïve {number} \\ " \u2028 {"x" * number}', "n": [1.5e3, None, True]}
        for number in range(20)
    ]
    path = tmp_path / "a.json"
    monkeypatch.setattr(json_records, "_CHUNK", chunk)
    for text in (
        json.dumps(records, indent=3),
        " \n".join(map(json.dumps, records)),
        json.dumps(records),
    ):
        path.write_text(text)
        assert [document.text for document in documents(path)] == [r["text"] for r in records]


def test_a_large_text_file_is_read_in_pieces_that_end_with_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(text_reader, "PIECE_BYTES", 100)
    path = tmp_path / "a.txt"
    text = "".join(f"line {number} naïve\n" for number in range(50))
    path.write_text(text)
    corpus, parts = read_corpus(path)
    assert "".join(part.text for part in parts) == text
    assert all(len(part.text.encode()) <= 100 and part.text.endswith("\n") for part in parts)
    assert [part.origin for part in parts[:2]] == [f"{path} (part 1)", f"{path} (part 2)"]
    assert corpus.counts.files == 1
    path.write_text("é" * 50)  # 100 bytes: not larger than a piece
    assert documents(path) == [Document(text="é" * 50)]
    path.write_text("x" + "é" * 100)  # no line end: cut between characters
    parts = documents(path)
    assert "".join(part.text for part in parts) == "x" + "é" * 100
    assert len(parts[0].text) == 50


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "json"])
def test_memory_does_not_grow_with_the_file(tmp_path, form):
    path = tmp_path / f"a.{form}"
    lines = [json.dumps({"text": f"{number} " * 2000}) for number in range(2000)]
    data = ("[" + ",\n".join(lines) + "]" if form == "json" else "\n".join(lines)).encode()
    path.write_bytes(compressed(data, "." + form.rpartition(".")[2]))
    assert len(data) > 15_000_000
    reading = iter(open_corpus(CorpusSpec(str(path))))
    next(reading)
    tracemalloc.start()
    try:
        assert sum(1 for _ in reading) == 1999
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_a_parquet_file_of_one_row_group(tmp_path):
    path = tmp_path / "a.parquet"
    noise = os.urandom(5000).hex()
    texts = [f"{number}{noise[number % 5000 :]}" for number in range(6000)]
    pq.write_table(
        pa.table({"content": texts}),
        path,
        row_group_size=6000,
        compression="none",
        use_dictionary=False,
    )
    size = path.stat().st_size
    assert size > 25_000_000
    before = pa.total_allocated_bytes()
    largest = 0
    for _ in open_corpus(CorpusSpec(str(path))):
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert 0 < largest < size / 3
