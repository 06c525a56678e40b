"""An engine that calls a drafter as vLLM's model runner does, over a model that is a function."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Model = Callable[[list[int]], int]  # the next token after a text


class Clock:
    """Seconds in which each look takes a while, a hundredth of one unless set otherwise."""

    now = 0.0
    look = 0.01

    def __call__(self) -> float:
        self.now += self.look
        return self.now


class Proposer(Protocol):
    def propose(self, sampled: Any, lengths: Any, tokens: Any, computed: Any) -> list[list[int]]: ...


def cyclic(vocabulary: int) -> Model:
    """A model that goes around in a circle, with a step that depends on the tokens before."""
    return lambda text: (text[-1] + 1 + (text[-2] if len(text) > 1 else 0) // 8) % vocabulary


@dataclass
class Request:
    prompt: list[int]
    most: int  # tokens to write
    output: list[int] = field(default_factory=list)
    read: int = 0  # tokens that the engine has computed
    draft: list[int] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        return self.prompt + self.output


class Engine:
    """A batch in rows, which are condensed when a request ends, as in vLLM 0.32.

    Args:
        drafter: what is asked for draft tokens.
        model: what writes.
        most: draft tokens of a row.
        longest: tokens of a text.
        vocabulary: token ids of the model.
        rows: at a time.
        chunk: tokens of a prompt that are read in a step.
        shows_logits: whether the drafter is shown the most likely tokens.

    Attributes:
        requests: those in rows, in their order.
        waiting: those without a row.
        verified: draft tokens of all steps; accepted: those that the model produced too.
        skipped: steps in which the drafter was not asked, because a row was near the longest length.
        computed: the most likely tokens of each step since the drafter was asked last.
    """

    def __init__(
        self,
        drafter: Proposer,
        model: Model,
        *,
        most: int = 4,
        longest: int = 200,
        vocabulary: int = 300,
        rows: int = 4,
        chunk: int = 1000,
        shows_logits: bool = False,
    ) -> None:
        self.drafter, self.model, self.most, self.longest = drafter, model, most, longest
        self.vocabulary, self.chunk, self.shows_logits = vocabulary, chunk, shows_logits
        self.computed: list[Any] = []
        self.requests: list[Request] = []
        self.waiting: list[Request] = []
        self.tokens = np.zeros((rows, longest), np.int32)
        self.lengths = np.zeros(rows, np.int32)
        self.steps = self.verified = self.accepted = self.skipped = 0

    def admit(self) -> None:
        while self.waiting and len(self.requests) < len(self.tokens):
            self.requests.append(self.waiting.pop(0))
            self._write(len(self.requests) - 1)

    def preempt(self, row: int) -> None:
        """Take a request out of its row; it is read again from the start later."""
        request = self.requests[row]
        request.read, request.draft = 0, []
        self._remove(row)
        self.waiting.append(request)

    def abort(self, row: int) -> None:
        self._remove(row)

    def _remove(self, row: int) -> None:
        """Move the last row into the place of this one."""
        last = self.requests.pop()
        if row < len(self.requests):
            self.requests[row] = last
            self._write(row)

    def _write(self, row: int) -> None:
        text = self.requests[row].text
        self.tokens[row, : len(text)] = text
        self.lengths[row] = len(text)

    def step(self) -> None:
        """Verify and sample, then ask the drafter."""
        self.admit()
        self.steps += 1
        logits: list[list[int]] = []
        sampled: list[list[int]] = []
        widest = 0
        for request in self.requests:
            unread = len(request.text) - request.read
            if unread > self.chunk:
                request.read += self.chunk
                widest = max(widest, request.read)
                logits += self._likely(request.text[: request.read], [])
                sampled.append([])
                continue
            logits += self._likely(request.text, request.draft)
            widest = max(widest, len(request.text) + len(request.draft))
            request.read = len(request.text)
            sampled.append(self._verified(request))
        for row, new in enumerate(sampled):
            self.requests[row].output += new
            self._write(row)
        if self.shows_logits:
            self.computed.append(np.array(logits, np.int32).reshape(len(logits), 2))
        drafts: list[list[int]] = [[] for _ in sampled]
        if widest + self.most <= self.longest:
            drafts = self.drafter.propose([list(new) for new in sampled], self.lengths, self.tokens, self.computed)
            self.computed = []
            self._require_valid(drafts)
        else:
            self.skipped += 1
        for request, new, draft in zip(self.requests, sampled, drafts, strict=True):
            request.draft = draft if new else []
        for row in reversed(range(len(self.requests))):
            request = self.requests[row]
            if len(request.output) >= request.most or len(request.text) >= self.longest - 1:
                del request.output[request.most :], request.output[self.longest - 1 - len(request.prompt) :]
                self._remove(row)

    def _likely(self, text: list[int], draft: list[int]) -> list[list[int]]:
        """Return the most likely tokens after a text and after each draft token: the right one, and another one."""
        right = [self.model(text + draft[:count]) for count in range(len(draft) + 1)]
        return [[token, (token + 1) % self.vocabulary] for token in right]

    def _verified(self, request: Request) -> list[int]:
        new: list[int] = []
        self.verified += len(request.draft)
        for token in request.draft:
            right = self.model(request.text + new)
            new.append(right)
            if right != token:
                return new
            self.accepted += 1
        new.append(self.model(request.text + new))
        return new

    def _require_valid(self, drafts: Any) -> None:
        """Refuse what would end vLLM's engine."""
        assert type(drafts) is list
        assert len(drafts) == len(self.requests)
        assert len({id(draft) for draft in drafts}) == len(drafts)
        for draft, request in zip(drafts, self.requests, strict=True):
            assert type(draft) is list
            assert len(draft) <= self.most
            assert not draft or len(request.text) + len(draft) + 1 <= self.longest
            for token in draft:
                assert type(token) is int
                assert 0 <= token < self.vocabulary

    def run(self, *requests: Request, seed: int | None = None) -> list[list[int]]:
        """Write all requests to their ends; with a seed, some are preempted at random. Returns the outputs."""
        self.waiting += requests
        chance = random.Random(seed)
        while self.waiting or self.requests:
            self.step()
            if seed is not None and len(self.requests) > 1 and chance.random() < 0.1:
                self.preempt(chance.randrange(len(self.requests)))
        return [request.output for request in requests]


def plain_output(model: Model, prompt: list[int], most: int, longest: int = 200) -> list[int]:
    """Return what a model writes without drafts."""
    text = list(prompt)
    while len(text) - len(prompt) < most and len(text) < longest - 1:
        text.append(model(text))
    return text[len(prompt) :]
