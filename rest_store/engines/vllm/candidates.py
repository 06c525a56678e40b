"""The chains that texts may go on with, of which the device takes
what follows the tokens that it has really written.

A lookup knows a text as it was a step ago. The step under way adds up to K + 1 tokens to it. So
what a session says of the K + 1 + K tokens after that text holds the K tokens that follow, if it
was right so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rest_store.datastore.tree import TokenTree
from rest_store.engines.request import Chain, Tokens

# Whether draft tokens with these scores are worth verifying.
Worth = Callable[[Sequence[float]], bool]


class Draft(NamedTuple):
    """What a lookup says of the next step.

    Attributes:
        chain: draft tokens, perhaps none.
        scores: of these.
        is_chosen: whether they are verified.
    """

    chain: Chain = Chain([], [])
    scores: Sequence[float] = ()
    is_chosen: bool = False


class Candidate(NamedTuple):
    """How one text may go on.

    Attributes:
        tokens: a session's chain after the text as it is known.
        drafts: of the next step, by the number of tokens that the text has grown by since then.
    """

    tokens: list[int]
    drafts: list[Draft]

    @classmethod
    def of(cls, tree: TokenTree, lag: int, most: int, is_worth: Worth) -> Candidate:
        """Return what a session's chain says.

        Args:
            tree: the chain.
            lag: the most tokens that the text has grown by.
            most: tokens of a draft.
            is_worth: says of each draft whether it is to be verified.
        """
        tokens, origins = tree.tokens.tolist(), np.asarray(tree.origins).tolist()
        # The chance of the text itself, and of each token.
        scores = [1.0, *np.asarray(tree.scores).tolist()]
        drafts = []
        for grown in range(min(lag, len(tokens)) + 1):
            end = grown + most
            chances = [score / max(scores[grown], 1e-6) for score in scores[grown + 1 : end + 1]]
            is_chosen = bool(chances) and is_worth(chances)
            drafts.append(Draft(Chain(tokens[grown:end], origins[grown:end]), chances, is_chosen))
        return cls(tokens, drafts)

    def draft(self, new: Tokens) -> Draft:
        """Return what is said of a text that has grown by `new`."""
        if new.size >= len(self.drafts) or self.tokens[: new.size] != new.tolist():
            return Draft()
        return self.drafts[new.size]


def drafts_on_device(
    candidates: Sequence[Candidate | None],
    known: Sequence[int],
    lag: int,
    texts: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    otherwise: torch.Tensor,
) -> torch.Tensor:
    """Return the drafts of a batch's rows, int64[R, K]; waits for nothing.

    Args:
        candidates: of each row; None: none.
        known: tokens of each row's text as its candidate knows it.
        lag: as in `Candidate.of`.
        texts: int32[M, longest], of all requests of the engine.
        rows: int64[R], where the texts of the batch's rows are.
        lengths: int[M], tokens of each text.
        otherwise: int64[R, K], draft tokens of rows without one from here.
    """
    most, device = otherwise.shape[1], rows.device
    tokens = np.full((len(candidates), lag + most), -1, np.int32)
    chosen = np.zeros((len(candidates), lag + 1), np.bool_)
    for row, candidate in enumerate(candidates):
        if candidate is not None:
            tokens[row, : len(candidate.tokens)] = candidate.tokens[: lag + most]
            chosen[row, : len(candidate.drafts)] = [draft.is_chosen for draft in candidate.drafts]
    if not chosen.any():
        return otherwise
    of_rows, is_chosen = _to_device(tokens, device), _to_device(chosen, device)
    before = _to_device(np.asarray(known, np.int64), device)
    grown = (lengths[rows].long() - before).clamp(0, lag)[:, None]
    offsets = torch.arange(lag, device=device)
    written = texts[rows[:, None], (before[:, None] + offsets).clamp(max=texts.shape[1] - 1)]
    fits = ((of_rows[:, :lag] == written) | (offsets >= grown)).all(dim=1, keepdim=True)
    drafts = of_rows.gather(1, grown + torch.arange(most, device=device)).long()
    # A position without a token has one that is there in any case; all K are verified.
    return torch.where(fits & is_chosen.gather(1, grown) & (drafts >= 0), drafts, otherwise)


def _to_device(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
