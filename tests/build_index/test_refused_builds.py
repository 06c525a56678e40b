"""Builds that are refused or fail: by name, and nothing is left."""

from __future__ import annotations

import pytest

from build_index import shard_sorter
from build_index.builder import BuildOptions, build
from build_index.corpus_spec import CorpusSpec
from rest_store.errors import (
    BuildError,
    CorpusError,
    CorpusNotFoundError,
    EmptyCorpusError,
    MemoryBudgetError,
    TokenizerLoadError,
)
from tests.shared.builds import build_quick, contents, documents, leftovers, options, write_jsonl


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "in").mkdir()
    return write_jsonl(tmp_path / "in" / "corpus.jsonl", documents(60))


def test_empty_corpora_are_refused(tokenizer, out, tmp_path):
    first, second = write_jsonl(tmp_path / "a.jsonl", ["", " "]), tmp_path / "tree"
    second.mkdir()
    expected = f"{first}, {second}: corpus is without a text to store (2 empty), expected at least one; "
    with pytest.raises(EmptyCorpusError) as error:
        build_quick([first, second], tokenizer, out)
    assert str(error.value).startswith(expected)
    assert leftovers(out) == []
    assert not out.exists()


def test_an_empty_result_says_what_was_left_out(tokenizer, out, tmp_path):
    """A misspelled ending is found at once."""
    (tmp_path / "tree").mkdir()
    for name in ("a.py", "b.py", "c.rs"):
        (tmp_path / "tree" / name).write_text("text")
    spec = CorpusSpec(str(tmp_path / "tree"), include=("*.cbl",))
    with pytest.raises(EmptyCorpusError, match=r"tree: corpus is without a text to store \(3 left out by --include\)"):
        build(BuildOptions((spec,), str(tokenizer), out, memory=1 << 40))


def test_input_that_cannot_be_read_leaves_nothing(corpus, tokenizer, out, tmp_path):
    with pytest.raises(CorpusNotFoundError, match=r"nowhere: corpus is absent"):
        build_quick(tmp_path / "nowhere", tokenizer, out)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(CorpusError, match=r"bad\.jsonl:2: content is not JSON"):
        build_quick([corpus, bad], tokenizer, out)
    with pytest.raises(TokenizerLoadError, match=r"absent\.json: tokenizer is absent"):
        build_quick(corpus, tmp_path / "absent.json", out)
    assert not out.exists()
    assert leftovers(out) == []


def test_options_that_make_no_sense_are_refused(corpus, tokenizer, out):
    with pytest.raises(BuildError, match="build: the number of corpora is 0, expected at least 1"):
        BuildOptions((), str(tokenizer), out)
    for name in ("shard_tokens", "memory", "workers"):
        with pytest.raises(BuildError, match=f"build: {name} is 0, expected at least 1"):
            options(corpus, tokenizer, out, **{name: 0})
    with pytest.raises(MemoryBudgetError, match=r"the memory budget is 1\.0 MiB, expected at least"):
        build_quick(corpus, tokenizer, out, memory=1 << 20)
    assert leftovers(out) == []


def test_sorting_that_runs_out_of_memory_is_a_memory_error(corpus, tokenizer, out, monkeypatch):
    def exhausted(*arguments, **others):
        raise MemoryError

    monkeypatch.setattr(shard_sorter, "sorted_suffixes", exhausted)
    with pytest.raises(MemoryBudgetError, match=r"shard-00000: memory for sorting is exhausted, expected .* free"):
        build_quick(corpus, tokenizer, out)
    assert not out.exists()
    monkeypatch.undo()
    assert build_quick(corpus, tokenizer, out, resume=True).resumed_shards == 1


def test_the_output_and_other_datastores_inside_a_corpus_are_no_part_of_it(tokenizer, tmp_path):
    """Neither the datastore of the last build nor the new one is read, so that each build stores the same."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "a.txt").write_text("some text")
    first = build_quick(tree, tokenizer, tree / "ds")
    files = {name: data for name, data in contents(tree / "ds").items() if name != "manifest.json"}
    build_quick(tree, tokenizer, tree / "other" / "ds")
    second = build_quick(tree, tokenizer, tree / "ds")
    assert (first.documents, first.skipped) == (1, {})
    assert (second.documents, second.skipped) == (1, {"datastore": 2})
    assert {name: data for name, data in contents(tree / "ds").items() if name != "manifest.json"} == files
    assert leftovers(tree / "ds") == ["a.txt", "other"]
