"""Whole builds: documents, duplicates, the ends of shards, and equal bytes for equal input."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import rest_store
from build_index import builder, shard_sorter, slices, stages, workers
from build_index.builder import BuildOptions, build
from build_index.corpus_spec import CorpusSpec
from build_index.tokenization import load_in_process, load_tokenizer
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import Manifest
from rest_store.errors import CorpusError, MemoryBudgetError, TokenizerLoadError
from tests.shared.builds import (
    build_quick,
    contents,
    documents,
    leftovers,
    options,
    run_build,
    stored_documents,
    write_jsonl,
)
from tests.shared.corpora import write_files
from tests.shared.models import CHATML, smollm2_gguf, word_level, word_piece
from tests.shared.tiny import text_tokenizer

TEXTS = documents(60)


def stored_tokens(tokenizer, texts):
    return [ids.tolist() for ids in load_tokenizer(tokenizer).encode_batch(texts)]


# --- Documents that are stored --------------------------------------------------------------------


def test_a_build_stores_every_document_in_order_and_opens(corpus, tokenizer, out):
    summary = build_quick(corpus, tokenizer, out)
    expected = stored_tokens(tokenizer, TEXTS)
    assert stored_documents(out) == expected
    assert (summary.documents, summary.tokens) == (60, sum(map(len, expected)))
    assert (summary.duplicates, summary.skipped, summary.shards, summary.resumed_shards) == (
        0,
        {},
        1,
        0,
    )
    store = Datastore.open(out, tokenizer=load_tokenizer(tokenizer))
    assert store.info().size == summary.size
    assert store.longest_suffix_match(expected[17], max_suffix=5).length == 5
    assert leftovers(out) == []
    assert set(contents(out)) == {
        "manifest.json",
        "tokenizer.json",
        "shard-00000.tokens",
        "shard-00000.suffixes",
    }
    assert load_tokenizer(out / "tokenizer.json").identity == store.manifest.tokenizer
    assert summary.peak_memory > 0
    assert set(summary.stage_seconds) == {"load", "read", "tokenize", "sort"}
    assert all(0 <= seconds <= summary.seconds for seconds in summary.stage_seconds.values())


def test_the_manifest_records_the_corpora_and_options(corpus, tokenizer, out, tmp_path):
    texts = ["one two", "three", "one two"]
    tree = tmp_path / "tree"
    write_files(
        tree,
        {"data.bin": b"\x89\0", **{f"{number}.txt": text for number, text in enumerate(texts)}},
    )
    specs = (CorpusSpec(str(corpus), max_documents=7), CorpusSpec(str(tree)))
    summary = build(BuildOptions(specs, str(tokenizer), out, shard_tokens=500, memory=1 << 40))
    manifest = Manifest.read(out)
    assert manifest.created_by == f"rest-store {rest_store.__version__}"
    assert manifest.options == {"shard_tokens": 500, "encoders": [summary.encoder]}
    first, second = manifest.corpora
    assert (first["corpus"], first["documents"], first["max_documents"]) == (str(corpus), 7, 7)
    assert (second["reader"], second["documents"], second["duplicates"]) == ("tree", 3, 1)
    assert second["skipped"] == summary.skipped == {"binary": 1}
    digests = b"".join(hashlib.sha256(b"text\0" + text.encode()).digest() for text in texts)
    assert second["documents_sha256"] == hashlib.sha256(digests).hexdigest()
    assert (summary.duplicates, summary.documents) == (1, 9)


def test_conversations_are_stored_as_the_template_renders_them(tokenizer, out, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"data": ["print first", "return <|im_end|>"]}) + "\n")
    with pytest.raises(
        CorpusError, match=r"tokenizer .* has no chat template; pass --chat-template FILE"
    ):
        build_quick(path, tokenizer, out)
    build_quick(path, tokenizer, out, chat_template=CHATML)
    assert leftovers(out) == []
    controls = load_tokenizer(tokenizer).identity.special_tokens
    (stored,) = stored_documents(out)
    assert stored.count(controls["<|im_start|>"]) == stored.count(controls["<|im_end|>"]) == 2
    template = Manifest.read(out).options["chat_template"]
    assert template == "sha256:" + hashlib.sha256(CHATML.encode()).hexdigest()


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_vocabularies_on_both_sides_of_two_bytes_work(out, tmp_path, size):
    (tmp_path / "tokenizer.json").write_text(word_level(size).to_str())
    (tmp_path / "text.txt").write_text(f"w1 w{size - 1} w2 w1 w{size - 1}")
    build_quick(tmp_path / "text.txt", tmp_path / "tokenizer.json", out)
    assert stored_documents(out) == [[1, size - 1, 2, 1, size - 1]]
    assert Datastore.open(out).longest_suffix_match([1, size - 1]).count == 2


# --- Documents that are dropped -------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_exact_duplicates_are_dropped_within_and_across_batches_and_corpora(
    tokenizer, out, tmp_path, monkeypatch, batch
):
    monkeypatch.setattr(slices, "_BATCH_DOCUMENTS", batch)
    first = write_jsonl(tmp_path / "a.jsonl", ["x", "y", "x", "z", "x "])
    second = write_jsonl(tmp_path / "b.jsonl", ["new", "y", "new"])
    summary = build_quick([first, second], tokenizer, out)
    assert stored_documents(out) == stored_tokens(tokenizer, ["x", "y", "z", "x ", "new"])
    assert (summary.documents, summary.duplicates) == (5, 3)
    assert [corpus["duplicates"] for corpus in Manifest.read(out).corpora] == [1, 2]


def test_documents_without_tokens_are_counted(out, tmp_path):
    (tmp_path / "tokenizer.json").write_text(word_piece().to_str())
    corpus = write_jsonl(tmp_path / "corpus.jsonl", ["print", "\u200b\u200b", "", "  \n", "range"])
    with pytest.warns(
        UserWarning, match=r"corpus.jsonl: 60% was left out \(2 empty, 1 without tokens\)"
    ):
        summary = build_quick(corpus, tmp_path / "tokenizer.json", out)
    assert summary.lost == {str(corpus): 0.6}
    assert len(stored_documents(out)) == summary.documents == 2
    assert summary.skipped == {"empty": 2, "without tokens": 1}
    assert Manifest.read(out).corpora[0]["without_tokens"] == 1


def test_a_datastore_of_nothing_is_refused_with_what_was_skipped_and_left_out(
    tokenizer, out, tmp_path
):
    """A misspelled ending is reported at once."""
    first = write_jsonl(tmp_path / "a.jsonl", ["", " "])
    tree = tmp_path / "tree"
    write_files(tree, dict.fromkeys(["a.py", "b.py", "c.rs"], "text"))
    specs = (CorpusSpec(str(first)), CorpusSpec(str(tree), include=("*.cbl",)))
    expected = (
        f"{first}, {tree}: corpus is without a text to store (3 left out by --include, 2 empty),"
        " expected at "
    )
    with pytest.raises(CorpusError) as error:
        build(BuildOptions(specs, str(tokenizer), out, memory=1 << 40))
    assert str(error.value).startswith(expected)
    assert leftovers(out) == []
    assert not out.exists()


def test_the_output_and_other_datastores_inside_a_corpus_are_no_part_of_it(tokenizer, tmp_path):
    """The old and the new datastore are not read, so that each build stores the same."""
    tree = tmp_path / "tree"
    write_files(tree, {"a.txt": "some text"})
    first = build_quick(tree, tokenizer, tree / "ds")
    files = {name: data for name, data in contents(tree / "ds").items() if name != "manifest.json"}
    build_quick(tree, tokenizer, tree / "other" / "ds")
    second = build_quick(tree, tokenizer, tree / "ds")
    assert (first.documents, first.skipped) == (1, {})
    assert (second.documents, second.skipped) == (1, {"datastore": 2})
    assert {
        name: data for name, data in contents(tree / "ds").items() if name != "manifest.json"
    } == files
    assert leftovers(tree / "ds") == ["a.txt", "other"]


# --- Shards ---------------------------------------------------------------------------------------


def test_shards_end_at_documents(corpus, tokenizer, out):
    build_quick(corpus, tokenizer, out, shard_tokens=400)
    expected = stored_tokens(tokenizer, TEXTS)
    assert max(map(len, expected)) < 400
    assert stored_documents(out) == expected
    records = Manifest.read(out).shards
    sizes = [record.position_count for record in records]
    assert len(sizes) > 5
    assert max(sizes) <= 400
    place = 0
    for record, following in pairwise(records):
        place += record.document_count
        assert record.position_count + len(expected[place]) + 1 > 400, (
            "there was room for the next document"
        )
        assert following.document_count
    single = build_quick(corpus, tokenizer, out)
    assert single.shards == 1
    assert single.tokens == sum(record.token_count for record in records)


@pytest.mark.parametrize("shard_tokens", [2, 3, 10])
def test_a_document_longer_than_a_shard_is_split_into_pieces(out, tmp_path, shard_tokens):
    (tmp_path / "tokenizer.json").write_text(word_level(100).to_str())
    words = [f"w{number}" for number in range(1, 40)]
    corpus = write_jsonl(
        tmp_path / "corpus.jsonl", [" ".join(words[:1]), " ".join(words), " ".join(words[3:4])]
    )
    summary = build_quick(corpus, tmp_path / "tokenizer.json", out, shard_tokens=shard_tokens)
    pieces = stored_documents(out)
    assert pieces[0] == [1]
    assert pieces[-1] == [4]
    assert [id_ for piece in pieces[1:-1] for id_ in piece] == list(range(1, 40))
    assert max(map(len, pieces)) == shard_tokens - 1
    assert all(record.position_count <= shard_tokens for record in Manifest.read(out).shards)
    assert (summary.documents, summary.split_documents) == (3, 1)
    assert Manifest.read(out).corpora[0]["split_documents"] == 1


@pytest.mark.parametrize("max_sorts", [1, 3])
def test_no_more_shards_are_sorted_at_once_than_allowed(
    corpus, tokenizer, out, monkeypatch, max_sorts
):
    sort = workers.sort_shard
    at_work = threading.Semaphore(max_sorts)
    at_once = []

    def counted(*arguments):
        at_once.append(at_work.acquire(blocking=False))
        result = sort(*arguments)
        at_work.release()
        return result

    monkeypatch.setattr(workers, "sort_shard", counted)
    summary = build_quick(corpus, tokenizer, out, shard_tokens=400, workers=max_sorts)
    assert at_once == [True] * summary.shards


# --- Over an old datastore ------------------------------------------------------------------------


def test_an_old_datastore_stays_until_the_new_one_is_complete(
    corpus, tokenizer, out, tmp_path, monkeypatch
):
    build_quick(write_jsonl(tmp_path / "old.jsonl", ["something old"]), tokenizer, out)
    old = contents(out)
    reader = Datastore.open(out)
    before = []
    put_in_place = builder.Staging.put_in_place

    def placing(self):
        before.append(contents(out))
        put_in_place(self)

    monkeypatch.setattr(builder.Staging, "put_in_place", placing)
    build_quick(corpus, tokenizer, out, shard_tokens=900)
    assert before == [old]
    assert len(stored_documents(out)) == 60
    assert leftovers(out) == []
    match = reader.longest_suffix_match(
        stored_tokens(tokenizer, ["something old"])[0], max_suffix=4
    )
    assert match.length == 4, "a reader of the old datastore keeps it"


# --- Progress -------------------------------------------------------------------------------------


def test_a_listener_sees_every_stage_come_to_its_end(corpus, tokenizer, out, monkeypatch):
    monkeypatch.setattr(stages, "_SECONDS_BETWEEN_REPORTS", 0)
    seen = []
    summary = build(options(corpus, tokenizer, out, shard_tokens=500), seen.append)
    stages_seen = {progress.stage: progress for progress in seen}  # the last of each
    assert list(stages_seen) == ["tokenizing", "sorting"]
    assert all(progress.done == progress.total for progress in stages_seen.values())
    assert stages_seen["tokenizing"].total == corpus.stat().st_size
    assert stages_seen["sorting"].total == summary.tokens + summary.documents
    for earlier, later in pairwise(seen):
        assert earlier.stage != later.stage or earlier.done <= later.done
    spec = CorpusSpec(str(corpus), max_documents=5)
    build(BuildOptions((spec,), str(tokenizer), out, memory=1 << 40), seen.append)
    assert {progress.total for progress in seen if progress.stage == "tokenizing"} == {
        corpus.stat().st_size,
        None,
    }


# --- Memory ---------------------------------------------------------------------------------------


def test_the_peak_of_resident_memory_stays_within_the_budget(out, tmp_path):
    """Uniformly random tokens are the worst case of sorting.

    The shards are as large as the budget allows.
    """
    size = 60_000
    (tmp_path / "tokenizer.json").write_text(word_level(size).to_str())
    words = np.array([f"w{number}" for number in range(size)])
    source = np.random.default_rng(0)
    corpus = tmp_path / "corpus.jsonl"
    with corpus.open("w") as file:
        for _ in range(450):
            file.write(json.dumps({"text": " ".join(source.choice(words, 10_000))}) + "\n")
    process = run_build(
        *(
            "--corpus",
            corpus,
            "--tokenizer",
            tmp_path / "tokenizer.json",
            "--out",
            out,
            "--json",
            "--memory",
            "512M",
        )
    )
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout)
    assert summary["tokens"] == 4_500_000
    assert summary["shard_positions"].bit_count() == 1
    assert 1 << 20 <= summary["shard_positions"] <= 1 << 23
    assert 100 << 20 < summary["peak_memory"] <= summary["memory"] == 512 << 20


@pytest.mark.parametrize("where", ["reading", "sorting"])
def test_sorting_that_runs_out_of_memory_is_a_memory_error(
    corpus, tokenizer, out, monkeypatch, where
):
    def exhausted(*arguments, **others):
        raise MemoryError

    if where == "reading":
        monkeypatch.setattr(shard_sorter, "np", SimpleNamespace(fromfile=exhausted, uint8=np.uint8))
    else:
        monkeypatch.setattr(shard_sorter, "sorted_suffixes", exhausted)
    with pytest.raises(
        MemoryBudgetError,
        match=r"shard-00000: sorting needs .* of free memory, which are not there",
    ):
        build_quick(corpus, tokenizer, out)
    assert not out.exists()
    monkeypatch.undo()
    assert build_quick(corpus, tokenizer, out, resume=True).resumed_shards == 1


@pytest.mark.parametrize(
    "form", ["a GGUF file", pytest.param("a directory", marks=pytest.mark.slow)]
)
def test_the_memory_of_the_example_suffices(corpus, out, tmp_path, form):
    """The 512M of `--help` suffice, since `transformers` runs in a process of its own."""
    tokenizer = smollm2_gguf()
    if form == "a directory":
        tokenizer = tmp_path / "tokenizer"
        text_tokenizer().save_pretrained(tokenizer)
    process = run_build(
        "--corpus", corpus, "--tokenizer", tokenizer, "--out", out, "--json", "--memory", "512M"
    )
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout)
    assert summary["peak_memory"] < summary["memory"] / 2


def test_a_directory_of_a_tokenizer_is_loaded_without_torch(tmp_path, monkeypatch, tokenizer):
    """The import of torch would take most of the time, and the tokenizer does not need it."""
    (tmp_path / "tokenizer").mkdir()
    shutil.copy(tokenizer, tmp_path / "tokenizer" / "tokenizer.json")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    )
    (tmp_path / "torch.py").write_text("import os; os._exit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "json.py").write_text("import os; os._exit(4)")
    monkeypatch.chdir(tmp_path / "cwd")  # from which nothing is run
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    loaded = load_tokenizer(load_in_process(tmp_path / "tokenizer"))
    assert loaded.identity == load_tokenizer(tokenizer).identity


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "nobody/nothing"])
def test_a_name_that_is_no_tokenizer_is_one_error_from_a_process_of_its_own_too(
    corpus, out, monkeypatch, name
):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TokenizerLoadError, match=r"tokenizer (is|cannot be) "):
        build_quick(corpus, name, out)
    assert leftovers(out) == []
