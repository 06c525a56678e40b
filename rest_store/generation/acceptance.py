"""Which draft tokens are accepted: those that the model itself chooses along the tree.

Each written token is one call of the stopping criteria.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from rest_store.datastore.tree import TokenTree
from rest_store.errors import NotSupportedError, describe
from rest_store.generation.output import Piece
from rest_store.generation.rows import Row
from rest_store.generation.top_tokens import TopTokens
from rest_store.generation.typical import typical_path


class Stops:
    """Decides whether a token was the last of its row.

    Args:
        criteria: the prepared stopping criteria of the generation; each is called with every token
            of a single row.

    Attributes:
        are_simple: only the length and single tokens end a row; no tensor of the row is needed.
        max_length: most tokens of a row, prompt included; None: no limit.
    """

    def __init__(self, criteria: Sequence[Any]) -> None:
        self._criteria = criteria
        self.are_simple = all(
            type(criterion) in (EosTokenCriteria, MaxLengthCriteria) for criterion in criteria
        )
        lengths = [
            criterion.max_length
            for criterion in criteria
            if isinstance(criterion, MaxLengthCriteria)
        ]
        self.max_length: int | None = min(lengths) if lengths else None
        self._ends: set[int] = set()
        for criterion in criteria:
            if type(criterion) is EosTokenCriteria:
                self._ends.update(criterion.eos_token_id.flatten().tolist())

    def is_end(self, token: int) -> bool:
        """Return whether `token` ends a row, whatever precedes it."""
        return token in self._ends

    def after(self, token: int, length: int) -> bool:
        """Return whether a row of `length` tokens that ends in `token` has ended.

        For simple criteria.
        """
        return token in self._ends or (self.max_length is not None and length >= self.max_length)

    def judge(self, ids: torch.Tensor, scores: Any) -> bool:
        """Return whether the row `ids`, int64[1, length], has ended; for any criteria.

        Raises:
            NotSupportedError: a criterion answers for several rows.
        """
        ended = False
        for criterion in self._criteria:
            answer = criterion(ids, scores)
            if isinstance(answer, torch.Tensor) and answer.numel() != 1:
                shape = f"of shape {list(answer.shape)}"
                expected = "for one row: each call is about one"
                raise NotSupportedError(
                    describe(type(criterion).__name__, "its answer", shape, expected)
                )
            ended = bool(answer) or ended
        return ended


class Acceptance:
    """Writes the next tokens of each row, one by one, until they leave the row's tree.

    Args:
        rows: written to.
        stops: end a row.
        typical: whether plausible draft tokens are kept without a draw.
        keeps_logits: whether rows keep the logits of each token.
        keeps_scores: whether rows keep the scores of each token.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        stops: Stops,
        *,
        typical: bool,
        keeps_logits: bool,
        keeps_scores: bool,
    ) -> None:
        self._rows = rows
        self._stops = stops
        self._typical = typical
        self._keeps_logits = keeps_logits
        self._keeps_scores = keeps_scores

    def accept(
        self, logits: torch.Tensor, top_tokens: TopTokens, trees: Sequence[TokenTree]
    ) -> Piece:
        """Write the tokens of one forward pass, and return them.

        Args:
            logits: [rows, width, vocabulary], of each row's last token and its tree.
            top_tokens: the most likely tokens of these logits.
            trees: the draft tree of each row.
        """
        best: list[list[int] | None] = (
            [None] * len(trees) if top_tokens.best is None else top_tokens.best.tolist()
        )
        piece = Piece([], [], trees, [])
        for number, (row, tree) in enumerate(zip(self._rows, trees, strict=True)):
            tokens, nodes = (
                ([], []) if row.ended else self._walk(row, tree, logits[number], best[number])
            )
            origins = [] if tree.origins is None else tree.origins.tolist()
            piece.tokens.append(tokens)
            piece.origins.append(
                [origins[node] for node in nodes] + [0] * (len(tokens) - len(nodes))
            )
            piece.accepted.append(nodes)
        return piece

    def _walk(
        self, row: Row, tree: TokenTree, logits: torch.Tensor, best: list[int] | None
    ) -> tuple[list[int], list[int]]:
        """Write to one row; return its new tokens, and the nodes of the tree that were accepted."""
        # By parent (-1: the context) and token; of equal siblings the first.
        children: dict[tuple[int, int], int] = {}
        for node, edge in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
            children.setdefault(edge, node)
        ahead: list[int] = []
        if self._typical and children:
            ahead = typical_path(children, row, logits, self._stops.is_end)
        tokens: list[int] = []
        nodes: list[int] = []
        position = 0  # in the step
        while True:
            position_logits = logits[position : position + 1]
            scores = None
            if best is not None:
                token = best[position]
            else:
                scores = row.processed(row.ids(), position_logits)
                token = ahead.pop(0) if ahead else row.pick(scores)
            if self._keeps_logits or self._keeps_scores:
                row.keep(
                    position_logits, scores, logits=self._keeps_logits, scores=self._keeps_scores
                )
            row.tokens.append(token)
            tokens.append(token)
            row.ended = self._ends(row)
            following = children.get((position - 1, token))
            if following is not None:
                nodes.append(following)
                position = 1 + following
            if following is None or row.ended:
                return tokens, nodes

    def _ends(self, row: Row) -> bool:
        """Return whether the last token of `row` meets a stopping criterion."""
        if self._stops.are_simple:
            return self._stops.after(row.tokens[-1], len(row.tokens))
        return self._stops.judge(row.ids(), tuple(row.scores) or None)
