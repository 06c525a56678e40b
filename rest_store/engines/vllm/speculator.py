"""Draft tokens for vLLM's model runner V2, beside those of its own speculator."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rest_store.drafting.arbitration import Head
from rest_store.engines.request import Chain, NewRequest, StepRequest
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.vllm.candidates import Candidate, Draft, drafts_on_device
from rest_store.engines.vllm.request_grammar import RequestGrammars
from rest_store.engines.vllm.steps import Step, Written
from rest_store.engines.vllm.target_logits import TargetLogits


@dataclass
class _Request:
    """What this knows of a request.

    Attributes:
        new: how it began, without its text.
        head: what the trained head is worth for it; None: there is none.
        offered: what may follow the step under way.
        draft: what the step under way verifies.
    """

    new: NewRequest
    head: Head | None
    offered: Candidate | None = None
    draft: Draft = Draft()  # noqa: RUF009  a named tuple is immutable

    def is_worth(self, scores: Sequence[float], most: int) -> bool:
        """Return whether draft tokens with these scores are to be
        verified, and not at most `most` of the head.
        """
        return bool(scores) and (self.head is None or self.head.prefers_session(scores, most))

    def learn(self, written: Written) -> None:
        """Learn what became of what was verified."""
        if self.head is not None and written.verified > 0:
            accepted, is_of_head = written.tokens.size - 1, not self.draft.is_chosen
            self.head.learn_chain(
                self.draft.scores, accepted, is_of_head=is_of_head, tried=written.verified
            )


class Speculator:
    """Chooses the draft tokens of each step of vLLM. Thread-safe:
    `rest` comes from a thread of the drafter's.

    With `lag`, a step's drafts are looked up in the text as it was before that step, while the
    device works on it; the device takes those that fit what it has written by then
    (`drafts_on_device`). Otherwise the text is waited for.

    Args:
        drafter: has the sessions; it has this take in the last step before it remembers what was
            written.
        states: vLLM's `RequestState`.
        most: the most draft tokens of a row, K; steps may verify fewer.
        longest: the most tokens of a text.
        lag: whether drafts are looked up a step ahead.
        head: what vLLM's own speculator is worth, if that is a trained head; None: drafts from here
            are always better.
        grammars: of requests; None: none is known.
    """

    def __init__(
        self,
        drafter: RequestDrafter,
        states: Any,
        *,
        most: int,
        longest: int,
        lag: bool,
        head: Head | None,
        grammars: RequestGrammars | None = None,
    ) -> None:
        self.drafter = drafter
        self._states = states
        self._most, self._longest = most, longest
        self._lag = most + 1 if lag else 0
        self._head = head
        self.grammars = grammars
        self._logits: TargetLogits | None = None
        self._requests: dict[str, _Request] = {}  # those that may have drafts
        self._step: Step | None = None  # under way
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
            if request.id in self._ended:  # of another request, which has the same name
                self._settle()
            head = None if self._head is None else self._head.for_text()
            self._requests[request.id] = _Request(request._replace(tokens=()), head)
            self.drafter.begin(request)

    def finish(self, finished: Iterable[str], put_off: Collection[str], *, is_idle: bool) -> None:
        """End requests.

        Args:
            finished: their outputs are complete.
            put_off: they begin again later.
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
        otherwise: torch.Tensor,
        most: int | None = None,
    ) -> torch.Tensor:
        """Return the draft tokens of each row for the next step, int64[R, K].

        Args:
            batch: vLLM's `InputBatch`.
            num_sampled: int[R], tokens that each row has just written; 0 while its prompt is read.
            num_rejected: int[R], draft tokens of each row that were verified and not accepted.
            otherwise: int64[R, K], what rows without drafts from here verify.
            most: draft tokens of each row that the next step verifies, the first ones; None: all.
        """
        try:
            with self._lock:
                likely = None if self._logits is None else self._logits.take()
                self._settle(
                    Step(batch, self._states, num_sampled, num_rejected, self._most + 1, likely)
                )
                return self._drafts(
                    batch, otherwise, self._most if most is None else min(most, self._most)
                )
        except Exception as error:
            self.drafter.metrics.count_error("propose", error)
            return otherwise

    def rest(self) -> None:
        """Take in the step under way, since none may follow for long, or ever."""
        with self._lock:
            if self._step is not None:
                step, self._step = self._step, None
                self.drafter.accept(list(self._read(step)))

    def skip(self) -> None:
        """Leave out what a run without requests has shown."""
        if self._logits is not None:
            self._logits.take()

    def _settle(self, latest: Step | None = None) -> None:
        """Take in what was written before the step that is now
        under way, and end the requests that end.

        Args:
            latest: a step; it is under way with `lag`, and waited for otherwise. None: no step is
                under way any more.
        """
        if self._lag:
            latest, self._step = self._step, latest
        self.drafter.accept(list(self._read(latest)))
        self.drafter.finish(self._ended)
        for id in self._ended:
            self._requests.pop(id, None)
        self._ended = []

    def _read(self, step: Step | None) -> Iterator[StepRequest]:
        """Yield what each request has written in a step, once that is done.

        One that lacks a step begins anew.
        """
        for written in () if step is None else step.read():
            request = self._requests.get(written.id)
            if request is None:
                continue
            try:
                if self.drafter.length(written.id) + written.tokens.size == written.length:
                    yield self._verified(request, written)
                elif written.id not in self._ended:  # whose row may be another's
                    text = self._states.all_token_ids.gpu[written.row, : written.length].tolist()
                    self.begin(request.new._replace(tokens=text))
            except Exception as error:  # of one request, which lacks this step from now on
                self.drafter.metrics.count_error("propose", error)

    def _verified(self, request: _Request, written: Written) -> StepRequest:
        """Learn what became of a request's draft.

        Its next one is that for the text with what was written.
        """
        request.learn(written)
        chain = request.draft.chain if request.draft.is_chosen else Chain([], [])
        verified = Chain(chain.tokens[: written.verified], chain.origins[: written.verified])
        request.draft = Draft()
        if request.offered is not None and written.tokens.size:
            request.draft = request.offered.draft(written.tokens)
        request.offered = None
        return StepRequest(written.id, written.tokens, 0, verified, written.top_k)

    def _look_up(self, ids: Sequence[str], most: int) -> None:
        """Look up what may follow the texts of requests: `most` tokens after the step under way."""
        nothing = torch.empty(0, dtype=torch.int32).numpy()
        steps = []
        for id in ids:
            left = self._longest - 1 - self.drafter.length(id)
            steps.append(StepRequest(id, nothing, max(0, min(self._lag + most, left))))
        for id, tree in zip(ids, self.drafter.draft(steps, shape="chain"), strict=True):
            request = self._requests[id]
            try:
                if len(tree):
                    request.offered = Candidate.of(
                        tree, self._lag, most, partial(request.is_worth, most=most)
                    )
                    if not self._lag:
                        request.draft = request.offered.draft(nothing)
            except Exception as error:  # of one request
                self.drafter.metrics.count_error("propose", error)

    def _drafts(self, batch: Any, otherwise: torch.Tensor, most: int) -> torch.Tensor:
        ids, rows = batch.req_ids[: batch.num_reqs], batch.idx_mapping[: batch.num_reqs]
        # Rows that are in the middle of their prompts write nothing.
        read = (
            batch.num_computed_prefill_tokens_np + batch.num_scheduled_tokens
            >= batch.prefill_len_np
        )
        writing = zip(ids, read[: batch.num_reqs].tolist(), strict=True)
        self._look_up([id for id, writes in writing if writes and id in self._requests], most)
        offered = [request.offered if (request := self._requests.get(id)) else None for id in ids]
        known = [self.drafter.length(id) for id in ids]
        texts, lengths = self._states.all_token_ids.gpu, self._states.total_len.gpu
        return drafts_on_device(offered, known, self._lag, texts, rows, lengths, otherwise)
