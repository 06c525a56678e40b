"""`rest-store live`, and what the other commands say of live datastores."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import rest_store
from build_index.documents import Document, batches
from build_index.duplicates import content_digest
from build_index.tokenization import load_tokenizer
from rest_store.cli import main
from rest_store.datastore.check import check_datastore
from rest_store.datastore.suffix_array import sorted_suffixes
from rest_store.errors import (
    CorpusError,
    DatastoreNotFoundError,
    OutputError,
    StorageError,
    WriterError,
)
from rest_store.live import live_check
from rest_store.live.export import export
from rest_store.live.live_check import check_live
from tests.shared.builds import build_quick, write_jsonl, write_tokenizer
from tests.shared.live import new_live, until
from tests.shared.models import CHATML
from tests.shared.strategies import edit_file, identity, refused

TEXTS = [f"def add{number}(first, second):\n    return first + second\n" for number in range(6)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def done(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output or result.exception
    return result.stdout


def failed(*words: object) -> str:
    """Return the one line that a command fails with."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line


@pytest.fixture
def live(tmp_path: Path, tokenizer: Path) -> Path:
    corpus = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    done("live", "add", tmp_path / "live", corpus, "--tokenizer", tokenizer)
    return tmp_path / "live"


def compact(live: Path) -> None:
    with rest_store.LiveDatastore.open(live) as store:
        store.compact()


def facts_of(live: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(done("info", live, "--json"))
    return facts


def documents_in(
    store: rest_store.Datastore | rest_store.LiveDatastore, tokenizer: Path
) -> list[int]:
    """Return how often each of `TEXTS` occurs."""
    return [store.count(tokens[:60]) for tokens in load_tokenizer(tokenizer).encode_batch(TEXTS)]


def test_a_live_datastore_is_begun_from_a_corpus(live: Path, tokenizer: Path) -> None:
    with rest_store.LiveDatastore.open(live, read_only=True) as store:
        assert documents_in(store, tokenizer) == [1] * len(TEXTS)
    shown = done("info", live)
    rows = {
        name: value.strip()
        for name, value in (line.split(":", 1) for line in shown.splitlines() if ":" in line)
    }
    assert rows["tokens"].endswith(" in 6 documents")
    assert rows["retention"] == "everything"
    figures = [
        line
        for line in shown.splitlines()
        if str(live.parent) not in line and str(tokenizer) not in line
    ]
    assert len(figures) >= 6
    assert max(map(len, figures)) <= 80
    facts = facts_of(live)
    assert (facts["document_count"], facts["live"], facts["max_tokens"]) == (6, True, None)
    assert facts["token_count"] == int(rows["tokens"].split()[0].replace(",", ""))


def test_a_directory_of_a_tokenizer_is_loaded_without_torch(
    tmp_path: Path, tokenizer: Path
) -> None:
    """The import of torch would take most of the time, and 190 MiB."""
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    shutil.copy(tokenizer, directory / "tokenizer.json")
    settings = '{"tokenizer_class": "PreTrainedTokenizerFast"}'
    (directory / "tokenizer_config.json").write_text(settings)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "torch.py").write_text("import os; os._exit(3)")
    corpus = write_jsonl(tmp_path / "texts.jsonl", TEXTS)
    command = ["live", "add", str(tmp_path / "live"), str(corpus), "--tokenizer", str(directory)]
    path = os.pathsep.join([str(tmp_path / "first"), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-m", "rest_store", *command],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    assert facts_of(tmp_path / "live")["document_count"] == len(TEXTS)


def test_adding_again_adds_what_is_new(live: Path, tmp_path: Path) -> None:
    tokens = facts_of(live)["token_count"]
    corpus = write_jsonl(tmp_path / "texts.jsonl", [*TEXTS, "one more", ""])
    facts = json.loads(done("live", "add", live, corpus, "--json"))
    assert (facts["documents"], facts["duplicates"], facts["document_count"]) == (7, 6, 7)
    assert tokens < facts["token_count"] == facts_of(live)["token_count"] == facts["tokens"]
    expected = "7 documents read, 7 of them existed already\nnow 7 documents with"
    assert expected in done("live", "add", live, corpus)
    nothing = write_jsonl(tmp_path / "nothing.jsonl", [""])
    assert f"{nothing}: corpus is without a text to store (1 empty" in failed(
        "live", "add", live, nothing
    )


def test_ids_are_those_that_delete_takes(
    live: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "build_index.documents.batches", lambda documents: batches(documents, number=2)
    )
    texts = ["one more", TEXTS[3], "", "another", "one more", "the last"]
    corpus = write_jsonl(tmp_path / "more.jsonl", texts)
    (tmp_path / "a.txt").write_text("a text")
    expected = ids_of([*(text for text in texts if text), "a text"])
    facts = json.loads(done("live", "add", live, corpus, tmp_path / "a.txt", "--json"))
    assert (facts["ids"], facts["documents"], facts["document_count"]) == (expected, 6, 10)
    assert done("live", "delete", live, *expected, "c") == f"{live}: 5 of 6 documents deleted\n"
    assert json.loads(done("live", "delete", live, "c", "--json"))["absent"] == 1


def test_queries_read_live_datastores(live: Path) -> None:
    shown = done("query", live, "--text", "def add3(first", "--max-nodes", 4)
    assert ", 1 occurrence:" in shown


def test_conversations_need_a_template_and_what_it_leaves_out_is_said(
    live: Path, tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "system", "content": "late"}]
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"messages": turns[:number]}) + "\n" for number in (1, 2)))
    assert "pass --chat-template FILE" in failed("live", "add", live, chats)
    strict = CHATML + "{{ raise_exception('no system turn') if messages|length > 1 }}"
    shown = done("live", "add", live, chats, "--chat-template", strict)
    assert shown.startswith(f"{live}: 1 document read, 0 of them existed already\n")
    assert "refused: " in shown
    assert "no system turn" in shown
    assert facts_of(live)["document_count"] == 7


