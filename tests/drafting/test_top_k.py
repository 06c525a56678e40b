"""The most likely tokens of rows of logits, against sorting."""

from __future__ import annotations

import numpy as np
import pytest

from rest_store.drafting.most_likely import most_likely


@pytest.mark.parametrize("vocabulary", [1, 5, 8, 63, 64, 65, 1000, 49_152])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_they_are_those_of_a_stable_sort(vocabulary: int, count: int) -> None:
    chance = np.random.default_rng(vocabulary)
    # Many are equal; of these the first.
    logits = chance.integers(-50, 50, (37, vocabulary)).astype(np.float32)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    likely = most_likely(logits, count)
    assert likely.dtype == np.int32
    assert likely[:, : expected.shape[1]].tolist() == expected.tolist()
    assert (likely[:, expected.shape[1] :] == -1).all()


def test_what_is_no_number_and_what_is_masked_is_not_likely() -> None:
    logits = np.full((3, 200), -np.inf, np.float32)
    logits[0, [5, 150]] = [1, 2]
    logits[1, :] = np.nan
    logits[1, 70] = -4
    assert most_likely(logits, 3).tolist() == [[150, 5, -1], [70, -1, -1], [-1, -1, -1]]
    logits[2, 9] = np.inf
    assert most_likely(logits, 1).tolist() == [[150], [70], [9]]


def test_rows_may_be_parts_of_wider_ones() -> None:
    wide = np.random.default_rng(0).random((4, 300), np.float32)
    assert (
        most_likely(wide[:, 20:120], 2).tolist() == most_likely(wide[:, 20:120].copy(), 2).tolist()
    )
    assert most_likely(wide[:0], 2).shape == (0, 2)
