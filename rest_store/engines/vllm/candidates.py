"""The ways that texts may go on, of which the device takes those that they have really taken.

A lookup knows a text as it was a step ago. The step under way adds up to K + 1 tokens to it. So what a session says of
the K + 1 + K tokens after that text holds the K tokens that follow, if it was right so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rest_store.datastore.tree import TokenTree
from rest_store.engines.request import Chain, Tokens

_MOST = 64  # ways of a text

Worth = Callable[[Sequence[float]], bool]  # whether draft tokens with these scores are worth verifying


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


@dataclass(frozen=True)
class Candidates:
    """The ways that one text may go on, the likelier first wherever two begin alike.

    Attributes:
        tokens: int32[A, L + K]; -1 after the end of a way.
        origins: uint8[A, L + K], the sources of each token.
        scores: float64[A, 1 + L + K], the chance that the model writes each token, after that of the text itself.
        chosen: bool[A, L + 1], by the number of tokens that the text has grown by: whether the next ones are verified.
    """

    tokens: npt.NDArray[np.int32]
    origins: npt.NDArray[np.uint8]
    scores: npt.NDArray[np.float64]
    chosen: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tree: TokenTree, lag: int, most: int, is_worth: Worth) -> Candidates:
        """Return the paths of a tree.

        Args:
            tree: a session's, for the text as it is known.
            lag: the most tokens that the text has grown by since then.
            most: tokens of a draft.
            is_worth: says of each draft whether it is to be verified.
        """
        paths = [path[: lag + most] for path in _paths(tree)[:_MOST]]
        shape = (len(paths), lag + most)
        tokens, origins = np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)
        scores = np.zeros((len(paths), 1 + lag + most))
        scores[:, 0] = 1.0
        for way, path in enumerate(paths):
            tokens[way, : len(path)] = tree.tokens[path]
            origins[way, : len(path)] = np.asarray(tree.origins)[path]
            scores[way, 1 : 1 + len(path)] = np.asarray(tree.scores)[path]
        candidates = cls(tokens, origins, scores, np.zeros((len(paths), lag + 1), np.bool_))
        for way, path in enumerate(paths):
            for grown in range(min(len(path), lag + 1)):
                candidates.chosen[way, grown] = is_worth(candidates._draft(way, grown, most).scores)
        return candidates

    def draft(self, new: Tokens, most: int) -> Draft:
        """Return what is said of a text that has grown by `new`."""
        grown = new.size
        if grown >= self.chosen.shape[1]:
            return Draft()
        fits = (self.tokens[:, :grown] == new).all(axis=1)
        chosen = fits & self.chosen[:, grown]
        if not fits.any():
            return Draft()
        way = int(chosen.argmax() if chosen.any() else fits.argmax())
        return self._draft(way, grown, most)._replace(is_chosen=bool(chosen[way]))

    def _draft(self, way: int, grown: int, most: int) -> Draft:
        tokens = self.tokens[way, grown : grown + most]
        count = int((tokens >= 0).sum())
        scores = self.scores[way, grown + 1 : grown + 1 + count] / max(float(self.scores[way, grown]), 1e-6)
        return Draft(Chain(tokens[:count].tolist(), self.origins[way, grown : grown + count].tolist()), scores.tolist())


def _paths(tree: TokenTree) -> list[list[int]]:
    """Return the nodes of each path from the context to a leaf; those through the likelier of two siblings first."""
    parents = tree.parents.tolist()
    if parents == list(range(-1, len(parents) - 1)):  # a chain
        return [list(range(len(parents)))] if parents else []
    scores = np.asarray(tree.scores).tolist()
    paths: list[list[int]] = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return sorted(paths, key=lambda path: [(-scores[node], node) for node in path])


class CandidateTable:
    """The candidates of all rows of a batch, on the device.

    Args:
        candidates: of each row; None: none.
        lengths: tokens of each row's text as its candidates know it.
        lag, most: as in `Candidates.of`.
        device: that of the engine.
    """

    def __init__(
        self,
        candidates: Sequence[Candidates | None],
        lengths: Sequence[int],
        lag: int,
        most: int,
        device: torch.device,
    ) -> None:
        ways = max((of_row.tokens.shape[0] for of_row in candidates if of_row is not None), default=0)
        tokens = np.full((len(candidates), ways, lag + most), -1, np.int32)
        chosen = np.zeros((len(candidates), ways, lag + 1), np.bool_)
        for row, of_row in enumerate(candidates):
            if of_row is not None:
                tokens[row, : len(of_row.tokens)] = of_row.tokens
                chosen[row, : len(of_row.chosen)] = of_row.chosen
        self._ways, self._lag, self._most = ways, lag, most
        self._tokens, self._chosen = to_device(tokens, device), to_device(chosen, device)
        self._lengths = to_device(np.asarray(lengths, np.int64), device)

    def take(
        self, texts: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, otherwise: torch.Tensor
    ) -> torch.Tensor:
        """Return the drafts of the rows, int64[R, K]; waits for nothing.

        Args:
            texts: int32[M, longest], of all requests of the engine.
            rows: int64[R], where the texts of the batch's rows are.
            lengths: int[M], tokens of each text.
            otherwise: int64[R, K], draft tokens of rows without one from here.
        """
        if not self._ways:
            return otherwise
        count = rows.shape[0]
        grown = (lengths[rows].long() - self._lengths).clamp(0, self._lag)
        places = torch.arange(self._lag, device=rows.device)
        where = (self._lengths[:, None] + places).clamp(max=texts.shape[1] - 1)
        written = texts[rows[:, None], where]
        fits = (self._tokens[:, :, : self._lag] == written[:, None]) | (places >= grown[:, None])[:, None]
        fits_now = self._chosen.gather(2, grown[:, None, None].expand(count, self._ways, 1)).squeeze(2)
        fits_now = fits_now & fits.all(dim=2)
        way = fits_now.to(torch.uint8).argmax(dim=1)
        of_way = self._tokens[torch.arange(count, device=rows.device), way].long()
        drafts = of_way.gather(1, grown[:, None] + torch.arange(self._most, device=rows.device))
        is_ours = fits_now.any(dim=1, keepdim=True)
        # A place without a token has one that is there in any case; all K are verified.
        return torch.where(is_ours & (drafts >= 0), drafts, otherwise)


def to_device(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy values to the device; waits for nothing."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
