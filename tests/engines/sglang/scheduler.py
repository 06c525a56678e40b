"""SGLang's scheduler as far as drafts see it, over a model that is a function."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rest_store.engines.sglang.batch_drafts import BatchDrafts

Model = Callable[[list[int]], int]  # the next token after a text
NODES = 6


@dataclass
class SamplingParams:
    max_new_tokens: int
    custom_params: Any = None
    frequency_penalty: float = 0.0
    ignore_eos: bool = False
    min_new_tokens: int = 0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: set[int] | None = None


@dataclass(eq=False)
class Req:
    """SGLang's request."""

    rid: str
    origin_input_ids: Sequence[int]
    sampling_params: SamplingParams
    origin_input_ids_unpadded: Sequence[int] = ()
    output_ids: Any = field(default_factory=lambda: array("q"))
    eos_token_ids: set[int] = field(default_factory=lambda: {2})
    finished_len: int | None = None
    decode_batch_idx: int = 0  # steps since its text was read
    grammar: Any = None
    grammar_key: tuple[str, str] | None = None
    lora_id: str | None = None
    multimodal_inputs: Any = None


@dataclass
class NgramVerifyInput:
    accept_tokens: torch.Tensor
    accept_lens: torch.Tensor


@dataclass
class ScheduleBatch:
    reqs: list[Req]
    seq_lens_cpu: torch.Tensor
    spec_info: NgramVerifyInput


def request(rid: str, prompt: Sequence[int], most: int, **sampling: Any) -> Req:
    """Return a request of SGLang's."""
    return Req(rid, array("q", prompt), SamplingParams(most, **sampling), array("q", prompt))


class Scheduler:
    """Runs requests to their ends in common steps, and verifies trees as SGLang does.

    Args:
        drafts: what is asked for drafts.
        model: gives the next token.
        vocabulary: its size.
        is_ahead: whether a step is prepared before the results of the one before are in the
            requests.

    Attributes:
        running: the requests of the batch.
        steps: that were run.
        written: how many tokens each step wrote for each request.
    """

    def __init__(
        self, drafts: BatchDrafts, model: Model, vocabulary: int, *, is_ahead: bool = False
    ) -> None:
        self.drafts = drafts
        self.model = model
        self.vocabulary = vocabulary
        self.is_ahead = is_ahead
        self.running: list[Any] = []
        self.steps = 0
        self.written: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}  # tokens in the cache
        self._newest: dict[str, list[int]] = {}  # of the latest step of each
        self._unprocessed: list[Any] = []

    def prefill(self, *new: Any) -> None:
        """Read prompts, which gives the first token of each.

        What is still unprocessed is processed meanwhile.
        """
        for one in new:
            text = [*one.origin_input_ids, *one.output_ids]
            self._lengths[one.rid] = len(text)
            self._newest[one.rid] = [self.model(text)]
        self._process()
        self._unprocessed = list(new)
        self.running += new
        if not self.is_ahead:
            self._process()

    def retract(self, one: Any) -> None:
        """Put a request off: it leaves the batch, and its text is read again later."""
        self._process()
        if one in self.running:
            self.running.remove(one)
        one.decode_batch_idx = 0

    def step(self) -> None:
        """Verify a draft for each running request; where none runs, there is no step."""
        if not self.running:
            return
        for one in self.running:
            one.decode_batch_idx += 1
        accepted = [self._newest[one.rid] for one in self.running]
        rows = [[*tokens, *[0] * (NODES - len(tokens))] for tokens in accepted]
        batch = ScheduleBatch(
            list(self.running),
            torch.tensor([self._lengths[one.rid] for one in self.running]),
            NgramVerifyInput(
                torch.tensor(rows).flatten(), torch.tensor([len(new) for new in accepted])
            ),
        )
        texts = [self._text(one) for one in self.running]
        tokens, mask = self.drafts.arrays(batch, is_ahead=self.is_ahead)
        self._process()
        nodes = tokens.reshape(-1, NODES)
        logits = np.zeros((*nodes.shape, self.vocabulary), np.float32)
        for row, text in enumerate(texts):
            self._verify(
                batch.reqs[row], text, nodes[row], mask.reshape(-1, NODES, NODES)[row], logits[row]
            )
        self.drafts.take(batch, torch.from_numpy(logits.reshape(-1, self.vocabulary)))
        self.drafts.drop(
            {rid for rid in self._lengths if rid not in {one.rid for one in batch.reqs}}
        )
        self._unprocessed = batch.reqs
        self.steps += 1
        if not self.is_ahead:
            self._process()

    def run(self, *steps_between: Callable[[], None]) -> None:
        """Take steps until all requests have ended.

        Between the first ones, call `steps_between`.
        """
        for between in steps_between:
            self.step()
            between()
        while self.running:
            self.step()
        self._process()

    def _text(self, one: Any) -> list[int]:
        text = [*one.origin_input_ids, *one.output_ids]
        missing = self._lengths[one.rid] + 1 - len(text)
        return [*text, *self._newest[one.rid][:missing]]

    def _verify(self, one: Any, text: list[int], nodes: Any, mask: Any, logits: Any) -> None:
        assert nodes[0] == text[-1], "a step continues the text"
        below = {place: [*text, *nodes[1:][mask[place][1:]].tolist()] for place in range(NODES)}
        for place, path in below.items():
            logits[place, self.model(path)] = 1.0
        written = []
        place = 0
        while True:
            written.append(int(logits[place].argmax()))
            children = [
                c
                for c in range(place + 1, NODES)
                if mask[c, place] and mask[c].sum() == mask[place].sum() + 1
            ]
            place = next((child for child in children if nodes[child] == written[-1]), 0)
            if place == 0:
                break
        self.written.setdefault(one.rid, []).append(len(written))
        self._lengths[one.rid] += len(written)
        self._newest[one.rid] = written

    def _process(self) -> None:
        """Put the results of the latest step into its requests, and end those that have enough."""
        for one in self._unprocessed:
            if one not in self.running:
                continue
            one.output_ids.extend(self._newest[one.rid])
            most = one.sampling_params.max_new_tokens
            end = next(
                (
                    place + 1
                    for place, token in enumerate(one.output_ids)
                    if token in one.eos_token_ids
                ),
                most,
            )
            if len(one.output_ids) >= min(end, most):
                one.finished_len = min(end, most)
                self.running.remove(one)
                self.drafts.finish(one.rid)
        self._unprocessed = []
