"""The tokens that a step of vLLM has written, copied from the device while it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from rest_store.drafting.draft_options import TopK
from rest_store.engines.request import Tokens


class Written(NamedTuple):
    """The tokens that one request has written in a step.

    Attributes:
        id: of the request.
        row: of its text in vLLM's `RequestState`.
        length: tokens of its text, with these.
        tokens: int32[n].
        verified: number of draft tokens that the engine verified, perhaps less than it scheduled.
        top_k: as `DraftSession.accept` takes it; None: unknown.
    """

    id: str
    row: int
    length: int
    tokens: Tokens
    verified: int
    top_k: TopK | None


class Step:
    """A step whose outcome is on its way from the device.

    Only the device knows how many draft tokens a row verified, and where its logits are: with
    adaptive verification, vLLM admits less than the host has scheduled.

    Args:
        batch: vLLM's `InputBatch`.
        states: vLLM's `RequestState`.
        num_sampled: int[R], tokens that each row has written.
        num_rejected: int[R], draft tokens of each row that were verified and not accepted.
        max_written: the most tokens that a row may have written.
        likely: int32[positions, 8], the model's most likely tokens; None: unknown.
    """

    def __init__(
        self,
        batch: Any,
        states: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        max_written: int,
        likely: torch.Tensor | None,
    ) -> None:
        count = batch.num_reqs
        self._ids = list(batch.req_ids[:count])
        rows = batch.idx_mapping[:count]
        lengths = states.total_len.gpu[rows].long()
        places = lengths[:, None] - max_written + torch.arange(max_written, device=lengths.device)
        columns = [
            rows.long(),
            lengths,
            num_sampled[:count].long(),
            num_rejected[:count].long(),
            batch.cu_num_logits[:count].long(),
            batch.cu_num_logits[1 : count + 1].long(),
        ]
        tokens = states.all_token_ids.gpu[rows[:, None], places.clamp(min=0)].long()
        self._columns = torch.cat([torch.stack(columns, dim=1), tokens], dim=1).to(
            "cpu", non_blocking=True
        )
        self._likely = None if likely is None else likely.to("cpu", non_blocking=True)
        self._drafts: torch.Tensor | None = None
        self._event: torch.Event | None = None
        self._record(lengths.device)

    def _record(self, device: torch.device) -> None:
        """Have `read` wait for all that has been queued for the device so far."""
        if device.type != "cpu":
            self._event = torch.Event(device=device.type)
            self._event.record()

    def propose(self, drafts: torch.Tensor) -> None:
        """Copy the drafts of the rows for the next step, int64[R, K], from the device, too."""
        self._drafts = drafts.to("cpu", torch.int32, non_blocking=True, copy=True)
        self._record(drafts.device)

    def drafts(self) -> dict[str, Tokens]:
        """Return the draft of each request for the next step, after `read`."""
        if self._drafts is None:
            return {}
        # A negative token is none.
        rows = np.minimum.accumulate(self._drafts.numpy() >= 0, axis=1)
        return {
            id: row[own] for id, row, own in zip(self._ids, self._drafts.numpy(), rows, strict=True)
        }

    def read(self) -> Iterator[Written]:
        """Yield the tokens that each request has written, once the device has done the step."""
        if self._event is not None:
            self._event.synchronize()
        columns = self._columns.numpy()
        likely = None if self._likely is None else self._likely.numpy()
        if likely is not None and columns.size and len(likely) != columns[-1, 5]:
            likely = None  # they belong to other positions
        for index, id in enumerate(self._ids):
            row, length, count, rejected, first = columns[index, :5].tolist()
            top_k = None
            if likely is not None and count:
                top_k = np.full((count + 1, likely.shape[1]), -1, np.int32)
                # The model has not read the last token yet.
                top_k[:count] = likely[first : first + count]
            new = columns[index, columns.shape[1] - count :].astype(np.int32)
            verified = count - 1 + rejected if count else 0
            yield Written(id, row, length, new, verified, top_k)
