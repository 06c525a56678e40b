"""Recycled logits are saved and read back whole, and bad files are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rest_store.drafting import sources
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import RecycledLogitsError, TokenizerMismatchError
from tests.shared.strategies import identity

VOCABULARY = 300
TOKENIZER = identity(VOCABULARY)


def learnt(count: int) -> tuple[RecycledLogits, np.ndarray, np.ndarray]:
    """Recycled logits that have learnt from a random text, the text, and its top-k: some rows have fewer tokens."""
    random = np.random.default_rng(3)
    text = random.integers(0, VOCABULARY, count).astype(np.int32)
    top_k = random.integers(0, VOCABULARY, (count, 8)).astype(np.int32)
    top_k[::3, 5:] = -1
    logits = RecycledLogits()
    DraftSession([logits]).accept(text, top_k)
    return logits, text, top_k


def test_what_is_read_back_drafts_the_same(tmp_path: Path) -> None:
    logits, text, _ = learnt(3_000)
    path = tmp_path / "logits"
    logits.save(path, TOKENIZER)
    again = RecycledLogits.load(path, TOKENIZER)
    assert len(again) == len(logits) > 5_000
    for end in range(10, 3_000, 300):
        trees = []
        for own in (logits, again):
            with DraftSession([own], text[:end]) as session:
                trees.append(session.draft(16))
        assert len(trees[0]) > 0
        assert trees[0] == trees[1]
    again.save(path, TOKENIZER)
    third = RecycledLogits.load(path, TOKENIZER)
    assert sorted(third.native.rows(VOCABULARY)) == sorted(logits.native.rows(VOCABULARY))
    assert [one.name for one in tmp_path.iterdir()] == ["logits"]


def test_rows_end_at_ids_that_are_no_tokens(tmp_path: Path) -> None:
    logits = RecycledLogits()
    top_k = np.array([[7, VOCABULARY, 8], [VOCABULARY, 9, -1], [5, 6, -1], [4, 3, -1]], np.int32)
    DraftSession([logits]).accept([1, 2, VOCABULARY, 3], top_k)
    logits.save(tmp_path / "logits", TOKENIZER)
    rows = np.frombuffer(RecycledLogits.load(tmp_path / "logits", TOKENIZER).native.rows(VOCABULARY), np.int32)
    assert sorted(rows.reshape(-1, 21)[:, :6].tolist()) == [[1, -1, -1, -1, 7, -1], [3, -1, -1, -1, 4, 3]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.replace(b'"tokenizer"', b'"tokeniser"'), "header is damaged, expected one line of"),
        (lambda content: content.replace(b'"vocabulary_size": 300', b'"vocabulary_size": -1'), "header is damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "logits"
    learnt(50)[0].save(path, TOKENIZER)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecycledLogitsError) as caught:
        RecycledLogits.load(path, TOKENIZER)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def row(
    context: list[int] | None = None, likely: list[int] | None = None, weights: list[int] | None = None, times: int = 1
) -> list[int]:
    """A row of a file, well-formed where nothing else is given."""
    return [
        *(context or [1, 2, 3, -1]),
        *(likely or [4, 5, 6, 7, 8, 9, 10, 11]),
        *(weights or [8192, 2048, 910, 512, 327, 227, 167, 128]),
        times,
    ]


def write_rows(path: Path, rows: list[int]) -> None:
    sources._FILE.write(path, {"tokenizer": TOKENIZER.to_manifest()}, np.array(rows, "<i4").tobytes())


@pytest.mark.parametrize(
    "malformed",
    [
        [1, 2],  # not a whole row
        row(likely=[4, 5, 6, 7, 8, 9, 10, VOCABULARY]),
        row(likely=[4, 5, 6, 7, 8, 9, 10, -2]),
        row(weights=[40961, 2048, 910, 512, 327, 227, 167, 128]),
        row(times=0),
        row(times=256),
    ],
)
def test_malformed_rows_are_refused(tmp_path: Path, malformed: list[int]) -> None:
    write_rows(tmp_path / "logits", row() + malformed)
    with pytest.raises(RecycledLogitsError, match="rows is malformed, expected tokens of the vocabulary with weights"):
        RecycledLogits.load(tmp_path / "logits", TOKENIZER)
    write_rows(tmp_path / "logits", row() + row([4, 5, -1, -1], times=255))
    assert len(RecycledLogits.load(tmp_path / "logits", TOKENIZER)) == 2


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    learnt(50)[0].save(tmp_path / "logits", TOKENIZER)
    with pytest.raises(TokenizerMismatchError):
        RecycledLogits.load(tmp_path / "logits", identity(VOCABULARY + 1))
