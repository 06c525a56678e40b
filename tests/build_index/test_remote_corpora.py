"""Corpora are read from a real S3 server that breaks connections, and faults are named."""

from __future__ import annotations

import json
import pickle
import random
import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from rest_store.errors import CorpusError, CorpusNotFoundError, MissingExtraError
from rest_store.loading import remote_files
from tests.shared.builds import documents
from tests.shared.corpora import read_corpus, write_files
from tests.shared.object_store import BLOCK, forget_connections, upload

pytestmark = pytest.mark.slow


def parquet(**columns):
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns), sink, row_group_size=40, data_page_size=2000, compression="zstd"
    )
    return sink.getvalue().to_pybytes()


STATE = {
    "_data_files": [{"filename": "dataset.arrow"}],
    "_indices_data_files": [{"filename": "indices.arrow"}],
}


def arrow(**columns):
    sink = pa.BufferOutputStream()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def stack(number, **others):
    """A parquet file of The Stack's layout."""
    return parquet(
        hexsha=[f"{row:040x}" for row in range(number)],
        content=[
            f"def f{row}():\n    return {row * 7919}\n" * (1 + row % 9) for row in range(number)
        ],
        max_stars_repo_path=[f"src/f{row}.py" for row in range(number)],
        lang=["Python" if row % 3 else "C" for row in range(number)],
        **others,
    )


def tree():
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents(120))
    return {
        "data/README.md": "# About\n",
        "data/python/train-00000.parquet": stack(150),
        "data/python/train-00001.parquet": stack(30),
        "data/chat/b.jsonl.zst": zstandard.compress(lines.encode()),
        "data/chat/a.json": json.dumps([{"messages": [{"role": "user", "content": "Hi"}]}] * 2),
        "data/z/numbers.parquet": parquet(n=[1, 2]),
        "data/z/image.png": b"\x89PNG\0\0",
        "data/z/.git/config": "x",
        "data/z.txt": "text",
    }


def facts(corpus):
    provenance = {
        name: value for name, value in corpus.provenance().items() if name not in ("corpus", "etag")
    }
    return provenance, corpus.size, corpus.counts.bytes_read


# --- The same as a local corpus -------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"field": "content", "exclude": ("chat",)},
        {"include": ("*.parquet", "*.md"), "exclude": ("z",)},
        {"max_documents": 170},
    ],
)
def test_a_prefix_is_read_as_a_directory_is(s3, tmp_path, options):
    write_files(tmp_path, tree())
    upload(tree())
    local, expected = read_corpus(tmp_path / "data", **options)
    # For other processes.
    remote = pickle.loads(pickle.dumps(open_corpus(CorpusSpec("s3://corpus/data", **options))))
    documents = list(remote)
    assert documents == expected
    assert [document.origin.removeprefix("s3://corpus") for document in documents] == [
        document.origin.removeprefix(str(tmp_path)) for document in expected
    ]
    assert facts(remote) == facts(local)
    assert remote.provenance()["corpus"] == "s3://corpus/data"


@pytest.mark.parametrize(
    "name", ["python/train-00000.parquet", "chat/b.jsonl.zst", "chat/a.json", "README.md"]
)
def test_a_file_is_read_as_a_local_one_and_its_etag_is_recorded(s3, tmp_path, name):
    write_files(tmp_path, tree())
    upload(tree())
    local, expected = read_corpus(tmp_path / "data" / name)
    remote, documents = read_corpus(f"s3://corpus/data/{name}")
    assert documents == expected
    assert facts(remote) == facts(local)
    etag = fsspec.filesystem("s3").info(f"corpus/data/{name}")["ETag"]
    assert remote.provenance()["etag"] == etag.strip('"')
    assert documents[0].origin.startswith(f"s3://corpus/data/{name}")


def test_a_saved_data_set_is_read_as_a_local_one(s3, tmp_path):
    """The set is of an old release, which stores the numbers of the rows that belong to it."""
    files = {
        "state.json": json.dumps(STATE),
        "dataset_info.json": "{}",
        "cache-1.arrow": arrow(text=["no"]),
    }
    files |= {
        "dataset.arrow": arrow(text=[f"text {row}" for row in range(90)]),
        "indices.arrow": arrow(indices=[80, 5]),
    }
    write_files(tmp_path / "train", files)
    upload({f"train/{name}": data for name, data in files.items()})
    local, expected = read_corpus(tmp_path)
    remote, documents = read_corpus("s3://corpus")
    assert [document.text for document in documents] == ["text 5", "text 80"]
    assert documents == expected
    assert remote.counts.skipped == local.counts.skipped


