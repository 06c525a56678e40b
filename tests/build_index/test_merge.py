"""One datastore of several: its answers, its files, and what is refused."""

from __future__ import annotations

import json
import random

import pytest

from build_index import merge as merge_module
from build_index.cli import merge as merge_command
from build_index.merge import merge
from build_index.tokenization import load_tokenizer
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.errors import (
    BuildError,
    DatastoreNotFoundError,
    MissingShardError,
    MixedBuildError,
    OutputError,
    TokenizerMismatchError,
)
from tests.shared.builds import build_quick, contents, documents, leftovers, write_jsonl, write_tokenizer

TEXTS = documents(90, seed=3)


@pytest.fixture
def parts(tokenizer, tmp_path):
    """Two datastores, one of several shards."""
    (tmp_path / "in").mkdir()
    paths = []
    for name, texts in (("a", TEXTS[:50]), ("b", TEXTS[50:])):
        corpus = write_jsonl(tmp_path / "in" / f"{name}.jsonl", texts)
        build_quick(corpus, tokenizer, tmp_path / name, shard_tokens=500 if name == "a" else None)
        paths.append(tmp_path / name)
    return paths


def test_it_answers_as_if_built_of_all_documents(parts, tokenizer, out, tmp_path):
    merged = merge(parts, out)
    build_quick([tmp_path / "in" / "a.jsonl", tmp_path / "in" / "b.jsonl"], tokenizer, tmp_path / "whole")
    store, whole = Datastore.open(out, tokenizer=load_tokenizer(tokenizer)), Datastore.open(tmp_path / "whole")
    assert len(store.shards) == len(merged.shards) > len(whole.shards) == 1
    assert (merged.document_count, merged.token_count) == (90, whole.manifest.token_count)
    assert [corpus["documents"] for corpus in merged.corpora] == [50, 40]
    rng = random.Random(0)
    for text in rng.choices(TEXTS, k=40):
        context = load_tokenizer(tokenizer).encode(text)[: rng.randrange(1, 12)]
        assert store.longest_suffix_match(context) == whole.longest_suffix_match(context)
        found, expected = store.draft(context), whole.draft(context)
        assert (found.tokens.tolist(), found.counts.tolist()) == (expected.tokens.tolist(), expected.counts.tolist())
    check_datastore(out, full=True)
    assert leftovers(out) == []


@pytest.mark.parametrize("linked", [True, False])
def test_files_are_linked_or_copied_where_there_are_no_links(parts, out, monkeypatch, linked):
    def refuse(source, target):
        raise OSError(18, "Invalid cross-device link")

    if not linked:
        monkeypatch.setattr(merge_module.os, "link", refuse)
    merge(parts, out)
    same = {path.stat().st_ino for part in parts for path in part.glob("shard-*")}
    links = [path.stat().st_ino in same for path in out.glob("shard-*")]
    assert links == [linked] * len(same)
    check_datastore(out)


def test_one_of_them_may_be_replaced(parts):
    merge(parts, parts[0])
    assert Datastore.open(parts[0]).manifest.document_count == 90
    check_datastore(parts[0])


def test_it_may_be_merged_again_and_again(tokenizer, tmp_path):
    """Every night with the datastore of the day: manifests that are nested too deeply cannot be read."""
    days = []
    for day, text in enumerate(TEXTS[:6]):
        corpus = write_jsonl(tmp_path / f"{day}.jsonl", [text])
        build_quick(corpus, tokenizer, tmp_path / f"day-{day}", keep_duplicates=day % 2 == 0)
        days.append(tmp_path / f"day-{day}")
    for day in days[1:]:
        merge([days[0], day], days[0])
    merged = Datastore.open(days[0]).manifest.options["merged"]
    assert [options["keep_duplicates"] for options in merged] == [True, False] * 3


def test_the_tokenizer_of_a_part_without_one_comes_from_another(parts, out):
    (parts[0] / "tokenizer.json").unlink()
    merge(parts, out)
    assert (out / "tokenizer.json").read_bytes() == (parts[1] / "tokenizer.json").read_bytes()
    check_datastore(out)


def test_what_cannot_be_merged_is_refused(parts, out, tmp_path):
    before = contents(parts[0])
    with pytest.raises(BuildError, match="the number of datastores is 1, expected at least 2"):
        merge(parts[:1], out)
    with pytest.raises(DatastoreNotFoundError, match="absent"):
        merge([*parts, tmp_path / "c"], out)
    merge(parts, tmp_path / "both")
    with pytest.raises(MixedBuildError, match=r"b: shard-00000 is also in .*both, expected in one of the datastores"):
        merge([tmp_path / "both", parts[1]], out)
    other = write_tokenizer(tmp_path / "other.json", 320)
    build_quick(tmp_path / "in" / "a.jsonl", other, tmp_path / "c")
    with pytest.raises(TokenizerMismatchError, match=r"c: "):
        merge([*parts, tmp_path / "c"], out)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a file"):
        merge(parts, tmp_path / "file")
    (parts[1] / "shard-00000.suffixes").unlink()
    with pytest.raises(MissingShardError):
        merge(parts, out)
    assert contents(parts[0]) == before
    assert not out.exists()
    assert leftovers(out) == []


def test_the_command(parts, out, capsys):
    arguments = [str(path) for path in parts] + ["--out", str(out)]
    assert merge_command.main([*arguments, "--json"], standalone_mode=False) is None
    assert json.loads(capsys.readouterr().out)["documents"] == 90
    merge_command.main(arguments, standalone_mode=False)
    assert "90 documents, " in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        merge_command.main(arguments[1:])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("Error: merge: the number of datastores is 1")
