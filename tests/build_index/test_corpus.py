"""Corpora: counts, limits, options that contradict each other, and files read one by one."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import CorpusCounts
from tests.shared.corpora import read_corpus, write_files


def test_max_documents_stops_and_iterating_again_starts_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"text": "x" * (number % 3)}) + "\n" for number in range(100))
    )
    corpus, documents = read_corpus(path, max_documents=5)
    assert len(documents) == 5
    first = corpus.provenance()
    assert (first["documents"], first["skipped"]["empty"], first["max_documents"]) == (5, 3, 5)
    assert list(corpus) == documents
    assert corpus.provenance() == first
    assert len(read_corpus(path, max_documents=1000)[1]) == 66


def test_bytes_read_grow_while_reading(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": ["x"] * 1000}), path)
    corpus = open_corpus(CorpusSpec(str(path)))
    seen = [corpus.counts.bytes_read for _ in corpus]
    assert seen == sorted(seen)
    assert 0 < seen[500] < corpus.size == corpus.counts.bytes_read


def test_provenance_is_json_and_holds_only_options_that_are_set(tmp_path):
    write_files(tmp_path, {"a.py": "x"})
    corpus, _ = read_corpus(tmp_path)
    expected = {
        "corpus": str(tmp_path),
        "reader": "tree",
        "documents": 1,
        "conversations": 0,
        "files": 1,
        "bytes": 1,
    }
    assert corpus.provenance() == {**expected, "skipped": {}}
    options = {"include": ["*.py"], "exclude": ["b"], "max_documents": 3}
    corpus, _ = read_corpus(tmp_path, **options)
    assert json.loads(json.dumps(corpus.provenance())) == {**expected, "skipped": {}, **options}


def test_an_abandoned_iteration_closes_its_file(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "x"}\n' * 10))
    documents = iter(open_corpus(CorpusSpec(str(path))))
    next(documents)
    # The descriptor that lists the directory is gone when it is looked at: its link is broken.
    entry = next(
        one
        for one in Path("/proc/self/fd").iterdir()
        if one.is_symlink() and one.readlink() == path
    )
    documents.close()
    assert not entry.is_symlink()


def test_a_corpus_may_be_read_from_another_directory(tmp_path, monkeypatch):
    write_files(tmp_path, {"tree/a.txt": "a"})
    monkeypatch.chdir(tmp_path)
    corpora = [open_corpus(CorpusSpec(path)) for path in ("tree", "tree/a.txt")]
    monkeypatch.chdir("/")
    assert [[document.text for document in corpus] for corpus in corpora] == [["a"], ["a"]]


def test_a_corpus_read_file_by_file_elsewhere_is_the_same(tmp_path):
    table = pa.table({"content": ["x = 1", "", "y = 1"], "lang": ["Python", "Python", "C"]})
    write_files(
        tmp_path,
        {
            "b.jsonl": '{"text": "x", "lang": "python"}\n',
            "a/c.txt": "c",
            "a/d.png": b"\0",
            "e.md": "# E",
        },
    )
    pq.write_table(table, tmp_path / "a/train.parquet")
    for options in ({}, {"field": "content"}, {"include": ("*.parquet", "*.png", "c.txt")}):
        corpus, expected = read_corpus(tmp_path, **options)
        again = pickle.loads(pickle.dumps(open_corpus(corpus.spec)))
        again.counts = CorpusCounts()
        files = list(again.files(again.counts))
        documents = {}
        for file in reversed(files):  # in any order
            counts = CorpusCounts()
            documents[file] = list(again.documents(pickle.loads(pickle.dumps(file)), counts))
            again.counts.add(pickle.loads(pickle.dumps(counts)))
        assert [document for file in files for document in documents[file]] == expected
        assert again.provenance() == corpus.provenance()
        assert again.counts == corpus.counts
