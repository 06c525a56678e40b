"""Batches of an engine: requests that are preempted and aborted, with sessions that fail at random.

What must hold: the text is that of the model alone, and the engine gets draft tokens that it can
verify.
"""

from __future__ import annotations

import gc
import logging
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rest_store.drafting.session import DraftSession
from rest_store.engines import request_drafter
from rest_store.engines.vllm import plugin
from tests.fuzz import campaign
from tests.shared.engine import VOCABULARY, Engine, Model, Request, Vllm, plain_output
from tests.shared.strategies import Corpus, identity, write_datastore

LOG = logging.getLogger("vllm.rest_store")
LOG.addHandler(logging.NullHandler())
LOG.propagate = False


def model_of(chance: random.Random) -> Model:
    """A model whose next token depends on the last few; a small alphabet makes it repeat."""
    width = chance.randrange(1, 5)
    alphabet = chance.choice([2, 7, 300])
    seed = chance.randrange(1000)
    return lambda text: hash((seed, *text[-width:])) % alphabet


class Fuzzer(campaign.Fuzzer):
    """One batch from the first request to the last."""

    def run(self, chance: random.Random) -> Counter[str]:
        model = model_of(chance)
        longest = chance.choice([60, 120, 400])
        most = chance.randrange(1, 17)
        batch = [_request(chance, longest) for _ in range(chance.randrange(1, 20))]
        shutil.rmtree(self.directory / "memory", ignore_errors=True)
        vllm = Vllm(identity(VOCABULARY))
        with ExitStack() as stack:
            stack.enter_context(patch.dict(sys.modules, vllm.modules))
            plugin.install()
            for where, name in (
                (DraftSession, "draft"),
                (DraftSession, "accept"),
                (DraftSession, "close"),
            ):
                stack.enter_context(
                    patch.object(where, name, _unsteady(getattr(where, name), chance, 0.02))
                )
            for name in ("draft_all", "look_ahead_all", "accept_all"):
                whole = getattr(request_drafter, name)
                stack.enter_context(
                    patch.object(request_drafter, name, _unsteady(whole, chance, 0.05))
                )
            settings = {
                "datastores": [self._datastore(chance, model)],
                "remember": str(self.directory / "memory"),
                "lag": chance.random() < 0.5,
            }
            rows = chance.randrange(1, 9)
            chunk = chance.choice([5, 30, 1000])
            ahead = chance.random() < 0.5
            shapes: dict[str, Any] = {
                "most": most,
                "longest": longest,
                "rows": rows,
                "chunk": chunk,
                "ahead": ahead,
            }
            engine = Engine(vllm, settings, model, shows_logits=chance.random() < 0.5, **shapes)
            self.case = f"{len(batch)} requests, {shapes}, {settings}"
            aborted = self._run(engine, batch, chance)
            for request in batch:
                expected = plain_output(model, request.prompt, request.most, longest)
                if id(request) in aborted:
                    expected = expected[: len(request.output)]
                assert request.output == expected
            metrics = engine.ours.drafter.metrics
            engine.ours.drafter.close()
            errors = [
                label
                for (name, label), total in metrics.totals().items()
                if name == "errors" and total
            ]
            accepted = engine.accepted
            del engine
            gc.collect()
        return Counter(
            {"accepted" if accepted else "nothing accepted": 1, **dict.fromkeys(errors, 1)}
        )

    def _datastore(self, chance: random.Random, model: Model) -> str:
        place: Path = self.directory / "ds"
        shutil.rmtree(place, ignore_errors=True)
        texts = [plain_output(model, [chance.randrange(300)], 50) for _ in range(10)]
        return str(write_datastore(place, Corpus(VOCABULARY, [texts])))

    def _run(self, engine: Engine, batch: list[Request], chance: random.Random) -> set[int]:
        """Run all requests to their ends; return which were aborted, by identity."""
        aborted: set[int] = set()
        waiting = list(batch)
        while waiting or engine.waiting or engine.requests:
            while waiting and (chance.random() < 0.3 or not engine.requests):
                engine.waiting.append(waiting.pop())
            engine.step()
            going = [request for request in engine.requests if request.ends_in is None]
            if going and chance.random() < 0.1:
                request = chance.choice(going)
                if chance.random() < 0.3:
                    aborted.add(id(request))
                    engine.abort(request)
                else:
                    engine.preempt(request)
            if chance.random() < 0.05:
                engine.ours.drafter.work()
        return aborted


def _request(chance: random.Random, longest: int) -> Request:
    prompt = [
        chance.randrange(chance.choice([3, 290])) for _ in range(chance.randrange(1, longest // 2))
    ]
    return Request(prompt, chance.randrange(1, longest))


def _unsteady(call: Callable[..., Any], chance: random.Random, often: float) -> Callable[..., Any]:
    def unsteady(*arguments: Any, **options: Any) -> Any:
        if chance.random() < often:
            raise RuntimeError("as fuzzers do")
        return call(*arguments, **options)

    return unsteady
