"""Generations by hand, to make pages of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rest_store.datastore.tree import TokenTree
from rest_store.generation.drafts import NO_DRAFT, Draft
from rest_store.generation.page import page
from rest_store.generation.progress import Statistics
from rest_store.generation.trace import Trace

LABELS = ["python.ds", "prompt lookup", "recycled logits"]


def traced(words: Sequence[int], *, nodes: int = 7, accepted: int = 3, origins: Sequence[int] = (1, 2, 4, 5)) -> Trace:
    """A trace in which `words` are written: the first by the prompt's pass, then `accepted` and a bonus in each pass.

    Args:
        words: token ids.
        nodes: of each tree: the accepted path, and beside it branches of two nodes.
        accepted: draft tokens accepted in each pass.
        origins: of the nodes, over and over.
    """
    trace, statistics = Trace(), Statistics()
    trace.add([list(words[:1])], [NO_DRAFT], statistics)
    for begin in range(1, len(words), accepted + 1):
        written = list(words[begin : begin + accepted + 1])
        path = written[:accepted]
        tokens, parents = list(path), list(range(-1, len(path) - 1))
        while len(tokens) < nodes:
            parents.append(len(tokens) - 1 if (len(tokens) - len(path)) % 2 else (len(tokens) % (len(path) + 1)) - 1)
            tokens.append(300 + len(tokens))  # a token that is not written
        scores = 0.97 ** np.arange(1, 1 + len(tokens))
        kinds = [origins[node % len(origins)] for node in range(len(tokens))]
        tree = TokenTree(tokens, parents, [0] * len(tokens), scores=scores, origins=kinds)
        statistics.steps.latest, statistics.drafting.latest, statistics.forward.latest = 0.0312, 0.0002, 0.0305
        trace.add([written], [Draft(tree, len(tokens))], statistics)
    return trace


def statistics_of(trace: Trace) -> Statistics:
    statistics = Statistics(forward_passes=len(trace.passes), tokens=sum(len(one.tokens[0]) for one in trace.passes))
    statistics.steps.total = sum(one.seconds for one in trace.passes)
    statistics.forward.total = sum(one.forward_seconds for one in trace.passes)
    return statistics


def page_of(trace: Trace, tokenizer: Any, **arguments: Any) -> str:
    usual = {"title": "a model", "prompt": "def add(", "labels": LABELS}
    return page(trace, statistics_of(trace), tokenizer, **{**usual, **arguments})
