"""Batches of an engine: rows that are moved, preempted and aborted, with sessions and services that fail at random.

What must hold: the text is that of the model alone, and the engine gets lists that it can verify.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from rest_store.drafting.session import DraftSession
from rest_store.engines import batch_drafter
from rest_store.engines.batch_drafter import BatchDrafter
from rest_store.engines.metrics import EngineMetrics
from rest_store.engines.settings import EngineSettings
from rest_store.engines.sources import EngineSources
from tests.fuzz import campaign
from tests.shared.engine import Clock, Engine, Model, Request, plain_output
from tests.shared.strategies import Corpus, identity, write_datastore

LOG = logging.getLogger("fuzz")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False
VOCABULARY = 300


def model_of(chance: random.Random) -> Model:
    """A model whose next token depends on the last few; a small alphabet makes it repeat."""
    width, alphabet, seed = chance.randrange(1, 5), chance.choice([2, 7, 300]), chance.randrange(1000)
    return lambda text: hash((seed, *text[-width:])) % alphabet


class Fuzzer(campaign.Fuzzer):
    """One batch from the first request to the last."""

    def run(self, chance: random.Random) -> Counter[str]:
        model, longest, most = model_of(chance), chance.choice([60, 120, 400]), chance.randrange(1, 17)
        asked = [_request(chance, longest) for _ in range(chance.randrange(1, 20))]
        shutil.rmtree(self.directory / "memory", ignore_errors=True)
        with ExitStack() as stack:
            sources = self._sources(chance, model)
            metrics = EngineMetrics(sources.labels, LOG)
            batch = BatchDrafter(
                sources, metrics, most=most, longest=longest, vocabulary_size=VOCABULARY, ends={1}, clock=Clock()
            )
            stack.callback(batch.close)
            for where, name in ((DraftSession, "draft"), (DraftSession, "accept"), (DraftSession, "close")):
                stack.enter_context(patch.object(where, name, _unsteady(getattr(where, name), chance, 0.02)))
            for name in ("draft_all", "accept_all"):
                whole = getattr(batch_drafter, name)
                stack.enter_context(patch.object(batch_drafter, name, _unsteady(whole, chance, 0.05)))
            rows, chunk = chance.randrange(1, 9), chance.choice([5, 30, 1000])
            shows_logits = chance.random() < 0.5
            engine = Engine(batch, model, most=most, longest=longest, rows=rows, chunk=chunk, shows_logits=shows_logits)
            self.case = (
                f"{len(asked)} requests, {most} draft tokens, texts of {longest}, {rows} rows, chunks of {chunk}"
            )
            aborted = self._run(engine, asked, batch, chance)
            for request in asked:
                expected = plain_output(model, request.prompt, request.most, longest)
                if id(request) in aborted:
                    expected = expected[: len(request.output)]
                assert request.output == expected
            errors = [label for (name, label), total in metrics.totals().items() if name == "errors" and total]
        return Counter({"accepted" if engine.accepted else "nothing accepted": 1, **dict.fromkeys(errors, 1)})

    def _sources(self, chance: random.Random, model: Model) -> EngineSources:
        place = self.directory / "ds"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        texts = [plain_output(model, [chance.randrange(300)], 50) for _ in range(10)]
        write_datastore(place, Corpus(VOCABULARY, [texts]))
        settings = EngineSettings((str(place),), remember=str(self.directory / "memory"))
        return EngineSources(
            settings, identity(VOCABULARY), name="test", vocabulary_size=VOCABULARY, where="settings", log=LOG
        )

    def _run(self, engine: Engine, asked: list[Request], batch: BatchDrafter, chance: random.Random) -> set[int]:
        """Run all requests to their ends; return which were aborted, by identity."""
        aborted: set[int] = set()
        waiting = list(asked)
        while waiting or engine.waiting or engine.requests:
            while waiting and (chance.random() < 0.3 or not engine.requests):
                engine.waiting.append(waiting.pop())
            engine.step()
            if engine.requests and chance.random() < 0.1:
                row = chance.randrange(len(engine.requests))
                if chance.random() < 0.3:
                    aborted.add(id(engine.requests[row]))
                    engine.abort(row)
                else:
                    engine.preempt(row)
            if chance.random() < 0.05:
                batch.tend()
        return aborted


def _request(chance: random.Random, longest: int) -> Request:
    prompt = [chance.randrange(chance.choice([3, 290])) for _ in range(chance.randrange(1, longest // 2))]
    return Request(prompt, chance.randrange(1, longest))


def _unsteady(call: Callable[..., Any], chance: random.Random, often: float) -> Callable[..., Any]:
    def unsteady(*arguments: Any, **options: Any) -> Any:
        if chance.random() < often:
            raise RuntimeError("as fuzzers do")
        return call(*arguments, **options)

    return unsteady
