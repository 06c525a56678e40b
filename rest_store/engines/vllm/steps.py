"""What a step of the engine has written, copied from the device while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from rest_store.engines.request import Rows, Tokens


class Written(NamedTuple):
    """What one request has written in a step.

    Attributes:
        id: of the request.
        row: where vLLM's `RequestState` has its text.
        length: tokens of its text with these.
        tokens: int32[n].
        verified: draft tokens that the engine verified, which may be less than it had scheduled.
        top_k: as `DraftSession.accept` takes it; None: unknown.
    """

    id: str
    row: int
    length: int
    tokens: Tokens
    verified: int
    top_k: Rows | None


class Step:
    """A step whose outcome is on its way from the device.

    How many draft tokens a row verified, and where its logits are, only the device knows: with
    adaptive verification, vLLM admits less than the host has scheduled.

    Args:
        batch: vLLM's `InputBatch`.
        states: vLLM's `RequestState`.
        num_sampled: int[R], tokens that each row has written.
        num_rejected: int[R], draft tokens of each row that were verified and not accepted.
        most: the most tokens that a row may have written.
        likely: int32[positions, 8], the model's most likely tokens; None: unknown.
    """

    def __init__(
        self,
        batch: Any,
        states: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        most: int,
        likely: torch.Tensor | None,
    ) -> None:
        count = batch.num_reqs
        self._ids = list(batch.req_ids[:count])
        rows = batch.idx_mapping[:count]
        lengths = states.total_len.gpu[rows].long()
        where = lengths[:, None] - most + torch.arange(most, device=lengths.device)
        columns = [
            rows.long(),
            lengths,
            num_sampled[:count].long(),
            num_rejected[:count].long(),
            batch.cu_num_logits[:count].long(),
            batch.cu_num_logits[1 : count + 1].long(),
        ]
        tokens = states.all_token_ids.gpu[rows[:, None], where.clamp(min=0)].long()
        self._columns = torch.cat([torch.stack(columns, dim=1), tokens], dim=1).to(
            "cpu", non_blocking=True
        )
        self._likely = None if likely is None else likely.to("cpu", non_blocking=True)
        self._event = None
        if lengths.device.type != "cpu":
            self._event = torch.Event(device=lengths.device.type)
            self._event.record()

    def read(self) -> Iterator[Written]:
        """Yield what each request has written, once the device has done the step."""
        if self._event is not None:
            self._event.synchronize()
        columns = self._columns.numpy()
        likely = None if self._likely is None else self._likely.numpy()
        if likely is not None and columns.size and len(likely) != columns[-1, 5]:
            likely = None  # of other positions
        for index, id in enumerate(self._ids):
            row, length, count, rejected, first = columns[index, :5].tolist()
            top_k = None
            if likely is not None and count:
                top_k = np.full((count + 1, likely.shape[1]), -1, np.int32)
                # Not after the last one, which was not read yet.
                top_k[:count] = likely[first : first + count]
            new = columns[index, columns.shape[1] - count :].astype(np.int32)
            verified = count - 1 + rejected if count else 0
            yield Written(id, row, length, new, verified, top_k)