def test_an_export_is_described_for_programs(live: Path, tmp_path: Path) -> None:
    out = tmp_path / "frozen.ds"
    facts = json.loads(done("live", "export", live, "--out", out, "--json"))
    described = rest_store.Datastore.open(out).info()
    assert facts == {
        "out": str(out),
        "documents": described.document_count,
        "tokens": described.token_count,
        "shards": described.shard_count,
        "size": described.size,
    }


def test_retention_is_stored_with_the_datastore(live: Path, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "more.jsonl", ["one more text"])
    done("live", "add", live, corpus, "--max-tokens", 2000, "--max-age", 30 * 86_400)
    done("live", "add", live, corpus, "--max-epochs", 3)
    done("live", "add", live, corpus)
    facts = facts_of(live)
    assert (facts["max_tokens"], facts["max_age"], facts["max_epochs"]) == (2000, 30 * 86_400, 3)
    assert "retention: 2,000 tokens, 720 hours, 3 epochs\n" in done("info", live)


def test_max_epochs_evicts_documents_of_older_epochs(live: Path, tmp_path: Path) -> None:
    with rest_store.LiveDatastore.open(live) as store:
        store.add([[1, 2, 3]], epoch=1)
    corpus = write_jsonl(tmp_path / "more.jsonl", ["one more text"])
    done("live", "add", live, corpus, "--max-epochs", 1)
    with rest_store.LiveDatastore.open(live) as store:
        until(lambda: store.info().document_count == 1)
        assert store.count([1, 2, 3]) == 1


def test_documents_of_a_group_are_shared_after_others_have_the_same(
    live: Path, tmp_path: Path
) -> None:
    ours = write_jsonl(tmp_path / "ours.jsonl", ["two tenants wrote this"])
    assert facts_of(live)["shared_after"] == 1
    ids = []
    for group in ("acme", "acme", "other"):
        added = done("live", "add", live, ours, "--group", group, "--shared-after", 2, "--json")
        ids += json.loads(added)["ids"]
        count = {"acme": 0, "other": 1}[group]
        with rest_store.LiveDatastore.open(live, read_only=True) as store:
            tokens = next(iter(store.documents(group="acme"))).tokens
            assert (store.count(tokens), store.read_as("acme").count(tokens)) == (
                2 * count,
                1 + count,
            )
    assert len(set(ids)) == 2
    assert facts_of(live)["shared_after"] == 2
    assert "after 2 groups have written the same" in done("info", live)
    assert json.loads(done("live", "delete", live, *set(ids), "--json"))["deleted"] == 2


