"""Which draft tokens are accepted: those that the model chooses, too, from the context on along the tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rest_store.generation.drafts import Draft
from rest_store.generation.progress import Piece, Statistics
from rest_store.generation.rows import Rows
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
        rows: Rows,
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
        verified = [
            self._rows.continues(row) for row in self._rows
        ]  # before the loop ends rows, which may let others continue
        for number, draft in enumerate(drafts):
            tokens, path = self._walk(number, draft, logits[number], best[number]) if verified[number] else ([], [])
            origins = [draft.origins[place - 1] for place in path[1:]]
            origins += [0] * (len(tokens) - len(origins))
            self._rows[number].origins += origins
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
        if (rule := self._typical) is not None:
            typical = TypicalStep(rule, children, self._choice, number, row.ids(), logits, self._stops.is_end)
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
            if self._rows.ends(row, token):
                if self._stops.pads:
                    self._choice.finish(number)
                return tokens, path
            if child is None:
                return tokens, path
