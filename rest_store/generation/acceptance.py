"""Which draft tokens are accepted: those that the model chooses, too, from the context on along the tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rest_store.generation.drafts import Draft
from rest_store.generation.output import Piece
from rest_store.generation.rows import Row
from rest_store.generation.sampling import Choice, Stops
from rest_store.generation.top_k import TopTokens
from rest_store.generation.typical import TypicalRule, typical_path


class Acceptance:
    """Writes the next tokens of each row: chosen one by one along the row's tree, until they leave it.

    Args:
        rows: written to.
        choice: chooses tokens.
        stops: end a row.
        typical: keeps plausible draft tokens without a draw; None: every token is chosen exactly.
        keeps_logits: whether rows keep the logits of each token.
        keeps_scores: whether rows keep the scores of each token.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        choice: Choice,
        stops: Stops,
        typical: TypicalRule | None,
        *,
        keeps_logits: bool,
        keeps_scores: bool,
    ) -> None:
        self._rows, self._choice, self._stops, self._typical = rows, choice, stops, typical
        self._keeps_logits, self._keeps_scores = keeps_logits, keeps_scores

    def accept(self, logits: torch.Tensor, top_tokens: TopTokens, drafts: Sequence[Draft]) -> Piece:
        """Write what one forward pass brought, and return it.

        Args:
            logits: [rows, width, vocabulary], of each row's last token and its tree.
            top_tokens: the most likely tokens of these logits.
            drafts: of each row.
        """
        best: list[list[int] | None] = [None] * len(drafts) if top_tokens.best is None else top_tokens.best.tolist()
        piece = Piece([], [], drafts, [])
        for number, (row, draft) in enumerate(zip(self._rows, drafts, strict=True)):
            tokens, nodes = ([], []) if row.ended else self._walk(number, draft, logits[number], best[number])
            origins = [draft.origins[node] for node in nodes]
            origins += [0] * (len(tokens) - len(origins))
            row.origins += origins
            piece.tokens.append(tokens)
            piece.origins.append(origins)
            piece.accepted.append(nodes)
        return piece

    def _walk(
        self, number: int, draft: Draft, logits: torch.Tensor, best: list[int] | None
    ) -> tuple[list[int], list[int]]:
        """Write to one row; return its new tokens, and the nodes of the tree that were accepted."""
        row = self._rows[number]
        children: dict[tuple[int, int], int] = {}  # by parent (-1: the context) and token; of equal siblings the first
        for node, edge in enumerate(zip(draft.tree.parents.tolist(), draft.tree.tokens.tolist(), strict=True)):
            children.setdefault(edge, node)
        ahead: list[int] = []
        if self._typical is not None and children:
            ids, is_end = row.ids(), self._stops.is_end
            ahead = typical_path(self._typical, children, self._choice, number, ids, logits, is_end)
        tokens: list[int] = []
        nodes: list[int] = []
        place = 0  # in the step
        while True:
            of_place = logits[place : place + 1]
            scores = None
            if best is not None:
                token = best[place]
            else:
                scores = self._choice.scores(number, row.ids(), of_place)
                token = ahead.pop(0) if ahead else self._choice.pick(number, scores)
            if self._keeps_logits or self._keeps_scores:
                row.keep(of_place, scores, logits=self._keeps_logits, scores=self._keeps_scores)
            row.tokens.append(token)
            tokens.append(token)
            row.ended = self._ends(row)
            following = children.get((place - 1, token))
            if following is not None:
                nodes.append(following)
                place = 1 + following
            if following is None or row.ended:
                return tokens, nodes

    def _ends(self, row: Row) -> bool:
        """Whether the last token of `row` meets a stopping criterion."""
        if self._stops.are_simple:
            return self._stops.after(row.tokens[-1], len(row.tokens))
        return self._stops.judge(row.ids(), tuple(row.scores) or None)
