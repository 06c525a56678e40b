"""`rest_store.build`: the datastore of the command, opened; and its errors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from click.testing import CliRunner
from transformers import AutoTokenizer

import build_index
import rest_store
from rest_store.cli import main
from rest_store.errors import (
    BuildError,
    CorpusError,
    CorpusNotFoundError,
    MemoryBudgetError,
    MissingExtraError,
    OutputError,
    TokenizerLoadError,
)
from tests.shared.builds import contents, documents, write_jsonl, write_tokenizer
from tests.shared.corpora import write_files
from tests.shared.tiny import text_tokenizer


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of texts and of records in two languages."""
    write_tokenizer(tmp_path / "tokenizer.json")
    write_jsonl(tmp_path / "records.jsonl", documents(12, seed=1))
    files = {f"{place}.py": text for place, text in enumerate(documents(12))}
    return write_files(tmp_path / "corpus", {**files, "notes.md": "naïve café\n"})


def test_it_is_a_name_of_both_packages() -> None:
    assert rest_store.build is build_index.build


def test_a_build_is_that_of_the_command(corpus: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    records = tmp_path / "records.jsonl"
    stages: set[str] = set()
    with rest_store.build(
        [corpus, records],
        tokenizer,
        tmp_path / "ds",
        include="*.py",
        exclude=["1.py", "2.py"],
        max_documents=8,
        shard_tokens=100,
        memory="4G",
        progress=lambda progress: stages.add(progress.stage),
    ) as store:
        assert isinstance(store, rest_store.Datastore)
        assert [corpus["documents"] for corpus in store.manifest.corpora] == [8, 8]
        assert store.path == tmp_path / "ds"
    assert "tokenizing" in stages
    words = [
        "--corpus",
        corpus,
        "--corpus",
        records,
        "--tokenizer",
        tokenizer,
        "--out",
        tmp_path / "other",
    ]
    words += ["--include", "*.py", "--exclude", "1.py", "--exclude", "2.py", "--max-documents", 8]
    words += ["--shard-tokens", 100, "--memory", "4G"]
    done = CliRunner().invoke(main, ["build", *map(str, words)])
    assert done.exit_code == 0, done.output
    assert contents(tmp_path / "ds") == contents(tmp_path / "other")


def test_numbers_of_numpy_are_numbers(corpus: Path, tmp_path: Path) -> None:
    """A build records its options as JSON, which has no numbers of numpy."""
    options = {
        "shard_tokens": np.int64(100),
        "max_documents": np.int32(3),
        "memory": np.int64(4 << 30),
    }
    with rest_store.build(corpus, tmp_path / "tokenizer.json", tmp_path / "ds", **options) as store:
        assert store.manifest.options["shard_tokens"] == 100
        assert store.manifest.corpora[0]["max_documents"] == 3


def test_a_tokenizer_may_be_loaded_already(corpus: Path, tmp_path: Path) -> None:
    directory = tmp_path / "tokenizer"
    text_tokenizer().save_pretrained(directory)
    loaded = AutoTokenizer.from_pretrained(directory)
    rest_store.build(corpus, directory, tmp_path / "expected", memory="4G")
    for tokenizer in (loaded, loaded.backend_tokenizer):
        store = rest_store.build(corpus, tokenizer, tmp_path / "ds", memory="4G")
        assert (
            store.tokenizer.fingerprint
            == rest_store.Datastore.open(tmp_path / "expected").tokenizer.fingerprint
        )
        rest_store.Datastore.open(tmp_path / "ds", tokenizer=loaded)
    chat = tmp_path / "chat.jsonl"
    chat.write_text(
        '{"messages": [{"role": "user", "content": "add"}, {"role": "assistant", "content":'
        ' "first"}]}\n'
    )
    stores = [
        rest_store.build(chat, form, tmp_path / "ds", memory="4G") for form in (directory, loaded)
    ]
    assert stores[0].info().token_count == stores[1].info().token_count, "with its chat template"


def test_errors_are_those_of_the_command(corpus: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    out = tmp_path / "ds"
    for error, fragment, arguments, options in (
        (CorpusNotFoundError, "corpus is absent", (tmp_path / "none", tokenizer), {}),
        (BuildError, "the number of corpora is 0", ([], tokenizer), {}),
        (TokenizerLoadError, "tokenizer is absent", (corpus, tmp_path / "none.json"), {}),
        (
            TokenizerLoadError,
            "tokenizer is a object, expected a fast tokenizer",
            (corpus, object()),
            {},
        ),
        (
            BuildError,
            "the number of tokens is 1, expected 2..",
            (corpus, tokenizer),
            {"shard_tokens": 1},
        ),
        (
            BuildError,
            "shard_tokens is 100.0, expected a whole number",
            (corpus, tokenizer),
            {"shard_tokens": 100.0},
        ),
        (
            BuildError,
            "workers is '2', expected a whole number",
            (corpus, tokenizer),
            {"workers": "2"},
        ),
        (BuildError, "build: memory is 0, expected at least 1", (corpus, tokenizer), {"memory": 0}),
        (
            MemoryBudgetError,
            r"the memory budget is 1\.0 MiB, expected at",
            (corpus, tokenizer),
            {"memory": 1 << 20},
        ),
        (
            CorpusError,
            "max_documents is 1.5, expected a whole number",
            (corpus, tokenizer),
            {"max_documents": 1.5},
        ),
        (MemoryBudgetError, "size is 'much'", (corpus, tokenizer), {"memory": "much"}),
        (BuildError, "unfinished build is absent", (corpus, tokenizer), {"resume": True}),
    ):
        with pytest.raises(error, match=fragment):
            rest_store.build(*arguments, out, **options)  # type: ignore[arg-type]
        assert not out.exists()
        assert not (tmp_path / ".ds.building").exists()


@pytest.mark.parametrize("package", ["pydivsufsort", "pyarrow", "tokenizers"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    (corpus / "a.zst").write_bytes(zstandard.compress(b"text"))
    monkeypatch.setitem(sys.modules, package, None)
    expected = (
        rf"the package '{package}' is missing, expected it to be installed: pip install"
        r" 'rest-store\[build\]'"
    )
    with pytest.raises(MissingExtraError, match=expected):
        rest_store.build(
            corpus, tmp_path / "tokenizer.json", tmp_path / "ds", include="*.zst", memory="4G"
        )


def test_paths_with_a_nul_are_refused_by_name(corpus: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    expected = r"path is invalid \(a NUL\), expected a file or a directory"
    with pytest.raises(CorpusError, match=expected):
        rest_store.build("a\0b", tokenizer, tmp_path / "ds")
    with pytest.raises(OutputError, match=r"null byte"):
        rest_store.build(corpus, tokenizer, "a\0b")
