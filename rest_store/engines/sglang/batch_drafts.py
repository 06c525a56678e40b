"""Drafts for the batches of SGLang's scheduler: what its requests have written, and what the model found likely."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.datastore.tree import TokenTree
from rest_store.engines.likely_tokens import likely_tokens
from rest_store.engines.request import NewRequest, Rows, StepRequest, Tokens
from rest_store.engines.request_drafter import NO_TREE, RequestDrafter
from rest_store.engines.sglang.verify_arrays import verify_arrays

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

_PREDICTION = "prediction"  # the key of a request's `custom_params`, as OpenAI names it


class BatchDrafts:
    """A draft for each request of a batch, step by step. No method raises anything but interrupts.

    SGLang runs the scheduler's work for a step while the step before still runs on the device, so the newest tokens may
    be missing in its requests; then they stand in the batch. Whether they are missing, the length of the cache tells.

    Args:
        drafter: has a session for each request.
        nodes: that are verified for each request, with its last token.
        shape: "tree" or "chain".
        ends: tokens that end an output, besides those that a request names.
    """

    def __init__(self, drafter: RequestDrafter, nodes: int, shape: str, ends: Iterable[int] = ()) -> None:
        self._drafter = drafter
        self._nodes = nodes
        self._shape = shape
        self._ends = frozenset(ends)
        self._requests: dict[str, Req] = {}  # that have a session
        self._verified: dict[str, int] = {}  # of those in the latest step, the nodes of the draft
        self._likely = _LikelyTokens()

    def arrays(self, batch: ScheduleBatch, *, is_ahead: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the tokens and the mask that a step verifies, as `verify_arrays`.

        Args:
            batch: of the step.
            is_ahead: whether the latest step's tokens may be missing in the requests.
        """
        requests = list(batch.reqs)
        newest = _newest(batch) if is_ahead else [[] for _ in requests]
        last = [_last(request, tokens) for request, tokens in zip(requests, newest, strict=True)]
        trees = [NO_TREE] * len(requests)
        try:
            cached = batch.seq_lens_cpu.tolist()  # without the last token
            steps = [
                self._step(request, tokens, 1 + length)
                for request, tokens, length in zip(requests, newest, cached, strict=True)
            ]
            trees = self._drafter.draft(steps, self._shape)
        except Exception as error:
            self._drafter.metrics.count_error("batch", error)
        self._verified = {request.rid: len(tree) for request, tree in zip(requests, trees, strict=True)}
        return verify_arrays(last, trees, self._nodes)

    def _step(self, request: Req, newest: Sequence[int], length: int) -> StepRequest:
        """Return what a request asks for; it begins if its text is not known yet, or is another than before.

        Args:
            request: SGLang's.
            newest: what the latest step wrote for it, if that may be missing in the request.
            length: the tokens of its text, as the cache has them.
        """
        prompt = request.origin_input_ids_unpadded
        missing = length - len(request.origin_input_ids) - len(request.output_ids)
        if missing not in (0, len(newest)):
            raise ValueError(f"request {request.rid} lacks {missing} tokens of a step that wrote {len(newest)}")
        unseen = newest[:missing]
        known = self._drafter.length(request.rid)
        if not len(prompt) <= known <= len(prompt) + len(request.output_ids):
            self._requests[request.rid] = request
            self._drafter.begin(self._new(request, unseen))
            return StepRequest(request.rid, _tokens(), self._nodes - 1)
        new = _tokens(request.output_ids[known - len(prompt) :], unseen)
        return StepRequest(request.rid, new, self._nodes - 1, node_top_k=self._likely_rows(request.rid))

    def _new(self, request: Req, unseen: Sequence[int]) -> NewRequest:
        sampling = request.sampling_params
        prompt = request.origin_input_ids_unpadded
        ends = {} if sampling.ignore_eos else self._ends | set(request.eos_token_ids or ())
        references: tuple[Any, ...] = ()
        try:
            references = references_of(sampling.custom_params)
        except ValueError as error:
            self._drafter.metrics.count_error(_PREDICTION, error)
        return NewRequest(
            request.rid,
            _tokens(prompt, request.output_ids, unseen),
            len(prompt),
            most=sampling.max_new_tokens,
            ends=frozenset(ends) | set(sampling.stop_token_ids or ()),
            references=references,
        )

    def _likely_rows(self, rid: str) -> Rows | None:
        """Return what the model found likely after the text and each node of the latest draft; None if unknown."""
        rows = self._likely.of(rid)
        return None if rows is None else rows[: 1 + self._verified.get(rid, 0)]

    def take(self, batch: ScheduleBatch, logits: torch.Tensor) -> None:
        """Keep the model's most likely tokens of a step, [B * nodes, vocabulary], without waiting for the device."""
        try:
            self._likely.take([request.rid for request in batch.reqs], likely_tokens(logits))
        except Exception as error:
            self._drafter.metrics.count_error("logits", error)

    def finish(self, rid: str) -> None:
        """Accept the last step of a request, and remember its output."""
        request = self._requests.pop(rid, None)
        if request is None:
            return
        try:
            known = self._drafter.length(rid) - len(request.origin_input_ids_unpadded)
            new = _tokens(request.output_ids[known : request.finished_len]) if known >= 0 else _tokens()
            if new.size:
                self._drafter.draft([StepRequest(rid, new, 0, node_top_k=self._likely_rows(rid))])
        except Exception as error:
            self._drafter.metrics.count_error("finish", error)
        self._drafter.finish([rid])

    def drop(self, rids: Iterable[str]) -> None:
        """Forget requests that have left the batch without an end; those that were put off begin anew."""
        left = [rid for rid in rids if self._requests.pop(rid, None) is not None]
        self._drafter.drop(left)

    def drop_all(self) -> None:
        """Forget all requests."""
        self.drop(list(self._requests))


