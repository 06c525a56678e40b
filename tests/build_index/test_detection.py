"""Files that begin like something else, records that are too large in a list, and errors of pyarrow."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from build_index.documents import LARGEST_DOCUMENT_BYTES
from build_index.readers.files import ZSTD_MAGIC
from rest_store.errors import CorpusFormatError
from tests.shared.corpora import read_corpus, write_files

LARGE = {"text": "x" * (LARGEST_DOCUMENT_BYTES + 1)}


def test_a_file_that_only_begins_like_zstd_is_binary(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.zst": ZSTD_MAGIC + b"hello", "b.txt": "text"})
    corpus, documents = read_corpus(tmp_path)
    assert [document.text for document in documents] == ["text"]
    assert corpus.skipped == {"binary": 1}


def test_records_of_a_list_that_are_too_large_are_passed_over(tmp_path: Path) -> None:
    first, middle = [LARGE, {"text": 'a"]}'}], [{"text": "b"}, LARGE, {"text": "c"}]
    write_files(tmp_path, {"first.json": json.dumps(first), "middle.json": json.dumps(middle)})
    corpus, documents = read_corpus(tmp_path)
    assert [document.text for document in documents] == ['a"]}', "b", "c"]
    assert corpus.skipped == {"too large": 2}


@pytest.mark.parametrize("name", ["ArrowNotImplementedError", "ArrowMemoryError", "ArrowKeyError"])
def test_every_error_of_pyarrow_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"]}), path)

    def fail(*_arguments: object, **_options: object) -> None:
        raise getattr(pyarrow.lib, name)("no such codec")

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", fail)
    with pytest.raises(CorpusFormatError, match=r"a.parquet: parquet file is damaged or truncated \(.*no such codec"):
        read_corpus(path)
