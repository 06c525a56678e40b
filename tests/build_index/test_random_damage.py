"""A damaged file of a directory is counted, and one that is named raises an error of ours."""

from __future__ import annotations

import io
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from rest_store.errors import CorpusError
from tests.build_index.test_containers import tar, zipped
from tests.build_index.test_json_documents import NOTEBOOK, SWE_AGENT
from tests.build_index.test_separated_values import TEXTS, write_table
from tests.shared.corpora import COMPRESSIONS, compressed

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
LINES = "".join(
    json.dumps({"text": f"text {number}", "messages": CHAT}) + "\n" for number in range(30)
).encode()
PLAIN = pa.table({"messages": [CHAT] * 30, "text": [f"text {number}" for number in range(30)]})
EXTENDED = pa.table(
    {
        "messages": pa.array([json.dumps(CHAT)] * 30, pa.json_()),
        "text": pa.array(["x"] * 30).dictionary_encode(),
    }
)


def parquet(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def arrow(table: pa.Table, new, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=10)
    return sink.getvalue()


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("database") / "a.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (id, text)")
        rows = [(number, f"row {number} " * 20) for number in range(200)]
        connection.executemany("INSERT INTO notes VALUES (?, ?)", rows)
        connection.commit()
    members = {"a.py": b"x" * 700, "b.jsonl": LINES, "c.parquet": parquet(PLAIN)}
    return {
        "a.parquet": parquet(PLAIN),
        "b.parquet": parquet(EXTENDED, row_group_size=7, compression="zstd"),
        "a.arrow": arrow(PLAIN, pa.ipc.new_stream),
        "b.arrow": arrow(EXTENDED, pa.ipc.new_stream, "zstd"),
        "c.arrow": arrow(PLAIN, pa.ipc.new_file),
        "d.arrow": arrow(EXTENDED, pa.ipc.new_file, "lz4"),
        "a.jsonl": LINES,
        "a.json": json.dumps([{"text": "x"}] * 9).encode(),
        "a.ipynb": json.dumps(NOTEBOOK, indent=1).encode(),
        "a.traj": json.dumps(SWE_AGENT).encode(),
        "a.csv": write_table(TEXTS),
        "a.tar": tar(members),
        "a.tar.gz": tar(members, "gz"),
        "a.zip": zipped(members),
        "a.db": path.read_bytes(),
        **{f"b.jsonl{suffix}": compressed(LINES, suffix) for suffix in COMPRESSIONS},
    }


def damaged(source: random.Random, data: bytes) -> bytes:
    """The data with bytes that are changed, left out or put in, or cut off."""
    changed = bytearray(data)
    for _ in range(source.choice([1, 1, 2, 5, 20])):
        place = source.randrange(max(1, len(changed)))
        kind = source.choice(["change", "change", "drop", "insert", "extreme", "cut"])
        if kind == "change":
            changed[place : place + 1] = source.randbytes(1)
        elif kind == "drop":
            del changed[place : place + source.choice([1, 4, 50])]
        elif kind == "insert":
            changed[place:place] = source.randbytes(source.choice([1, 4, 9]))
        elif kind == "extreme":
            changed[place : place + 4] = source.choice(
                [b"\xff" * 4, b"\0\0\0\x80", b"\0" * 4, b"\xff\xff\xff\x7f"]
            )
        else:
            del changed[place:]
    return bytes(changed)


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_counted_in_a_directory_and_an_error_of_a_named_file(tmp_path, whole_files, seed):
    source = random.Random(seed)
    for name, data in whole_files.items():
        path = Path(tmp_path / name)
        path.write_bytes(damaged(source, data))
        for spec in (CorpusSpec(str(tmp_path), include=(name,)), CorpusSpec(str(tmp_path))):
            corpus = open_corpus(spec)
            corpus.held_bytes = 1 << 26
            list(corpus)  # no error
            assert corpus.counts.bytes_read == path.stat().st_size
        try:
            list(open_corpus(CorpusSpec(str(path))))
        except CorpusError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - there may be none
        path.unlink()


def test_undamaged_they_are_read(tmp_path, whole_files):
    for name, data in whole_files.items():
        path = Path(tmp_path / name)
        path.write_bytes(data)
        corpus = open_corpus(CorpusSpec(str(path)))
        assert len(list(corpus)) > 0
        assert corpus.counts.lost_share() == 0
