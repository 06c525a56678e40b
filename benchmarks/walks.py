"""Recordings as generations to replay step by step, in contexts of 2,000 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rest_store.bench.recordings import Recording
from rest_store.datastore.tree import TokenTree

CONTEXT = 2000  # tokens before the output
TopK = npt.NDArray[np.int64]  # int64[positions, k]


@dataclass(frozen=True)
class Walk:
    """One recorded generation.

    Attributes:
        text: int32[n], the context and the output.
        start: position of the output in `text`.
        top_k: int64[n - start + 1, k], the model's most likely tokens after the last token of the
            context and after each token of the output; None if they were not recorded.
        other_top_k: int64[tokens + 1, k], by token, the likely tokens after it at a position of
            other recordings. They stand for the top-k after rejected draft tokens, which is not
            recorded. -1: there is no such position; the last entry is for all further tokens. None
            as `top_k`.
    """

    text: npt.NDArray[np.int32]
    start: int
    top_k: TopK | None
    other_top_k: TopK | None

    def step_end(self, begin: int, path: npt.NDArray[np.int64]) -> int:
        """Return the end of a step that begins at `begin` and accepts `path` and a bonus token."""
        return min(begin + len(path) + 1, self.text.size)

    def likely(self, begin: int, tree: TokenTree, path: npt.NDArray[np.int64]) -> dict[str, TopK]:
        """Return the top-k of a step as generation passes them to `DraftSession.accept`.

        Args:
            begin: position in `text` at which the step begins.
            tree: the draft there.
            path: the nodes that are accepted.
        """
        if self.top_k is None or self.other_top_k is None:
            return {}
        # The forward pass has not read the bonus token.
        read = self.top_k[begin - self.start : begin - self.start + 1 + len(path)]
        top_k = np.full((self.step_end(begin, path) - begin, read.shape[1]), -1, np.int64)
        top_k[: len(path)] = read[1 : 1 + len(top_k)]
        tokens = np.minimum(tree.tokens, len(self.other_top_k) - 1)
        node_top_k = np.concatenate([read[:1], self.other_top_k[tokens]])
        node_top_k[1 + path] = read[1:]
        return {"top_k": top_k, "node_top_k": node_top_k}


def long_walks(recordings: Sequence[Recording], others: Sequence[Recording]) -> list[Walk]:
    """Return the walks of those `recordings` that have a prompt.

    Text of `others` stands before each, so that its context is 2,000 tokens long.
    """
    texts = [np.concatenate([one.prompt, one.output]) for one in others]
    text = np.concatenate(texts)
    width = min(one.top_k.shape[1] for one in recordings)
    other_top_k = None
    if width:
        other_top_k = np.full((int(text.max()) + 2, width), -1, np.int64)
        for one, tokens in zip(others, texts, strict=True):
            if one.top_k.shape[1] >= width:
                other_top_k[tokens] = one.top_k[:, :width]
    walks = []
    for number, one in enumerate(one for one in recordings if one.prompt.size):
        before = np.roll(text, -number * CONTEXT)[: max(0, CONTEXT - one.prompt.size)]
        top_k = one.top_k[one.prompt.size - 1 :, :width].astype(np.int64) if width else None
        whole = np.concatenate([before, one.prompt, one.output])
        walks.append(Walk(whole, before.size + one.prompt.size, top_k, other_top_k))
    return walks
