"""The most likely tokens at each node of a step."""

from __future__ import annotations

import pytest
import torch

from rest_store.generation.top_k import read_top_tokens


@pytest.mark.parametrize("vocabulary", [5, 96, 4096, 5000, 49_152, 49_153, 49_407])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_tokens_are_those_of_sorting(vocabulary: int, dtype: torch.dtype) -> None:
    logits = torch.randn((3, 7, vocabulary), generator=torch.Generator().manual_seed(vocabulary)).to(dtype)
    logits[0, 0, -3:] = torch.tensor([7, 9, 8])  # the last tokens, in no whole block
    logits[1, 2, :4] = 11  # equally likely: the first one is taken
    best, top = read_top_tokens(logits, best=True, count=8)
    assert best is not None
    assert top is not None
    assert best.tolist() == logits.float().argmax(-1).tolist()
    assert best[1, 2] == 0
    count = min(8, vocabulary)
    assert top.shape == (3, 7, count)
    assert torch.equal(logits.gather(2, torch.from_numpy(top)), logits.topk(count).values)
    assert all(len(set(row)) == count for rows in top.tolist() for row in rows)