def test_what_vanishes_meanwhile_is_counted(s3):
    upload({"t/a.txt": "a", "t/b.txt": "b", "t/c.txt": "c", "t/d/e.txt": "e"})
    corpus = open_corpus(CorpusSpec("s3://corpus/t"))
    documents = iter(corpus)
    assert next(documents).text == "a"
    fsspec.filesystem("s3").rm(["corpus/t/b.txt", "corpus/t/d/e.txt"])
    assert [document.text for document in documents] == ["c"]
    assert corpus.counts.skipped == {"vanished": 2}


def test_of_a_parquet_file_only_the_needed_columns_are_fetched(s3):
    data = stack(150, unused=[random.Random(row).randbytes(20_000) for row in range(150)])
    upload({"a.parquet": data})
    s3.requests.clear()
    assert len(read_corpus("s3://corpus/a.parquet")[1]) == 150
    assert sum(size for method, _, size in s3.requests if method == "GET") < len(data) / 3
    assert max(size for _, _, size in s3.requests) <= BLOCK


# --- Connections that break -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data/python/train-00000.parquet", "data/chat/b.jsonl.zst"])
def test_a_connection_that_always_breaks_is_one_clear_error(s3, name):
    upload(tree())
    corpus = open_corpus(CorpusSpec(f"s3://corpus/{name}"))
    s3.breaks = 1 << 30
    with pytest.raises(
        CorpusError, match=rf"^s3://corpus/{name}: .* \(.*Response payload is not completed.*\)"
    ) as error:
        list(corpus)
    assert "\n" not in str(error.value)
    s3.breaks = 0
    assert list(corpus) == read_corpus(f"s3://corpus/{name}")[1]


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(s3):
    lines = "".join(json.dumps({"text": f"{row} " * 1000}) + "\n" for row in range(400))
    upload({"a.jsonl": lines})
    documents = iter(open_corpus(CorpusSpec("s3://corpus/a.jsonl")))
    next(documents)
    upload({"a.jsonl": lines.upper()})
    with pytest.raises(CorpusError, match=r"^s3://corpus/a.jsonl: the corpus cannot be read"):
        list(documents)


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("s3://corpus/absent.txt", CorpusNotFoundError, "corpus is absent"),
        (
            "s3://absent/a.txt",
            CorpusNotFoundError,
            r"corpus is absent \(.*The specified bucket does not exist\)",
        ),
        ("s3://", CorpusError, "address is malformed, expected s3://NAME/"),
        (
            "hf://owner/name",
            CorpusError,
            "address is malformed, expected hf://datasets/OWNER/NAME/",
        ),
        (
            "hf://datasets/owner",
            CorpusError,
            "address is malformed, expected hf://datasets/OWNER/NAME/",
        ),
        (
            "ftp://host/a.txt",
            CorpusError,
            "scheme is 'ftp', expected s3, gs, hf, or a path: download it first",
        ),
    ],
)
def test_what_is_not_there_is_one_named_error_at_once(s3, address, kind, message):
    upload({"t/a.txt": "x"})
    s3.requests.clear()
    with pytest.raises(kind, match=message) as error:
        list(open_corpus(CorpusSpec(address)))
    assert str(error.value).startswith(address.rstrip("/"))
    assert "\n" not in str(error.value)
    assert type(error.value) is kind


def test_missing_credentials_are_named(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget_connections()
    with pytest.raises(
        CorpusError, match=r"^s3://corpus/a.txt: the corpus cannot be read \(Unable to locate cred"
    ):
        open_corpus(CorpusSpec("s3://corpus/a.txt"))
    forget_connections()


@pytest.mark.parametrize(("address", "package"), [("s3://b/k", "s3fs"), ("gs://b/k", "gcsfs")])
def test_a_missing_package_names_the_extra(monkeypatch, address, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingExtraError, match=rf"^{address}: the package '{package}' .* 'rest-store\[remote\]'"
    ):
        open_corpus(CorpusSpec(address))


def test_the_hub_that_cannot_be_reached_is_said_at_once(monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(remote_files, "hub_failure", lambda name, kind: f"{kind} {name}: no route")
    with pytest.raises(
        CorpusError,
        match=r"b/x.parquet: the Hugging Face hub cannot be reached \(dataset a/b: no r",
    ):
        open_corpus(CorpusSpec("hf://datasets/a/b/x.parquet"))