class _LikelyTokens:
    """The model's most likely tokens in the latest step, on its device until somebody asks."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._taken: torch.Tensor | None = None
        self._rows: npt.NDArray[np.int32] | None = None

    def take(self, rids: Sequence[str], likely: torch.Tensor) -> None:
        self._places = {rid: place for place, rid in enumerate(rids)}
        self._taken, self._rows = likely.view(len(rids), -1, likely.shape[1]), None

    def of(self, rid: str) -> Rows | None:
        """Return those of a request, int32[nodes, k]; None if it was not in that step."""
        place = self._places.get(rid)
        if place is None or self._taken is None:
            return None
        if self._rows is None:
            self._rows = self._taken.cpu().numpy()
        rows: Rows = self._rows[place]
        return rows


def references_of(custom_params: object) -> tuple[str | list[int], ...]:
    """Return the texts that a request predicts as its output, from SGLang's `custom_params`.

    `prediction` is a text, token ids, several texts, or an object as OpenAI has it: {"type": "content", "content": ..}.

    Raises:
        ValueError: it is something else.
    """
    prediction = custom_params.get(_PREDICTION) if isinstance(custom_params, dict) else None
    if isinstance(prediction, dict):
        prediction = prediction.get("content", prediction)
    if prediction is None or prediction == []:
        return ()
    if isinstance(prediction, str):
        return (prediction,)
    if isinstance(prediction, list):
        if all(isinstance(text, str) for text in prediction):
            return tuple(prediction)
        if all(isinstance(token, int) for token in prediction):
            return (prediction,)
    raise ValueError("a prediction is not a text, token ids, or several texts")


def _newest(batch: ScheduleBatch) -> list[list[int]]:
    """Return what the latest step wrote for each request of a batch; waits for the device."""
    accepted, counts = batch.spec_info.accept_tokens.tolist(), batch.spec_info.accept_lens.tolist()
    width = len(accepted) // max(1, len(counts))
    return [accepted[row * width : row * width + count] for row, count in enumerate(counts)]


def _last(request: Req, newest: Sequence[int]) -> int:
    """Return the last token of a request."""
    for tokens in (newest, request.output_ids, request.origin_input_ids_unpadded):
        if len(tokens):
            return int(tokens[-1])
    raise ValueError(f"request {request.rid} has no tokens")


def _tokens(*parts: Sequence[int]) -> Tokens:
    return np.concatenate([np.zeros(0, np.int32), *(np.asarray(part, np.int32) for part in parts)])
