"""Folders of `save_to_disk` and caches of `datasets` are read as `load_from_disk` reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from build_index.documents import Document
from tests.shared.builds import build_quick
from tests.shared.corpora import read_corpus, write_files


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def saved(datasets, tmp_path_factory):
    """A data set in three files, and the results of some methods beside it."""
    path = tmp_path_factory.mktemp("saved") / "saved"
    rows = datasets.Dataset.from_dict({"text": [f"document {number}" for number in range(50)]})
    rows.save_to_disk(path, num_shards=3)
    loaded = datasets.load_from_disk(path)
    loaded.filter(lambda row: row["text"].endswith("7"))
    loaded.map(lambda row: {"text": row["text"].upper()})
    assert len(list(path.glob("cache-*.arrow"))) == 2
    return path


def read_texts(path: Path, **options) -> list[str]:
    return [document.text for document in read_corpus(path, **options)[1]]


def test_a_saved_data_set_is_its_rows(datasets, saved):
    corpus, documents = read_corpus(saved)
    assert [document.text for document in documents] == datasets.load_from_disk(saved)["text"][:]
    assert corpus.counts.skipped == {"metadata of a data set": 2, "cached result of datasets": 2}
    assert corpus.counts.lost_share() == 0


@pytest.mark.parametrize("change", ["filter", "shuffle", "split", "select"])
def test_a_changed_data_set_is_saved_with_the_rows_that_it_has(datasets, saved, tmp_path, change):
    loaded = datasets.load_from_disk(saved)
    changed = {
        "filter": lambda: loaded.filter(lambda row: row["text"].endswith("7")),
        "shuffle": lambda: loaded.shuffle(seed=1),
        "split": lambda: loaded.train_test_split(10, seed=1)["test"],
        "select": lambda: loaded.select([3, 1, 4, 1]),
    }[change]()
    changed.save_to_disk(tmp_path / "changed")
    assert read_texts(tmp_path / "changed") == changed["text"][:]


def test_all_splits_of_a_saved_dictionary_are_read(datasets, tmp_path):
    splits = {"train": ["a", "b"], "test": ["c"]}
    sets = {name: datasets.Dataset.from_dict({"text": texts}) for name, texts in splits.items()}
    datasets.DatasetDict(sets).save_to_disk(tmp_path / "both")
    corpus, documents = read_corpus(tmp_path / "both")
    assert [document.text for document in documents] == ["c", "a", "b"]
    assert corpus.counts.skipped == {"metadata of a data set": 5}


def test_the_cache_of_a_loaded_data_set_is_its_splits(datasets, tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(20)))
    loaded = datasets.load_dataset(
        "json", data_files=str(lines), cache_dir=str(tmp_path / "cache"), split="train"
    )
    loaded.map(lambda row: {"text": row["text"].upper()})
    corpus, documents = read_corpus(tmp_path / "cache")
    assert [document.text for document in documents] == [f"line {number}" for number in range(20)]
    assert corpus.counts.skipped["cached result of datasets"] == 1
    assert corpus.counts.skipped["metadata of a data set"] == 1


def test_rows_that_differ_are_saved_and_read(datasets, tmp_path):
    if not hasattr(datasets, "Json"):
        pytest.skip("older releases refuse such rows")
    turns = [[{"role": "user", "content": "q\n"}], [{"role": "user", "content": "p", "name": "x"}]]
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    rows = datasets.load_dataset(
        "json", data_files=str(lines), cache_dir=str(tmp_path / "cache"), split="train"
    )
    rows.save_to_disk(tmp_path / "saved")
    rows.to_parquet(tmp_path / "a.parquet")
    expected = read_corpus(lines)[1]
    assert expected[0].messages == (("user", "q\n"),)
    assert read_corpus(tmp_path / "saved")[1] == read_corpus(tmp_path / "a.parquet")[1] == expected


def test_a_build_of_a_saved_data_set_has_its_rows_alone(saved, tokenizer, out):
    summary = build_quick(saved, tokenizer, out)
    assert (summary.documents, summary.lost) == (50, {})


# --- Unusual folders ------------------------------------------------------------------------------


def write_stream(path: Path, **columns) -> None:
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


@pytest.mark.parametrize("numbers", [[5, 199, 72, 5, 0], list(range(0, 200, 3)), [], [199]])
def test_row_numbers_of_old_releases_choose_the_rows(tmp_path, numbers):
    """Up to 1.13, `save_to_disk` wrote all rows and the numbers of those that belong to the set."""
    write_stream(tmp_path / "dataset.arrow", text=[f"document {number}" for number in range(200)])
    write_stream(tmp_path / "indices.arrow", indices=pa.array(numbers, pa.uint64()))
    state = {
        "_data_files": [{"filename": "dataset.arrow"}],
        "_indices_data_files": [{"filename": "indices.arrow"}],
    }
    write_files(tmp_path, {"state.json": json.dumps(state), "dataset_info.json": "{}"})
    corpus, documents = read_corpus(tmp_path)
    assert [document.text for document in documents] == [
        f"document {number}" for number in sorted({*numbers})
    ]
    assert [document.origin for document in documents[:1]] == [
        f"{tmp_path}/dataset.arrow:row {number}" for number in sorted({*numbers})[:1]
    ]
    assert corpus.counts.skipped == {"metadata of a data set": 2}


def test_a_data_file_that_is_not_there_is_counted(tmp_path):
    write_stream(tmp_path / "a.arrow", text=["x"])
    names = [{"filename": name} for name in ("a.arrow", "b.arrow", "../outside.arrow")]
    write_files(
        tmp_path, {"state.json": json.dumps({"_data_files": names}), "dataset_info.json": "{}"}
    )
    write_stream(tmp_path.parent / "outside.arrow", text=["outside"])
    corpus, documents = read_corpus(tmp_path)
    assert documents == [Document(text="x")]
    assert corpus.counts.skipped["damaged"] == 2
    assert corpus.counts.largest["damaged"][1] == (
        f"{tmp_path}/../outside.arrow: absent, though the metadata of the data set names it"
    )


@pytest.mark.parametrize("state", ["{}", "[]", '{"_data_files": 3}', "no json", "[" * 100_000])
def test_other_files_of_these_names_are_texts(tmp_path, state):
    write_files(
        tmp_path, {"state.json": state, "dataset_info.json": "{}", "dataset_dict.json": "{}"}
    )
    assert read_texts(tmp_path) == ["{}", "{}", state]


def test_the_cache_of_the_hub_is_read_once(tmp_path):
    write_files(tmp_path, {"blobs/0123": '{"text": "x"}\n', "refs/main": "abc"})
    (tmp_path / "snapshots/abc").mkdir(parents=True)
    (tmp_path / "snapshots/abc/a.jsonl").symlink_to("../../blobs/0123")
    corpus, documents = read_corpus(tmp_path)
    assert [document.origin for document in documents] == [f"{tmp_path}/snapshots/abc/a.jsonl:1"]
    assert corpus.counts.skipped == {}
