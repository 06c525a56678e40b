"""Draft tokens for vLLM's model runner V2, beside those of its own speculator."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rest_store.drafting.arbitration import Head
from rest_store.engines.request import NewRequest, StepRequest, Tokens
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.vllm.device_drafts import DeviceDrafts, drafts_on_device
from rest_store.engines.vllm.device_outputs import DeviceOutputs
from rest_store.engines.vllm.request_grammar import RequestGrammars
from rest_store.engines.vllm.step_tokens import Step, Written
from rest_store.engines.vllm.target_logits import TargetLogits
from rest_store.engines.vllm.vllm_request import VllmRequest

# Nodes of the lookahead of a row at most, and of all rows together unless each has the least.
_MAX_NODES = 512
_MIN_NODES = 32
_MAX_BATCH_NODES = 4096


def lookahead_nodes(rows: int) -> int:
    """Return how many nodes the lookahead of each row of a batch may have.

    It is made while the device is busy with a step; a node takes 5 to 10 us of a core.
    """
    return max(_MIN_NODES, min(_MAX_NODES, _MAX_BATCH_NODES // max(1, rows)))


class Speculator:
    """Chooses the draft tokens of each step of vLLM. Thread-safe: `rest` has a thread of its own.

    With `lag`, drafts for the next step are looked up while the device works on this one, for the
    outcomes that this step may have. Then the device chooses the draft after its real outcome
    (`drafts_on_device`). Without `lag`, lookups wait for the text.

    Args:
        drafter: has the sessions. It calls `rest` before it remembers outputs.
        states: vLLM's `RequestState`.
        max_nodes: the most draft tokens of a row, K; steps may verify fewer.
        max_length: the most tokens of a text.
        lag: whether drafts are looked up a step ahead.
        head: the experience with vLLM's own speculator if that is a trained head; None: it is a
            lookup, and drafts from here are always better.
        grammars: of requests; None: none is known.
    """

    def __init__(
        self,
        drafter: RequestDrafter,
        states: Any,
        *,
        max_nodes: int,
        max_length: int,
        lag: bool,
        head: Head | None,
        grammars: RequestGrammars | None = None,
    ) -> None:
        self.drafter = drafter
        self._states = states
        self._max_nodes = max_nodes
        self._max_length = max_length
        self._lag = lag
        self._under_way: dict[str, Tokens] = {}  # drafts that the step under way verifies
        self._head = head
        self.grammars = grammars
        self._logits: TargetLogits | None = None
        self._requests: dict[str, VllmRequest] = {}  # requests that may have drafts
        self._step: Step | None = None  # under way
        self._device_outputs: DeviceOutputs | None = None  # from the first step on
        self._ended: list[str] = []  # requests that end once the step under way was read
        self._lock = threading.RLock()  # taken before the drafter's
        drafter.before_rest = self.rest

    def listen(self, model: Any) -> None:
        """Recycle the logits of a model from now on."""
        if self._logits is not None:
            return
        modules: Iterable[torch.nn.Module] = ()
        try:
            from vllm.model_executor.layers.logits_processor import LogitsProcessor

            modules = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
        except Exception as error:
            self.drafter.metrics.count_error("logits", error)
        self._logits = TargetLogits(modules, self.drafter.metrics.count_error)

    def begin(self, request: NewRequest) -> None:
        """Begin a request, or begin it again after it was put off."""
        with self._lock:
            if request.id in self._ended:  # an earlier request of the same name
                self._settle()
            head = None if self._head is None else self._head.for_text()
            self._requests[request.id] = VllmRequest(request, head)
            self.drafter.begin(request)

    def finish(self, finished: Iterable[str], put_off: Collection[str], *, is_idle: bool) -> None:
        """End requests.

        Args:
            finished: requests whose outputs are complete.
            put_off: requests that begin again later.
            is_idle: whether no step follows for now.
        """
        with self._lock:
            self._ended += finished
            if is_idle or put_off:  # their rows may soon be those of others
                self._settle()
            for id in put_off:
                self._requests.pop(id, None)
                self.drafter.drop([id])

    def propose(
        self,
        batch: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        native: torch.Tensor,
        max_nodes: int | None = None,
    ) -> DeviceDrafts | None:
        """Return the drafts of each row for the next step; None: all are `native`.

        Args:
            batch: vLLM's `InputBatch`.
            num_sampled: int[R], tokens that each row has just written; 0 while its prompt is read.
            num_rejected: int[R], draft tokens of each row that were verified and not accepted.
            native: int64[R, K], the draft tokens of vLLM's own speculator, for rows without drafts
                from here.
            max_nodes: draft tokens of each row that the next step verifies, the first ones; None:
                all.
        """
        try:
            with self._lock:
                likely = None if self._logits is None else self._logits.take()
                max_written = self._max_nodes + 1
                step = Step(batch, self._states, num_sampled, num_rejected, max_written, likely)
                self._settle(step)
                if max_nodes is None:
                    max_nodes = self._max_nodes
                drafts = self._drafts(batch, native, min(max_nodes, self._max_nodes))
                if self._lag:
                    step.propose(native if drafts is None else drafts.tokens)
                return drafts
        except Exception as error:
            self.drafter.metrics.count_error("propose", error)
            return None

    def rest(self) -> None:
        """Take in the step under way: it may be the last one."""
        with self._lock:
            step = self._step
            self._step = None
            if step is not None:
                self.drafter.accept(list(self._read(step)))

    def skip(self) -> None:
        """Discard the logits of a run without requests."""
        if self._logits is not None:
            self._logits.take()

    def _settle(self, latest: Step | None = None) -> None:
        """Take in the tokens of the latest complete step, and end the requests that end.

        Args:
            latest: the latest step. With `lag` it is under way, and the one before is read;
                without, it is waited for. None: no step is under way any more.
        """
        if self._lag:
            latest, self._step = self._step, latest
        self.drafter.accept(list(self._read(latest)))
        self._under_way = {} if latest is None else latest.drafts()
        self.drafter.finish(self._ended)
        for id in self._ended:
            self._requests.pop(id, None)
        self._ended = []

    def _read(self, step: Step | None) -> Iterator[StepRequest]:
        """Yield the tokens of each request in a step, once that is done.

        A request that lacks a step begins anew.
        """
        if step is None:
            return
        for written in step.read():
            request = self._requests.get(written.id)
            if request is None:
                continue
            try:
                if self.drafter.length(written.id) + written.tokens.size == written.length:
                    yield self._end_step(request, written)
                elif written.id not in self._ended:  # an ended request may have lost its row
                    text = self._states.all_token_ids.gpu[written.row, : written.length].tolist()
                    self.begin(request.new._replace(tokens=text))
            except Exception as error:  # of one request, which lacks this step from now on
                self.drafter.metrics.count_error("propose", error)

    def _end_step(self, request: VllmRequest, written: Written) -> StepRequest:
        """Learn from a request's draft, and set its next one."""
        request.learn(written.tokens.size, written.verified)
        verified = request.verified(written.verified)
        request.end_step(written.tokens)
        return StepRequest(written.id, written.tokens, 0, verified, written.top_k)

    def _look_up(self, ids: Sequence[str], max_nodes: int) -> None:
        """Look up the next drafts of requests, of `max_nodes` tokens."""
        nothing = np.zeros(0, np.int32)
        nodes = lookahead_nodes(len(ids))
        steps = []
        rooms = []
        for id in ids:
            room = self._max_length - 1 - self.drafter.length(id)
            if room <= 0 or not max_nodes:
                continue
            rooms.append(room)
            if self._lag:
                under_way = self._under_way.get(id, nothing)
                steps.append(StepRequest(id, nothing, nodes, under_way=under_way))
            else:
                steps.append(StepRequest(id, nothing, min(max_nodes, room)))
        trees = self.drafter.draft(steps, "chain", length=max_nodes)
        for step, tree, room in zip(steps, trees, rooms, strict=True):
            request = self._requests[step.id]
            try:
                verified = nothing if step.under_way is None else step.under_way
                request.look_ahead(tree, verified, max_nodes, room)
                if not self._lag:
                    request.set_draft(nothing)
            except Exception as error:  # of one request
                request.forget_lookahead()
                self.drafter.metrics.count_error("propose", error)

    def _drafts(self, batch: Any, native: torch.Tensor, max_nodes: int) -> DeviceDrafts | None:
        """Choose the drafts of all rows; None: all are vLLM's own."""
        ids = batch.req_ids[: batch.num_reqs]
        # Rows in the middle of their prompts write nothing.
        computed = batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
        writes = (computed >= batch.prefill_len_np)[: batch.num_reqs].tolist()
        self._look_up(
            [id for id, one in zip(ids, writes, strict=True) if one and id in self._requests],
            max_nodes,
        )
        requests = [self._requests.get(id) for id in ids]
        looks_up_texts = self._lag and self._head is None
        return drafts_on_device(
            [None if request is None else request.outcomes for request in requests],
            [self.drafter.length(id) for id in ids],
            self._states.all_token_ids.gpu,
            batch.idx_mapping[: batch.num_reqs],
            self._states.total_len.gpu,
            native,
            looks_up_texts=looks_up_texts,
            outputs=self._outputs_of(ids, native.device) if looks_up_texts else (),
        )

    def _outputs_of(self, ids: Sequence[str], device: torch.device) -> list[torch.Tensor | None]:
        """Return the remembered outputs that each row may draft from, on the device."""
        if self._device_outputs is None:
            self._device_outputs = DeviceOutputs(device)
        return [self._device_outputs.copy_of(self.drafter.latest_outputs(id)) for id in ids]
