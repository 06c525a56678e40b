"""The kinds of text of an agent's memory as sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rest_store.live.agent_memory import RECORD_NAME, as_sources
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.open_store import open_datastores
from tests.shared.strategies import ONE_TO_NINE, identity, write_datastore

VOCABULARY = 300


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A live datastore with two namespaces, and without documents of its own."""
    directory = tmp_path / "memory"
    with LiveDatastore.open(directory, tokenizer=identity(VOCABULARY)) as live:
        live.namespace("written").add([[1, 2, 3]])
        live.namespace("read").add([[4, 5, 6]])
        live.namespace("files").add([[4, 5, 6, 7]])
        live.namespace("someone").add([[8, 9]])
    return directory


@pytest.fixture
def memory(directory: Path) -> Iterator[LiveDatastore]:
    (directory / RECORD_NAME).touch()
    with LiveDatastore.open(directory, read_only=True) as live:
        yield live


def test_the_kinds_that_hold_text_but_not_what_was_read_are_sources(memory: LiveDatastore) -> None:
    sources = as_sources(memory)
    assert list(sources) == ["written", "files"]
    assert [source.token_count for source in sources.values()] == [3, 4]
    assert sources["files"].count([5, 6]) == 1
    assert sources["files"].label == f"{memory.path}/files"


def test_outputs_that_are_remembered_there_are_a_source_too(directory: Path) -> None:
    (directory / RECORD_NAME).touch()
    with LiveDatastore.open(directory) as live:
        assert list(as_sources(live)) == ["written", "files", ""]
        live.add([[1, 2]])
        with LiveDatastore.open(directory, read_only=True) as reader:
            assert list(as_sources(reader)) == ["written", "files", ""]


def test_a_memory_without_text_is_one_source(tmp_path: Path) -> None:
    with LiveDatastore.open(tmp_path / "new", tokenizer=identity(VOCABULARY)) as live:
        (live.path / RECORD_NAME).touch()
        assert as_sources(live) == {"": live}


def test_nobody_reads_the_namespaces_of_another_datastore(directory: Path) -> None:
    with LiveDatastore.open(directory, read_only=True) as live:
        assert as_sources(live) == {"": live}


def test_a_benchmark_has_a_source_of_each_kind(memory: LiveDatastore, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    frozen = write_datastore(tmp_path / "a", ONE_TO_NINE)
    stores = open_datastores([memory.path, Path(frozen)])
    assert list(stores) == ["memory/written", "memory/files", "a"]