def test_a_frozen_one_has_the_same_documents(live: Path, tmp_path: Path, tokenizer: Path) -> None:
    compact(live)
    done("live", "add", live, write_jsonl(tmp_path / "more.jsonl", ["something else"]))
    out = tmp_path / "frozen.ds"
    assert done("live", "export", live, "--out", out).startswith(f"{out}: ")
    facts = facts_of(live)
    frozen = check_datastore(out, sort=sorted_suffixes)
    described = frozen.info()
    assert (described.token_count, described.document_count) == (
        facts["token_count"],
        facts["document_count"],
    )
    assert described.shard_count == 2, "one from files, one from memory"
    assert documents_in(frozen, tokenizer) == [1] * len(TEXTS)
    assert "reader live" in done("info", out)
    done("live", "delete", live, *ids_of(TEXTS))
    done("live", "export", live, "--out", out)
    assert check_datastore(out, sort=sorted_suffixes).info().document_count == 1, (
        "it replaces the old one"
    )
    assert not list(tmp_path.glob(".*")), "nothing is left beside it"


def test_a_frozen_one_is_sorted_where_documents_were_deleted(tmp_path: Path) -> None:
    """The order of two equal documents in a segment is that of what followed them once."""
    with new_live(tmp_path / "live") as live:
        live.add([[1], [5], [1], [2]], ["a", "b", "c", "d"])
        live.delete(["b"])
        (view,) = live.snapshot.views
        frozen = export(live, tmp_path / "frozen")
    assert not np.array_equal(view.entries, frozen.shards[0].suffixes.packed)
    check_datastore(tmp_path / "frozen", sort=sorted_suffixes)


def ids_of(texts: Sequence[str]) -> list[str]:
    """Return the ids that documents are given by their content."""
    return [content_digest(Document(text=text)).hex() for text in texts]


