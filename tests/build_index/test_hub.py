"""Data sets of the hub: addresses, streaming through `datasets` from local files, and what can go wrong."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document
from build_index.readers import hub
from build_index.readers.hub import hub_arguments
from rest_store.errors import CorpusError, CorpusFormatError, CorpusNotFoundError
from tests.shared.corpora import CHAT, MESSAGES, read_corpus


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://a/b", ("a/b", None, None, None)),
        ("hf://a/b@train_sft", ("a/b", None, None, "train_sft")),
        ("hf://a/b/main", ("a/b", "main", None, None)),
        ("hf://a/b/main@test", ("a/b", "main", None, "test")),
        ("hf://bigcode/the-stack/data/python@train", ("bigcode/the-stack", None, "data/python", "train")),
    ],
)
def test_addresses_of_the_hub_are_read(address, expected):
    repository, options = hub_arguments(address)
    assert (repository, options["name"], options["data_dir"], options["split"]) == expected


@pytest.mark.parametrize(
    "address", ["hf://", "hf://a", "hf://a/", "hf://a/b@", "hf://a/b/@x", "hf://a/b@x@y", "hf:///b"]
)
def test_malformed_addresses_are_refused(address):
    with pytest.raises(CorpusError, match=f"^{address}: address is malformed, expected hf://owner/name"):
        open_corpus(CorpusSpec(address))


@pytest.fixture
def local_hub(tmp_path, monkeypatch):
    """The hub as a local directory: `datasets` itself streams from it."""
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": "Hi", "messages": MESSAGES}] * 3
    for split, number in (("train_sft", 3), ("test_sft", 1)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:number]))
    (tmp_path / "stack/data/python").mkdir(parents=True)
    table = pa.table({"content": ["x = 1", "int x;", ""], "lang": ["Python", "C", "Python"]})
    pq.write_table(table, tmp_path / "stack/data/python/train-00000.parquet")

    def load_dataset(address):
        repository, options = hub_arguments(address)
        if repository == "owner/chat":
            files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train_sft", "test_sft")}
            return datasets.load_dataset("json", data_files=files, split=options["split"], streaming=True)
        path = str(tmp_path / repository.partition("/")[2])
        return datasets.load_dataset(path, streaming=True, **options)

    monkeypatch.setattr(hub, "load_dataset", load_dataset)


@pytest.mark.usefixtures("local_hub")
def test_a_data_set_of_the_hub_is_streamed():
    corpus, documents = read_corpus("hf://owner/chat@train_sft")
    assert documents == [CHAT] * 3
    assert documents[2].origin == "hf://owner/chat@train_sft:row 2"
    assert (corpus.reader, corpus.size_hint, corpus.bytes_read) == ("hub", None, 3 * len("HiHello"))
    corpus, documents = read_corpus("hf://owner/stack/data/python", langs=("python",))
    assert documents == [Document(text="x = 1")]
    assert corpus.provenance()["skipped"] == {"empty": 1, "language": 1}


@pytest.mark.usefixtures("local_hub")
def test_a_data_set_without_a_split_named_train_asks_for_one():
    with pytest.raises(CorpusNotFoundError, match=r"the split is not set, .* expected one of .*@train_sft, @test_sft"):
        read_corpus("hf://owner/chat")


@pytest.mark.usefixtures("local_hub")
@pytest.mark.parametrize("address", ["hf://owner/chat@absent", "hf://owner/absent", "hf://owner/stack/absent@train"])
def test_a_data_set_or_split_that_does_not_exist_is_refused_in_one_line(address):
    with pytest.raises(CorpusNotFoundError, match=f"^{address}: data set is not found") as error:
        read_corpus(address)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("local_hub")
def test_rows_of_another_layout_are_refused():
    with pytest.raises(CorpusFormatError, match=r"^hf://owner/stack/data/python:row 0: field 'code' is absent"):
        read_corpus("hf://owner/stack/data/python", field="code")


def test_failures_of_the_network_are_named(monkeypatch):
    def refuse(address):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(hub, "load_dataset", refuse)
    with pytest.raises(CorpusError, match=r"^hf://a/b:row 0: the data set cannot be read \(no route\)"):
        read_corpus("hf://a/b")

    def break_off(address):
        yield {"text": "x"}
        raise TimeoutError("connection lost")

    monkeypatch.setattr(hub, "load_dataset", break_off)
    documents = iter(open_corpus(CorpusSpec("hf://a/b")))
    assert next(documents) == Document(text="x")
    with pytest.raises(CorpusError, match=r"^hf://a/b:row 1: the data set cannot be read \(connection lost\)"):
        next(documents)


def test_datasets_is_called_as_documented(monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **options: calls.append((args, options)) or [{"text": "x"}]
    )
    monkeypatch.setattr(hub, "hub_failure", lambda name, kind: None)
    assert read_corpus("hf://a/b/main@test")[1] == [Document(text="x")]
    assert calls == [(("a/b",), {"name": "main", "data_dir": None, "split": "test", "streaming": True})]


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr(hub, "hub_failure", lambda name, kind: f"{kind} {name}: no route")
    with pytest.raises(
        CorpusError, match=r"^hf://a/b: the Hugging Face hub cannot be reached \(dataset a/b: no route\)"
    ):
        read_corpus("hf://a/b")


def test_datasets_missing_or_a_reader_that_is_not_for_the_hub_is_refused(monkeypatch):
    with pytest.raises(CorpusError, match="reader is 'parquet', expected 'chat' or no reader"):
        open_corpus(CorpusSpec("hf://a/b", reader="parquet"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        CorpusError, match=r"hf://a/b: the package 'datasets' cannot be .* pip install 'rest-store\[build\]'"
    ):
        read_corpus("hf://a/b")
