"""Typical acceptance: plausible draft tokens are kept without a draw.

Medusa, arXiv 2401.10774, section 2.3.1.

The text is then no longer a sample of the model's distribution: a draft token that passes is
written with certainty, not with its probability. Off unless asked for. Nothing here is thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import SynthIDTextWatermarkLogitsProcessor

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.rows import Row

ACCEPTANCES = ("exact", "typical")
# Posterior_threshold and posterior_alpha of Medusa's own code.
THRESHOLD = 0.09
ALPHA = 0.3


def plausible(scores: torch.Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the probability of each plausible token of `tokens`, and 0 for the others.

    Plausible is a probability over min(THRESHOLD, ALPHA * exp(-H)).

    H is the entropy of the distribution, in nats. The paper calls the two epsilon and delta.

    Args:
        scores: float32[1, vocabulary], of the distribution of sampling, after all logits
            processors.
        tokens: candidates.
    """
    probabilities = torch.nn.functional.softmax(scores[0], dim=-1)
    entropy = torch.special.entr(probabilities).sum()
    least = (ALPHA * torch.exp(-entropy)).clamp(max=THRESHOLD)
    candidates = probabilities[torch.tensor(tokens, device=scores.device)]
    accepted: list[float] = torch.where(candidates > least, candidates, 0).tolist()
    return accepted


def typical_path(
    children: Mapping[tuple[int, int], int],
    row: Row,
    logits: torch.Tensor,
    is_end: Callable[[int], bool],
) -> list[int]:
    """Return the tokens of the longest path of plausible draft tokens; empty: none is.

    Of equally long paths it is the most likely, and of these the one whose last node comes first in
    the tree.

    Args:
        children: each node, by its parent (-1: the context) and its token; parents come before
            their children.
        row: as it is before the step.
        logits: [positions, vocabulary].
        is_end: whether a token ends the row; drafts behind it do not count.
    """
    following: dict[int, dict[int, int]] = {}  # of each parent: its children, by token
    for (parent, token), node in children.items():
        following.setdefault(parent, {})[token] = node
    paths: dict[int, list[int]] = {-1: []}  # of tokens, to each node that is reached
    likelihoods = {-1: 0.0}  # logarithms
    for parent, nodes in following.items():
        if parent not in paths or any(is_end(token) for token in paths[parent][-1:]):
            continue
        context = torch.cat([row.ids(), row.ids().new_tensor([paths[parent]])], dim=1)
        scores = row.processed(context, logits[parent + 1 : parent + 2])
        for (token, node), probability in zip(
            nodes.items(), plausible(scores, list(nodes)), strict=True
        ):
            if probability:
                paths[node] = [*paths[parent], token]
                likelihoods[node] = likelihoods[parent] + math.log(probability)
    return paths[max(paths, key=lambda node: (len(paths[node]), likelihoods[node], -node))]


def require_typical(sample: bool, processors: Sequence[Any]) -> None:
    """Check that draft tokens can be accepted as typical.

    Args:
        sample: whether tokens are drawn.
        processors: the prepared logits processors.

    Raises:
        NotSupportedError: greedy search, or a processor that keeps a state from call to call: it is
            also called for drafts that are not written.
    """
    if not sample:
        raise NotSupportedError(
            describe(
                "generate", "acceptance", "'typical' in greedy search", "'exact', or do_sample=True"
            )
        )
    for processor in processors:
        if isinstance(processor, SynthIDTextWatermarkLogitsProcessor):
            actual = f"'typical' with {type(processor).__name__}, whose state follows every call"
            raise NotSupportedError(describe("generate", "acceptance", actual, "'exact'"))
