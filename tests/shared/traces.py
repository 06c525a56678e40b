"""Generations by hand, to make pages of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rest_store.datastore.tree import TokenTree
from rest_store.generation.detokenizer import Detokenizer
from rest_store.generation.draft_sessions import EMPTY
from rest_store.generation.output import Piece, Statistics
from rest_store.generation.page import page

LABELS = ["python.ds", "prompt lookup", "recycled logits"]


def traced(
    words: Sequence[int],
    *,
    nodes: int = 7,
    accepted: int = 3,
    origins: Sequence[int] = (1, 2, 4, 5),
) -> list[Piece]:
    """Passes that write `words`: the prompt's pass, then `accepted` and a bonus token in each.

    Args:
        words: token ids.
        nodes: of each tree: the accepted path, and beside it branches of two nodes.
        accepted: draft tokens accepted in each pass.
        origins: of the nodes, over and over.
    """
    passes = [Piece([list(words[:1])], [[0]], [EMPTY], [[]])]
    for begin in range(1, len(words), accepted + 1):
        written = list(words[begin : begin + accepted + 1])
        path = written[:accepted]
        tokens = list(path)
        parents = list(range(-1, len(path) - 1))
        while len(tokens) < nodes:
            parents.append(
                len(tokens) - 1
                if (len(tokens) - len(path)) % 2
                else (len(tokens) % (len(path) + 1)) - 1
            )
            tokens.append(300 + len(tokens))  # a token that is not written
        scores = 0.97 ** np.arange(1, 1 + len(tokens))
        kinds = [origins[node % len(origins)] for node in range(len(tokens))]
        tree = TokenTree(tokens, parents, [0] * len(tokens), scores=scores, origins=kinds)
        path_origins = kinds[: len(path)] + [0] * (len(written) - len(path))
        on_path = list(range(len(path)))
        times = {"seconds": 0.0312, "drafting_seconds": 0.0002, "forward_seconds": 0.0305}
        passes.append(Piece([written], [path_origins], [tree], [on_path], **times))
    return passes


def statistics_of(passes: Sequence[Piece]) -> Statistics:
    statistics = Statistics(origins=[[]])
    for piece in passes:
        statistics.add(piece)
    return statistics


def page_of(passes: Sequence[Piece], tokenizer: Any, **arguments: Any) -> str:
    detokenizer = Detokenizer(tokenizer)
    for piece in passes:
        piece.words = [detokenizer.words(piece.tokens[0], last=piece is passes[-1])]
    usual = {"title": "a model", "prompt": "def add(", "labels": LABELS}
    return page(passes, statistics_of(passes), tokenizer, **{**usual, **arguments})
