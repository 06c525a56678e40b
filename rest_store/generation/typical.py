"""Typical acceptance: plausible draft tokens are kept without a draw (Medusa, arXiv 2401.10774, section 2.3.1).

The text is then no longer a sample of the model's distribution: a draft token that passes is written with certainty,
not with its probability. Off unless asked for. Nothing here is thread-safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import SynthIDTextWatermarkLogitsProcessor

from rest_store.errors import ModeNotSupportedError, describe
from rest_store.generation.sampling import Choice

ACCEPTANCES = ("exact", "typical")
THRESHOLD, ALPHA = 0.09, 0.3  # posterior_threshold and posterior_alpha of Medusa's own code


@dataclass(frozen=True)
class TypicalRule:
    """Accepts a token whose probability exceeds min(threshold, alpha * exp(-H)), H being the distribution's entropy.

    The distribution is that of sampling, after all logits processors. H is in nats.

    Attributes:
        threshold: of probability, 0..1: epsilon in the paper. At 1 alpha alone decides.
        alpha: how far a flat distribution lowers the threshold: delta in the paper.
    """

    threshold: float = THRESHOLD
    alpha: float = ALPHA

    def accepted(self, scores: torch.Tensor, tokens: Sequence[int]) -> list[float]:
        """Return for each of `tokens` its probability if it is accepted, else 0.

        Args:
            scores: float32[1, vocabulary], processed.
            tokens: candidates.
        """
        probabilities = torch.nn.functional.softmax(scores[0], dim=-1)
        entropy = torch.special.entr(probabilities).sum()
        least = (self.alpha * torch.exp(-entropy)).clamp(max=self.threshold)
        candidates = probabilities[torch.tensor(tokens, device=scores.device)]
        accepted: list[float] = torch.where(candidates > least, candidates, 0).tolist()
        return accepted


class TypicalStep:
    """Chooses the tokens of one row in one step along its draft tree.

    The longest path of accepted draft tokens is followed; of equally long ones the most likely, and of these the one
    whose last node comes first in the tree. From its end on, tokens are drawn from the model's distribution.

    Args:
        rule: accepts draft tokens.
        children: the place of each node, by its parent's place and its token; parents come before their children.
        choice: processes logits and draws; asked once for each place that is looked at, also beside the path taken.
        row: which row, for `choice`.
        ids: int64[1, length], the row before the step.
        logits: [places, vocabulary].
        is_end: whether a token ends the row; what was drafted behind it does not count.

    Attributes:
        ahead: accepted tokens that have not been chosen yet.
    """

    def __init__(
        self,
        rule: TypicalRule,
        children: Mapping[tuple[int, int], int],
        choice: Choice,
        row: int,
        ids: torch.Tensor,
        logits: torch.Tensor,
        is_end: Callable[[int], bool],
    ) -> None:
        self._choice, self._row, self._ids, self._logits = choice, row, ids, logits
        self._edges = {node: edge for edge, node in children.items()}  # parent's place and token of each node
        self._known: dict[int, torch.Tensor] = {}
        self.ahead = self._longest_path(rule, is_end)

    def choose(self, place: int) -> tuple[int, torch.Tensor]:
        """Return the token that follows the node at `place`, and its scores, float32[1, vocabulary].

        To be called with 0, then with the place of each chosen token, as long as it is drafted.
        """
        scores = self._scores_at(place)
        return (self.ahead.pop(0) if self.ahead else self._choice.pick(self._row, scores)), scores

    def _longest_path(self, rule: TypicalRule, is_end: Callable[[int], bool]) -> list[int]:
        """Return the tokens of the longest accepted path; empty: none is accepted."""
        nodes: dict[int, list[int]] = {}  # children of each place
        for node, (place, _) in self._edges.items():
            nodes.setdefault(place, []).append(node)
        reached = {0: (0, 0.0)}  # length and logarithm of the probability of accepted paths, by their last node
        for place, following in nodes.items():
            if place in reached and (place == 0 or not is_end(self._edges[place][1])):
                length, likelihood = reached[place]
                accepted = rule.accepted(self._scores_at(place), [self._edges[node][1] for node in following])
                for node, probability in zip(following, accepted, strict=True):
                    if probability:
                        reached[node] = length + 1, likelihood + math.log(probability)
        return self._tokens(max(reached, key=lambda node: (*reached[node], -node)))

    def _scores_at(self, place: int) -> torch.Tensor:
        if place not in self._known:
            context = torch.cat([self._ids, self._ids.new_tensor([self._tokens(place)])], dim=1)
            self._known[place] = self._choice.scores(self._row, context, self._logits[place : place + 1])
        return self._known[place]

    def _tokens(self, place: int) -> list[int]:
        """Return the draft tokens up to the node at `place`."""
        tokens = []
        while place:
            place, token = self._edges[place]
            tokens.append(token)
        return tokens[::-1]


def require_typical(sample: bool, processors: Sequence[Any]) -> None:
    """Check that draft tokens can be accepted as typical.

    Args:
        sample: whether tokens are drawn.
        processors: the prepared logits processors.

    Raises:
        ModeNotSupportedError: greedy search, or a processor that keeps a state from call to call: it is also called for
            drafts that are not written.
    """
    if not sample:
        raise ModeNotSupportedError(
            describe("generate", "acceptance", "'typical' in greedy search", "'exact', or do_sample=True")
        )
    for processor in processors:
        if isinstance(processor, SynthIDTextWatermarkLogitsProcessor):
            found = f"'typical' with {type(processor).__name__}, whose state follows every call"
            raise ModeNotSupportedError(describe("generate", "acceptance", found, "'exact'"))
