"""Exact duplicates: digests of content, and the set of them in memory and on disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_index.documents import Document
from build_index.duplicates import SeenDocuments, content_digest


def test_digests_tell_content_apart_and_nothing_else():
    different = [
        Document(text="a"),
        Document(text="b"),
        Document(text="a "),
        Document(text="user\0a"),
        Document(messages=(("user", "a"),)),
        Document(messages=(("assistant", "a"),)),
        Document(messages=(("user", "a"), ("user", ""))),
        Document(messages=(("user", ""), ("user", "a"))),
        Document(messages=(("usera", ""),)),
    ]
    assert len({content_digest(document) for document in different}) == len(different)
    assert content_digest(Document(text="a", origin="x")) == content_digest(
        Document(text="a", origin="y")
    )


@given(
    batches=st.lists(
        st.lists(st.integers(0, 60) | st.integers(2**64 - 60, 2**64 - 1), max_size=20), max_size=20
    ),
    byte_budget=st.sampled_from([0, 16, 100, 10_000]),
)
def test_each_digest_is_new_once(batches, byte_budget):
    seen: set[int] = set()
    with tempfile.TemporaryDirectory() as directory:
        documents = SeenDocuments(byte_budget, directory)
        for batch in batches:
            expected = [
                digest not in seen and digest not in batch[:place]
                for place, digest in enumerate(batch)
            ]
            assert documents.add(np.array(batch, dtype=np.uint64)).tolist() == expected
            seen.update(batch)


def test_many_digests_go_to_disk_and_are_found_there(tmp_path):
    random = np.random.default_rng(0)
    first, second = np.split(random.integers(0, 2**63, 40_000, dtype=np.uint64), 2)
    documents = SeenDocuments(16 * 4_000, tmp_path)
    for batch in np.split(first, 50):
        assert documents.add(batch).all()
    descriptors = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    unnamed = [entry for entry in descriptors if str(entry.readlink()).startswith(f"{tmp_path}/")]
    assert sum(entry.stat().st_size for entry in unnamed) >= 8 * (len(first) - 4_000)
    assert not list(tmp_path.iterdir()), "files have no names"
    mixed = np.concatenate([second[:300], first[::7], second[:300]])
    expected = np.arange(len(mixed)) < 300
    assert (documents.add(mixed) == expected).all()


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(**_):
        return Path("/dev/full").open("r+b")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left"):
        SeenDocuments(0, tmp_path).add(np.arange(5, dtype=np.uint64))
