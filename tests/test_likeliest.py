"""The likeliest tokens, found the short way."""

from __future__ import annotations

import pytest
import torch

from rest_store.generation.likeliest import likeliest, top


@pytest.mark.parametrize("vocabulary", [5, 96, 4096, 5000, 49_152, 49_153, 49_407])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_what_sorting_says(vocabulary: int, dtype: torch.dtype) -> None:
    logits = torch.randn((3, 7, vocabulary), generator=torch.Generator().manual_seed(vocabulary)).to(dtype)
    logits[0, 0, -3:] = torch.tensor([7, 9, 8])  # the last ones, in no whole block
    logits[1, 2, :4] = 11  # equally likely: the first
    assert likeliest(logits) == logits.float().argmax(-1).tolist()
    assert likeliest(logits)[1][2] == 0
    rows = logits.flatten(0, 1)
    found = top(rows, 8)
    count = min(8, vocabulary)
    assert found.shape == (21, count)
    assert torch.equal(rows.gather(1, found), rows.topk(count).values)
    assert all(len(set(row)) == count for row in found.tolist())
