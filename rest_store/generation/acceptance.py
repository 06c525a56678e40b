"""Which draft tokens are accepted: those that the model chooses, too, from the context on along the tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rest_store.generation.drafts import Draft
from rest_store.generation.progress import Piece, Statistics
from rest_store.generation.rows import Row
from rest_store.generation.sampling import Choice, Stops
from rest_store.generation.top_k import TopTokens
from rest_store.generation.typical import TypicalRule, TypicalStep


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

    def accept(
        self, logits: torch.Tensor, top_tokens: TopTokens, drafts: Sequence[Draft], statistics: Statistics
    ) -> tuple[Piece, list[list[int]]]:
        """Write what one forward pass brought.

        Args:
            logits: [rows, width, vocabulary], of each row's last token and its tree.
            top_tokens: the most likely tokens of these logits.
            drafts: of each row.
            statistics: counts the tokens.

        Returns:
            The new tokens, and for each row the places in the step that they follow, the first being 0.
        """
        best = top_tokens.best.tolist() if top_tokens.best is not None else [None] * len(drafts)
        piece, paths = Piece([], []), []
        for number, (row, draft) in enumerate(zip(self._rows, drafts, strict=True)):
            tokens, path = ([], []) if row.ended else self._walk(number, draft, logits[number], best[number])
            origins = [draft.origins[place - 1] for place in path[1:]]
            origins += [0] * (len(tokens) - len(origins))
            row.origins += origins
            piece.tokens.append(tokens)
            piece.origins.append(origins)
            paths.append(path[: len(tokens)])
            statistics.tokens += len(tokens)
            statistics.drafts.accepted += len(path[1:])
        return piece, paths

    def _walk(
        self, number: int, draft: Draft, logits: torch.Tensor, best: list[int] | None
    ) -> tuple[list[int], list[int]]:
        """Write to one row; return its new tokens and the places in the step that they follow, the first being 0."""
        row = self._rows[number]
        children: dict[tuple[int, int], int] = {}  # by place of the parent and token; of equal siblings the first
        for node, edge in enumerate(zip(draft.tree.parents.tolist(), draft.tree.tokens.tolist(), strict=True)):
            children.setdefault((edge[0] + 1, edge[1]), node + 1)
        typical = None
        if self._typical is not None:
            ids, is_end = row.ids(), self._stops.is_end
            typical = TypicalStep(self._typical, children, self._choice, number, ids, logits, is_end)
        tokens, path = [], [0]
        while True:
            place = path[-1]
            if best is not None:
                token, scores = best[place], None
            elif typical is not None:
                token, scores = typical.choose(place)
            else:
                token, scores = self._choice.choose(number, row.ids(), logits[place : place + 1])
            if self._keeps_logits or self._keeps_scores:
                row.keep(logits[place : place + 1], scores, logits=self._keeps_logits, scores=self._keeps_scores)
            row.tokens.append(token)
            tokens.append(token)
            child = children.get((place, token))
            if child is not None:
                path.append(child)
            row.ended = self._ends(row)
            if child is None or row.ended:
                return tokens, path

    def _ends(self, row: Row) -> bool:
        """Whether the last token of `row` meets a stopping criterion."""
        if self._stops.are_simple:
            return self._stops.after(row.tokens[-1], len(row.tokens))
        return self._stops.judge(row.ids(), tuple(row.scores) or None)
