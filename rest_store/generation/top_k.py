"""The most likely tokens of rows of logits, faster than by `topk` and `argmax` of torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rest_store.drafting.top_k import most_likely

_BLOCK = 256


class TopTokens(NamedTuple):
    """The most likely tokens at each node of a step.

    Attributes:
        best: int64[rows, width], the most likely token; of equally likely ones the first. None: not asked for.
        indices: int64[rows, width, k], the k most likely tokens, the most likely one first; -1 where there are fewer.
            None: not asked for.
    """

    best: npt.NDArray[np.int64] | None
    indices: npt.NDArray[np.int64] | None


def read_top_tokens(logits: torch.Tensor, *, best: bool, count: int) -> TopTokens:
    """Read the most likely tokens; from a device in one copy, which waits for the logits.

    Args:
        logits: [rows, width, vocabulary], any floating-point type.
        best: whether the most likely token is asked for.
        count: how many of the most likely tokens are asked for, 0..8.
    """
    if logits.device.type == "cpu":
        return _on_cpu(logits.float(), best, count)
    rows, width, vocabulary = logits.shape
    parts = []
    if best:
        parts.append(logits.argmax(dim=-1, keepdim=True))
    if count:
        parts.append(block_top_k(logits.reshape(rows * width, vocabulary), count).view(rows, width, -1))
    if not parts:
        return TopTokens(None, None)
    tokens: npt.NDArray[np.int64] = torch.cat(parts, dim=-1).cpu().numpy()
    return TopTokens(tokens[:, :, 0] if best else None, tokens[:, :, int(best) :] if count else None)


def _on_cpu(logits: torch.Tensor, best: bool, count: int) -> TopTokens:
    """Do what `read_top_tokens` does with float32 in main memory."""
    rows, width, vocabulary = logits.shape
    array = logits.numpy()
    first = array.argmax(axis=-1) if best else None  # thirty times as fast as torch's
    if not count:
        return TopTokens(first, None)
    likely = most_likely(array.reshape(rows * width, vocabulary), min(count, vocabulary))
    return TopTokens(first, likely.reshape(rows, width, -1).astype(np.int64))


def block_top_k(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` most likely tokens of [n, vocabulary], the most likely one first, int64[n, count].

    They are all in the `count` blocks with the greatest maxima, so only these are sorted. Equally likely tokens may
    come in any order.
    """
    vocabulary = logits.shape[1]
    whole = vocabulary // _BLOCK * _BLOCK
    if whole <= 2 * count * _BLOCK:
        return logits.topk(min(count, vocabulary), dim=-1).indices
    blocks = logits[:, :whole].reshape(-1, whole // _BLOCK, _BLOCK)
    best = blocks.amax(dim=-1).topk(count, dim=-1).indices
    chosen = blocks.gather(1, best[:, :, None].expand(-1, -1, _BLOCK)).flatten(1)
    places = torch.cat([chosen, logits[:, whole:]], dim=1).topk(count, dim=-1).indices
    inside = places < count * _BLOCK
    block = best.gather(1, (places // _BLOCK).clamp(max=count - 1))
    return torch.where(inside, block * _BLOCK + places % _BLOCK, places - count * _BLOCK + whole)
