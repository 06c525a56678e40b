"""Drafts for the batches of SGLang's scheduler, from its requests' tokens and the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.drafting.draft_options import TopK
from rest_store.engines.grammars import Grammars
from rest_store.engines.likely_tokens import likely_tokens
from rest_store.engines.request import (
    NO_TREE,
    NewRequest,
    StepRequest,
    Tokens,
    parse_extra_arguments,
)
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.sglang.request_grammar import grammar_of
from rest_store.engines.sglang.verify_arrays import verify_arrays

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch


class BatchDrafts:
    """A draft for each request of a batch, step by step. No fault of drafting is raised.

    Where SGLang prepares a step while the one before still runs, the newest tokens may be missing
    in its requests; then the batch has them. The length of the cache shows whether they are
    missing.

    Args:
        drafter: has a session for each request.
        nodes: nodes that are verified for each request, with its last token.
        shape: "tree" or "chain".
        adapter_name: returns the name of a LoRA adapter by SGLang's id, which is new at each start.
    """

    def __init__(
        self,
        drafter: RequestDrafter,
        nodes: int,
        shape: str,
        adapter_name: Callable[[str], str] = str,
    ) -> None:
        self._drafter = drafter
        self._adapter_name = adapter_name
        self._nodes = nodes
        self._shape = shape
        self._grammars = Grammars(drafter.metrics.count_error)
        self._requests: dict[str, Req] = {}  # requests that have begun
        self._sizes: dict[str, int] = {}  # of the drafts of the latest step
        self._indices: dict[str, int] = {}  # of requests in `_likely`
        # Likely tokens of the latest step, on the device until they are needed.
        self._likely: torch.Tensor | TopK | None = None

    def arrays(
        self, batch: ScheduleBatch, *, is_ahead: bool
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the tokens and the mask that a step verifies, as `verify_arrays`.

        Args:
            batch: of the step.
            is_ahead: whether the latest step's tokens may be missing in the requests.
        """
        requests = list(batch.reqs)
        newest = _newest(batch) if is_ahead else [[] for _ in requests]
        last = [
            int((tokens or request.output_ids or request.origin_input_ids_unpadded)[-1])
            for request, tokens in zip(requests, newest, strict=True)
        ]
        trees = [NO_TREE] * len(requests)
        try:
            lengths = batch.seq_lens_cpu.tolist()  # without the last token
            steps: dict[int, StepRequest] = {}
            for index, one in enumerate(zip(requests, newest, lengths, strict=True)):
                try:
                    steps[index] = self._step(*one)
                except Exception as error:  # of one request; the others are drafted for
                    self._drafter.metrics.count_error("requests", error)
            drafted = self._drafter.draft(list(steps.values()), self._shape)
            for index, tree in zip(steps, drafted, strict=True):
                trees[index] = tree
        except Exception as error:
            self._drafter.metrics.count_error("batch", error)
        self._sizes = {
            request.rid: len(tree) for request, tree in zip(requests, trees, strict=True)
        }
        self._likely = None  # it belongs to the nodes of the tree before
        return verify_arrays(last, trees, self._nodes)

    def _step(self, request: Req, newest: Sequence[int], cached: int) -> StepRequest:
        """Return a request's tokens of the last step, and its wish for a draft.

        The request begins if it is unknown, or if its text has changed.

        Args:
            request: SGLang's.
            newest: its tokens of the latest step, if they may be missing in the request.
            cached: tokens of its text, without the last one.
        """
        prompt = _prompt(request)
        output = request.output_ids
        missing = cached + 1 - len(request.origin_input_ids) - len(output)
        if missing not in (0, len(newest)):
            raise ValueError(f"a request lacks {missing} tokens of a step that wrote {len(newest)}")
        known = self._drafter.length(request.rid) - len(prompt)  # tokens of output
        sampling = request.sampling_params
        max_nodes = self._max_nodes(request)
        if 0 <= known <= len(output):
            new = _tokens(output[known:], newest[:missing])
            return StepRequest(
                request.rid, new, max_nodes, node_top_k=self._likely_rows(request.rid)
            )
        self._requests[request.rid] = request
        ends = set() if sampling.ignore_eos else request.eos_token_ids or set()
        text, placeholders = _text_of(prompt, self._drafter.vocabulary_size)
        adapter = request.lora_id
        self._drafter.begin(
            NewRequest(
                request.rid,
                _tokens(text, output, newest[:missing]),
                len(prompt),
                max_tokens=sampling.max_new_tokens,
                ends=frozenset(ends).union(sampling.stop_token_ids or ()),
                grammar=grammar_of(request, self._grammars),
                adapter="" if adapter is None else self._adapter_name(adapter),
                placeholders=placeholders,
                **parse_extra_arguments(
                    sampling.custom_params, partial(self._drafter.metrics.count_error, "references")
                ),
            )
        )
        return StepRequest(request.rid, _tokens(), max_nodes)

    def _max_nodes(self, request: Req) -> int:
        """Return how many draft tokens a request may have.

        There are none where SGLang would count accepted tokens wrongly. In 0.5.23 penalties and
        `min_new_tokens` count one token a step, the last one, however many were accepted, and all
        nodes have one penalty (`ScheduleBatch.cumulate_penalty_output_tokens`, `eagle_sample`). A
        step without a draft writes one token. Steps are counted from the reading of a text, anew
        where a request was put off.
        """
        sampling = request.sampling_params
        is_penalized = (
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        ) != (1, 0, 0)
        # As SGLang counts it in this step.
        must_go_on = request.decode_batch_idx < sampling.min_new_tokens
        return 0 if is_penalized or must_go_on else self._nodes - 1

    def _likely_rows(self, rid: str) -> TopK | None:
        """Return the likely tokens after the text and each node of the latest draft.

        None: they are unknown.
        """
        if self._likely is None or rid not in self._indices:
            return None
        if isinstance(self._likely, torch.Tensor):
            self._likely = self._likely.cpu().numpy()
        rows: TopK = self._likely.reshape(len(self._indices), -1, self._likely.shape[1])[
            self._indices[rid]
        ]
        return rows[: 1 + self._sizes.get(rid, 0)]

    def take(self, batch: ScheduleBatch, logits: torch.Tensor) -> None:
        """Take the most likely tokens of a step's logits without waiting for the device.

        Args:
            batch: of the step.
            logits: [B * nodes, vocabulary].
        """
        try:
            self._indices = {request.rid: index for index, request in enumerate(batch.reqs)}
            self._likely = likely_tokens(logits)
        except Exception as error:
            self._likely = None
            self._drafter.metrics.count_error("logits", error)

    def finish(self, rid: str) -> None:
        """Accept the last step of a request, and remember its output."""
        if (request := self._requests.pop(rid, None)) is None:
            return
        try:
            known = self._drafter.length(rid) - len(_prompt(request))
            new = _tokens(request.output_ids[known : request.finished_len])
            self._drafter.accept([StepRequest(rid, new, 0, node_top_k=self._likely_rows(rid))])
        except Exception as error:
            self._drafter.metrics.count_error("finish", error)
        self._drafter.finish([rid])

    def drop(self, rids: Iterable[str]) -> None:
        """Forget requests that have left the batch without an end; they may begin anew."""
        self._drafter.drop([rid for rid in list(rids) if self._requests.pop(rid, None) is not None])


def _prompt(request: Req) -> Sequence[int]:
    """Return the ids of a prompt, as many as the cache has.

    Where there are images, SGLang has put ids that no vocabulary has in their places.
    """
    has_images = request.multimodal_inputs is not None
    ids: Sequence[int]
    ids = request.origin_input_ids if has_images else request.origin_input_ids_unpadded
    return ids


def _text_of(
    prompt: Sequence[int], vocabulary_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a prompt with id 0 in the places of no text, and these places."""
    ids = np.array(prompt, np.int64)
    places = np.flatnonzero(ids >= vocabulary_size)
    ids[places] = 0
    return ids, places


def _newest(batch: ScheduleBatch) -> list[list[int]]:
    """Return the tokens of each request in the latest step; waits for the device."""
    accepted = batch.spec_info.accept_tokens.tolist()
    counts = batch.spec_info.accept_lens.tolist()
    width = len(accepted) // max(1, len(counts))
    return [accepted[row * width : row * width + count] for row, count in enumerate(counts)]


def _tokens(*parts: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Tokens:
    return np.concatenate([np.zeros(0, np.int32), *(np.asarray(part, np.int32) for part in parts)])