def test_what_cannot_be_frozen(live: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear")
    with rest_store.LiveDatastore.open(live, read_only=True) as store:
        refused(
            OutputError,
            lambda: export(store, tmp_path / "other"),
            "one with other content ('letter')",
        )
        refused(OutputError, lambda: export(store, live), "one with other content")
    with rest_store.LiveDatastore.open(tmp_path / "empty", tokenizer=identity(300)) as store:
        refused(
            CorpusError,
            lambda: export(store, tmp_path / "out"),
            "the live datastore has no documents",
        )
        assert not (tmp_path / "out").exists()
        store.add([[1, 2, 3]])
        assert export(store, tmp_path / "out").info().document_count == 1, (
            "without a tokenizer's file, too"
        )
        check_datastore(tmp_path / "out", sort=sorted_suffixes)


def test_while_another_process_writes_only_reading_works(live: Path, tmp_path: Path) -> None:
    corpus = write_jsonl(tmp_path / "more.jsonl", ["more"])
    with rest_store.LiveDatastore.open(live) as writer:
        for words in (["add", live, corpus], ["delete", live, "x"]):
            assert "the writer's lock is taken; open the datastore with read_only=True" in failed(
                "live", *words
            )
        refused(
            WriterError, lambda: rest_store.LiveDatastore.open(live), "the writer's lock is taken"
        )
        writer.add(["something new"])
        assert facts_of(live)["document_count"] == 7
        done("live", "export", live, "--out", tmp_path / "out")
        assert "valid: 0 shards" in done("check", live)


# --- Directories of the other kind ----------------------------------------------------------------


def test_a_frozen_datastore_is_no_live_one(tmp_path: Path, tokenizer: Path) -> None:
    corpus, frozen = write_jsonl(tmp_path / "texts.jsonl", TEXTS), tmp_path / "frozen"
    build_quick(corpus, tokenizer, frozen)
    for words in (["add", corpus], ["add", corpus, "--tokenizer", tokenizer], ["delete", "x"]):
        assert f"{frozen}: the datastore is a frozen one" in failed(
            "live", words[0], frozen, *words[1:]
        )
    refused("live", lambda: rest_store.LiveDatastore.open(frozen), "a frozen one")


def test_a_live_datastore_is_neither_a_frozen_one_nor_a_corpus(
    live: Path, tmp_path: Path, tokenizer: Path
) -> None:
    refused(
        DatastoreNotFoundError,
        lambda: rest_store.Datastore.open(live),
        "a live one",
        "rest-store live export",
    )
    out = tmp_path / "out.ds"
    refused(
        CorpusError,
        lambda: build_quick(live, tokenizer, out),
        "corpus is a live datastore, which holds tokens alone; pass the texts",
    )
    refused(
        OutputError,
        lambda: build_quick(tmp_path / "texts.jsonl", tokenizer, live),
        "one with other content",
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    live.rename(folder / "live")
    (folder / "a.txt").write_text("a text")
    assert build_quick(folder, tokenizer, out).skipped == {"datastore": 1}


def test_nothing_is_there(tmp_path: Path) -> None:
    assert "there is no live datastore" in failed("live", "delete", tmp_path / "none", "x")
    assert "give a tokenizer to create one" in failed("live", "add", tmp_path / "none", tmp_path)
    assert not (tmp_path / "none").exists()


# --- Checking -------------------------------------------------------------------------------------


def segment_file(live: Path) -> Path:
    (path,) = live.glob("segment-*.tokens")
    return path


def test_a_live_datastore_is_checked(live: Path) -> None:
    compact(live)
    tokens = facts_of(live)["token_count"]
    assert (
        done("check", live, "--full")
        == f"{live}: valid: 1 shard, {tokens:,} tokens, checksums compared\n"
    )
    assert json.loads(done("check", live, "--json"))["shards"] == 1
    stages: list[str] = []
    check_live(live, announce=stages.append)
    assert stages == [segment_file(live).stem, "documents.sqlite"]


def test_a_damaged_segment_is_said(live: Path) -> None:
    compact(live)
    edit_file(segment_file(live), lambda data: data.__setitem__(-20, data[-20] ^ 1))
    refused("checksum", lambda: check_live(live), "SHA-256 of the payload")
    assert failed("check", live).startswith("Error: ")
    with rest_store.LiveDatastore.open(live):
        pass
    assert "valid: 0 shards, 138 tokens" in done("check", live), (
        "opening it to write sorts its documents anew"
    )


def test_a_segment_of_other_documents_is_said(live: Path, tmp_path: Path, tokenizer: Path) -> None:
    other = tmp_path / "other"
    corpus = write_jsonl(tmp_path / "other.jsonl", [f"{text}#" for text in TEXTS])
    done("live", "add", other, corpus, "--tokenizer", tokenizer)
    for place in (live, other):
        compact(place)
    for kind in ("tokens", "suffixes"):
        (source,) = other.glob(f"segment-*.{kind}")
        source.replace(segment_file(live).with_suffix(f".{kind}"))
    refused("checksum", lambda: check_live(live), "SHA-256 of the payload")
    with rest_store.LiveDatastore.open(live) as store:
        assert documents_in(store, tokenizer) == [1] * len(TEXTS), "they are sorted anew"


def test_a_damaged_document_is_said(live: Path) -> None:
    with closing(sqlite3.connect(live / "documents.sqlite")) as database:
        database.execute("UPDATE documents SET crc = 1 - crc WHERE number = 3")
        database.commit()
    refused(StorageError, lambda: check_live(live), "document 3 is damaged")


def test_a_segment_that_is_replaced_meanwhile_is_left_out(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact(live)
    opened = live_check.open_segment

    def replaced_before(path: Path, *arguments: Any, **options: Any) -> Any:
        with rest_store.LiveDatastore.open(path) as writer:
            writer.delete(ids_of(TEXTS[1:]))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(live_check, "open_segment", replaced_before)
    segments, tokens = check_live(live)
    assert segments == 0
    assert 0 < tokens == facts_of(live)["token_count"]
