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
        verified: draft tokens that the engine verified.
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

    Args:
        batch: vLLM's `InputBatch`.
        states: vLLM's `RequestState`.
        num_sampled: int[R], tokens that each row has written.
        most: the most of these.
        likely: int32[positions, 8], the model's most likely tokens; None: unknown.
    """

    def __init__(
        self,
        batch: Any,
        states: Any,
        num_sampled: torch.Tensor,
        most: int,
        likely: torch.Tensor | None,
    ) -> None:
        self._ids = list(batch.req_ids[: batch.num_reqs])
        per_row = batch.num_draft_tokens_per_req
        self._verified = [0] * batch.num_reqs if per_row is None else np.asarray(per_row).tolist()
        self._starts = np.asarray(batch.cu_num_logits_np).tolist()
        rows = batch.idx_mapping[: batch.num_reqs]
        lengths = states.total_len.gpu[rows].long()
        where = lengths[:, None] - most + torch.arange(most, device=lengths.device)
        tokens = states.all_token_ids.gpu[rows[:, None], where.clamp(min=0)].long()
        columns = [rows[:, None].long(), lengths[:, None], num_sampled[: batch.num_reqs, None].long(), tokens]
        self._columns = torch.cat(columns, dim=1).to("cpu", non_blocking=True)
        is_placed = likely is not None and len(likely) == self._starts[-1]
        self._likely = likely.to("cpu", non_blocking=True) if likely is not None and is_placed else None
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
        for index, id in enumerate(self._ids):
            row, length, count = columns[index, :3].tolist()
            top_k = None
            if likely is not None and count:
                top_k = np.full((count + 1, likely.shape[1]), -1, np.int32)
                top_k[:count] = likely[self._starts[index] :][:count]  # not after the last one, which was not read yet
            new = columns[index, columns.shape[1] - count :].astype(np.int32)
            yield Written(id, row, length, new, self._verified[index], top_k)
