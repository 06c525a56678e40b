"""The draft tokens of a batch, chosen on the device by the tokens that it has really written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rest_store.engines.vllm.outcomes import NO_OUTCOMES, Outcomes

_MAX_SUFFIX = 8  # tokens at the end of a text that are looked for in it
_MAX_SEARCHED = 1 << 22  # tokens of all texts; of longer ones, the last part is searched
_NOTHING = -1  # a token or a parent that matches none


class DeviceDrafts(NamedTuple):
    """The drafts of a batch's rows; of R rows and K tokens.

    Attributes:
        tokens: int64[R, K].
        chances: float32[R, K], that each token is accepted if those before it are; of tokens that
            are not from a session, 0.
        is_ours: bool[R, K], whether a token is from a session.
    """

    tokens: torch.Tensor
    chances: torch.Tensor
    is_ours: torch.Tensor


def drafts_on_device(
    outcomes: Sequence[Outcomes | None],
    known: Sequence[int],
    texts: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    native: torch.Tensor,
    *,
    looks_up_texts: bool,
    outputs: Sequence[torch.Tensor | None] = (),
) -> DeviceDrafts | None:
    """Choose the drafts of a batch's rows without waiting for the device.

    A row takes the draft after its own outcome. If its lookup did not foresee the outcome, the row
    takes the continuation of its own text (`looks_up_texts`), or `native`. After a draft shorter
    than K come tokens of `native`, since all K are verified.

    Args:
        outcomes: of each row's latest lookup; None: the row has no drafts from here.
        known: tokens of each row's text at that lookup.
        texts: int32[M, max_length], of all requests of the engine.
        rows: int64[R], where the texts of the batch's rows are.
        lengths: int[M], tokens of each text.
        native: int64[R, K], the draft tokens of vLLM's own speculator.
        looks_up_texts: whether an outcome that was not foreseen has the continuation of the longest
            suffix of the text that occurred in it before, or in its outputs, ahead of `native`.
        outputs: of each row: int32[n], outputs that it may draft from, each followed by -1, the
            latest last; None: none. Rows that share outputs have the same tensor. Empty: no row
            has any.

    Returns:
        The drafts; None: all are `native`.
    """
    if all(one is None for one in outcomes):
        return None
    table = _Table.from_outcomes(outcomes, known, native.shape[1], rows.device)
    offsets = torch.arange(native.shape[1], device=rows.device)
    own_lengths = lengths[rows].long()
    grown = own_lengths - table.known
    last = texts[rows, (own_lengths - 1).clamp(min=0)]
    parents = table.verified.gather(1, (grown - 1).clamp(0, native.shape[1])[:, None])
    is_node = (table.parents == parents) & (table.tokens == last[:, None])
    is_node &= ((grown > 0) & (grown <= native.shape[1] + 1))[:, None]
    is_foreseen = is_node.any(dim=1) | (grown == 0)
    place = torch.where(grown == 0, 0, 1 + is_node.int().argmax(dim=1))[:, None]
    sizes = table.sizes.gather(1, place)
    is_ours = is_foreseen[:, None] & (offsets < sizes)
    nodes = (place + offsets).clamp(max=table.tokens.shape[1] - 1)
    drafts = torch.where(is_ours, table.tokens.gather(1, nodes).long(), native)
    if looks_up_texts:
        longest = max(known) + native.shape[1] + 1
        again = continuations_in_texts(
            texts[:, :longest], rows, own_lengths, native.shape[1], outputs
        )
        is_again = (again >= 0) & table.has_outcomes[:, None] & ~is_foreseen[:, None]
        drafts = torch.where(is_again, again, drafts)
    chances = torch.where(is_ours, table.chances.gather(1, nodes), 0.0)
    return DeviceDrafts(drafts, chances, is_ours)


def continuations_in_texts(
    texts: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    count: int,
    outputs: Sequence[torch.Tensor | None] = (),
) -> torch.Tensor:
    """Return the tokens after the latest occurrence of each text's longest suffix in it.

    A row's outputs are searched as if they came before its text: of suffixes of the same length,
    one in the text itself is later.

    Args:
        texts: int32[M, n].
        rows: int64[R], the texts to continue.
        lengths: int64[R], tokens of each of these.
        count: tokens to return of each.
        outputs: as in `drafts_on_device`.

    Returns:
        int64[R, count]; -1 where even the last token has not occurred before, and after the end of
        an output. A suffix has at most 8 tokens. A continuation that reaches the end
        of its text is repeated from its beginning.
    """
    most = max(1, _MAX_SEARCHED // len(rows))
    width = min(texts.shape[1], most)
    ends = torch.arange(width, device=texts.device)
    starts = (lengths - width).clamp(min=0)
    own = texts[rows[:, None], starts[:, None] + ends]
    before = _searched_outputs(outputs, most - width, rows.device)
    searched = torch.cat([before, own], dim=1) if before.numel() else own
    width = searched.shape[1]
    last = (lengths - starts)[:, None] - 1 + width - own.shape[1]
    ends = torch.arange(width, device=texts.device)  # of occurrences
    # An occurrence at the end of an output has no continuation.
    is_match = (ends < last) & (searched.roll(-1, 1) != _NOTHING)
    matched = torch.zeros(searched.shape, dtype=torch.int32, device=own.device)
    for back in range(min(_MAX_SUFFIX, width)):
        tokens = searched.gather(1, (last - back).clamp(min=0))
        shifted = torch.nn.functional.pad(searched, (back, 0), value=_NOTHING)[:, :width]
        is_match = is_match & (shifted == tokens) & (tokens != _NOTHING) & (last >= back)
        matched += is_match
    # Of equal lengths, the latest occurrence.
    latest = torch.where(matched > 0, matched * width + ends.int(), -1)
    best, end = latest.max(dim=1, keepdim=True)
    period = (last - end).clamp(min=1)
    offsets = torch.arange(count, device=own.device)
    places = (end + 1 + offsets % period).clamp(max=width - 1)
    continued = torch.where(best >= 0, searched.gather(1, places).long(), _NOTHING)
    is_before_end = (continued != _NOTHING).int().cumprod(dim=1).bool()
    return torch.where(is_before_end, continued, _NOTHING)


def _searched_outputs(
    outputs: Sequence[torch.Tensor | None], most: int, device: torch.device
) -> torch.Tensor:
    """Return the ends of outputs, int32[R, n] with n <= `most`, filled with -1 at the left."""
    apart = {id(one): one for one in outputs if one is not None and one.numel()}
    width = min(most, max((one.numel() for one in apart.values()), default=0))
    if not width:
        return torch.zeros(0, dtype=torch.int32, device=device)
    numbers = {name: number for number, name in enumerate(apart)}
    ends = [
        torch.nn.functional.pad(one[-width:], (max(0, width - one.numel()), 0), value=_NOTHING)
        for one in apart.values()
    ]
    ends.append(torch.full_like(ends[0], _NOTHING))  # of rows without outputs
    output_indices = [numbers.get(id(one), len(apart)) for one in outputs]
    return torch.stack(ends)[_to_device(np.array(output_indices, np.int64), device)]


class _Table(NamedTuple):
    """The outcomes of a batch's rows on the device, padded to the largest tree, of N nodes.

    Attributes:
        tokens, parents: int32[R, N].
        sizes: int32[R, N + 1], of the drafts that are preferred after each place.
        verified: int32[R, K + 1], the node after 0, 1, .. verified tokens; -1: the text.
        chances: float32[R, N].
        known: int64[R].
        has_outcomes: bool[R]; False: the row has no drafts from here.
    """

    tokens: torch.Tensor
    parents: torch.Tensor
    sizes: torch.Tensor
    verified: torch.Tensor
    chances: torch.Tensor
    known: torch.Tensor
    has_outcomes: torch.Tensor

    @classmethod
    def from_outcomes(
        cls,
        outcomes: Sequence[Outcomes | None],
        known: Sequence[int],
        max_nodes: int,
        device: torch.device,
    ) -> _Table:
        count = len(outcomes)
        size = max(1, *(len(one.tree) for one in outcomes if one is not None))
        tokens = np.full((count, size), _NOTHING, np.int32)
        parents = np.full((count, size), _NOTHING - 1, np.int32)
        sizes = np.zeros((count, size + 1), np.int32)
        verified = np.full((count, max_nodes + 1), _NOTHING - 2, np.int32)
        chances = np.zeros((count, size), np.float32)
        for row, one in enumerate(outcomes):
            own = one or NO_OUTCOMES
            nodes = len(own.tree)
            tokens[row, :nodes] = own.tree.tokens
            parents[row, :nodes] = own.tree.parents
            sizes[row, : nodes + 1] = np.where(own.is_preferred, own.sizes, 0)
            places = own.verified_places[: max_nodes + 1]
            verified[row, : places.size] = places - 1
            chances[row, :nodes] = own.chances
        columns = (
            tokens,
            parents,
            sizes,
            verified,
            chances,
            np.asarray(known, np.int64),
            np.array([one is not None for one in outcomes]),
        )
        return cls(*(_to_device(column, device) for column in columns))


def _to_device(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
