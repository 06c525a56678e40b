"""Notebooks and trajectories: a JSON file that is one document."""

from __future__ import annotations

import json

import pytest

from build_index.documents import Document
from build_index.readers import json_records
from rest_store.errors import CorpusError
from tests.shared.corpora import compressed, documents_of, read_corpus, write_files

CELLS = [
    {"cell_type": "markdown", "metadata": {}, "source": ["# Title\n", "A text."]},
    {
        "cell_type": "code",
        "metadata": {},
        "source": "x = 1\nprint(x)",
        "outputs": [{"data": {"image/png": "iVBOR" * 999}}],
    },
    {"cell_type": "code", "metadata": {}, "source": [], "outputs": []},
    {"cell_type": "raw", "metadata": {}, "source": "raw"},
]
NOTEBOOK = {
    "cells": CELLS,
    "metadata": {"language_info": {"name": "python"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
TEXT = "# Title\nA text.\n\nx = 1\nprint(x)\n\nraw"
HISTORY = [
    {"role": "system", "content": "You fix bugs.", "agent": "main"},
    {"role": "user", "content": "It fails."},
    {"role": "assistant", "content": "ls", "thought": "look", "action": "ls"},
]
MESSAGES = tuple((turn["role"], turn["content"]) for turn in HISTORY)
SWE_AGENT = {
    "environment": "e",
    "trajectory": [{"action": "ls", "observation": "x"}],
    "history": HISTORY,
    "info": {},
}
MINI = {"info": {}, "messages": HISTORY, "trajectory_format": "mini-swe-agent-1.1"}


def spoken(document: Document) -> tuple[tuple[str, ...], ...]:
    """Role and content of each message; other tests check the other fields."""
    return tuple(message[:2] for message in document.messages)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_notebook_is_the_sources_of_its_cells(tmp_path, indent, suffix):
    data = json.dumps(NOTEBOOK, indent=indent).encode() + b"\n"
    write_files(tmp_path, {f"a.ipynb{suffix}": compressed(data, suffix)})
    path = tmp_path / f"a.ipynb{suffix}"
    corpus, documents = read_corpus(path)
    assert documents == read_corpus(tmp_path)[1] == [Document(text=TEXT)]
    assert documents[0].origin == str(path)
    assert corpus.reader == "notebook"


def test_a_notebook_of_format_3_has_its_cells_on_worksheets(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "input": ["x = 1\n", "y = 2"]},
    ]
    write_files(
        tmp_path,
        {"a.ipynb": json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}, 3]}, indent=1)},
    )
    assert documents_of(tmp_path) == [Document(text="# Title\n\nx = 1\ny = 2")]


def test_a_notebook_without_a_text_is_empty(tmp_path):
    write_files(
        tmp_path, {"a.ipynb": json.dumps({**NOTEBOOK, "cells": [{"source": ""}, 3]}, indent=1)}
    )
    corpus, documents = read_corpus(tmp_path)
    assert (documents, corpus.counts.skipped) == ([], {"empty": 1})


def test_a_notebook_that_is_too_large_is_an_error_or_counted_in_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_records, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(json_records, "_CHUNK", 64)
    write_files(tmp_path, {"a.ipynb": json.dumps(NOTEBOOK)})
    with pytest.raises(CorpusError, match=r"a.ipynb:1: the size of the record"):
        documents_of(tmp_path / "a.ipynb")
    corpus, documents = read_corpus(tmp_path)
    assert (documents, corpus.counts.skipped) == ([], {"too large": 1})


@pytest.mark.parametrize("trajectory", [SWE_AGENT, MINI], ids=["SWE-agent", "mini-SWE-agent"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_trajectory_is_its_conversation(tmp_path, trajectory, indent):
    write_files(
        tmp_path, {f"{number}.traj": json.dumps(trajectory, indent=indent) for number in range(3)}
    )
    assert [spoken(document) for document in documents_of(tmp_path)] == [MESSAGES] * 3
    assert spoken(documents_of(tmp_path / "0.traj")[0]) == MESSAGES


@pytest.mark.parametrize(
    "value",
    [
        {"cells": CELLS},
        {"nbformat": 4, "cells": "x"},
        {"history": HISTORY},
        {"trajectory": [], "history": ["x"]},
        {"trajectory": [], "history": []},
        {"trajectory_format": "x", "messages": "none"},
    ],
)
def test_other_objects_in_a_directory_are_texts(tmp_path, value):
    text = json.dumps(value, indent=1)
    write_files(tmp_path, {"a.json": text})
    assert documents_of(tmp_path) == [Document(text=text)]


# --- With a field ---------------------------------------------------------------------------------


def test_single_objects_in_a_directory_are_records_where_a_field_is_named(tmp_path):
    files = {
        f"{number}.json": json.dumps({"log": {"text": f"text {number}"}}, indent=2)
        for number in range(3)
    }
    write_files(
        tmp_path,
        {**files, "settings.json": '{\n"debug": true}', "notes.txt": "x", "list.json": "[1]"},
    )
    corpus, documents = read_corpus(tmp_path, field="log.text")
    assert [document.text for document in documents] == ["text 0", "text 1", "text 2"]
    assert corpus.counts.skipped == {"no records": 3}


def test_a_field_reads_another_part_of_a_trajectory(tmp_path):
    write_files(
        tmp_path,
        {"a.traj": json.dumps(SWE_AGENT, indent=2), "b.ipynb": json.dumps(NOTEBOOK, indent=2)},
    )
    assert documents_of(tmp_path, field="trajectory.0.observation") == [Document(text="x")]
    assert documents_of(tmp_path, field="cells.3.source") == [Document(text="raw")]
