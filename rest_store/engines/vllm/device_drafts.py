"""The draft tokens of a batch, chosen on the device by the tokens that it has really written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from rest_store.engines.vllm.request import VllmRequest


def drafts_on_device(
    requests: Sequence[VllmRequest | None],
    known: Sequence[int],
    lag: int,
    texts: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    native: torch.Tensor,
) -> torch.Tensor:
    """Return the drafts of a batch's rows, int64[R, K], without waiting for the device.

    Args:
        requests: of each row; None: the row has no drafts from here.
        known: tokens of each row's text at the latest lookup.
        lag: the most tokens that a text has grown by since then.
        texts: int32[M, max_length], of all requests of the engine.
        rows: int64[R], where the texts of the batch's rows are.
        lengths: int[M], tokens of each text.
        native: int64[R, K], the draft tokens of vLLM's own speculator.
    """
    max_nodes = native.shape[1]
    device = rows.device
    tokens = np.full((len(requests), lag + max_nodes), -1, np.int32)
    worth = np.zeros((len(requests), lag + 1), np.bool_)
    for row, request in enumerate(requests):
        if request is not None:
            ahead = request.lookahead.tokens[: lag + max_nodes]
            tokens[row, : ahead.size] = ahead
            worth[row, : len(request.worth)] = request.worth
    if not worth.any():
        return native
    chains = _to_device(tokens, device)
    is_worth = _to_device(worth, device)
    before = _to_device(np.asarray(known, np.int64), device)
    grown = (lengths[rows].long() - before).clamp(0, lag)[:, None]
    offsets = torch.arange(lag, device=device)
    places = (before[:, None] + offsets).clamp(max=texts.shape[1] - 1)
    written = texts[rows[:, None], places]
    fits = ((chains[:, :lag] == written) | (offsets >= grown)).all(dim=1, keepdim=True)
    drafts = chains.gather(1, grown + torch.arange(max_nodes, device=device)).long()
    # Where a chain is shorter than K, vLLM's own tokens follow: all K are verified.
    return torch.where(fits & is_worth.gather(1, grown) & (drafts >= 0), drafts, native)


def _to_device(values: npt.NDArray[np.generic], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
