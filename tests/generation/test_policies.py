"""Costs of steps: what drafts, and other work on the machine, do to the time of a generation."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rest_store
from rest_store.datastore.tree import TokenTree
from rest_store.generation import loop
from rest_store.generation.output import GeneratorOutput
from rest_store.generation.verify import TreeVerifier
from tests.shared.members import ScriptedSource, scored
from tests.shared.strategies import Corpus, write_datastore
from tests.shared.tiny import VOCABULARY, Drafted, Scripted, futures_of, prompts, right, tiny_model


def written(model: Any, tokens: int) -> torch.Tensor:
    plain: torch.Tensor = model.generate(**prompts(1), max_new_tokens=tokens, do_sample=False)
    return plain


def drafted(model: Any, drafter: list[Any], plain: torch.Tensor, **options: Any) -> GeneratorOutput:
    """Generate with these sources what plain decoding has written."""
    most = plain.shape[1] - prompts(1)["input_ids"].shape[1]
    generator = rest_store.Generator(model, None, drafter, **options)
    output = generator.generate(prompts(1), max_new_tokens=most, do_sample=False)
    assert torch.equal(output.sequences, plain)
    return output


def rightly(plain: torch.Tensor) -> list[Any]:
    """Drafts that are always right."""
    futures = futures_of(prompts(1), plain)
    return [Drafted(lambda prompt: Scripted(prompt, futures, right))]


class Clock:
    """A clock that only forward passes advance."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    process_time = perf_counter


def test_measuring_costs_little_and_nothing_where_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, run = Clock(), TreeVerifier.run

    def timed(self: TreeVerifier, last: Any, trees: Any, width: int) -> torch.Tensor:
        clock.now += 0.01 * (1 + 0.03 * (width - 1))
        return run(self, last, trees, width)

    monkeypatch.setattr(TreeVerifier, "run", timed)
    monkeypatch.setattr(loop, "time", clock)
    model, seconds = tiny_model("llama"), []
    plain = written(model, 240)
    for adaptive in (False, True, True):
        began = clock.now
        drafted(model, rightly(plain), plain, adaptive=adaptive)
        seconds.append(clock.now - began)
    least, first, later = seconds
    step = 0.01 * (1 + 0.03 * 5)
    assert least < first < least + 2 * step
    assert later < least + step


def test_the_reader_of_a_stream_may_take_its_time() -> None:
    model = tiny_model("llama")
    plain = written(model, 30)
    generator = rest_store.Generator(model, None, rightly(plain))
    pieces = generator.stream(prompts(1), max_new_tokens=30, do_sample=False)
    began = time.perf_counter()
    away = 0.0
    for _ in pieces:
        time.sleep(0.1)
        away += 0.1
    assert away > 0.3
    assert pieces.statistics.seconds < time.perf_counter() - began - away


def test_costs_are_kept_apart_by_what_they_depend_on() -> None:
    model = tiny_model("llama")
    for _ in range(2):
        drafted(model, [rest_store.PromptLookup()], written(model, 5))
    assert len(loop._policies[model]) == 1
    model.to(torch.float64)
    drafted(model, [rest_store.PromptLookup()], written(model, 5))
    assert len(loop._policies[model]) == 2


def test_what_other_processes_do_to_the_time_of_steps_changes_no_draft() -> None:
    """Passes over trees mostly wait for other processes, and take no more processor time."""
    model, chance = tiny_model("llama"), random.Random(5)
    plain = written(model, 120)

    def disturbed(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        if options["input_ids"].shape[1] > 1 and chance.random() < 0.8:
            time.sleep(0.05)

    model.register_forward_pre_hook(disturbed, with_kwargs=True)
    output = drafted(model, rightly(plain), plain)
    assert output.statistics.drafts.paused < 15
    assert output.statistics.mean_tokens > 3


def test_a_slow_service_that_adds_nothing_is_asked_less_while_the_rest_drafts_on(
    tmp_path: Path,
) -> None:
    class Slow(ScriptedSource):
        def receive(self, timeout: float | None) -> TokenTree:
            time.sleep(0.02)
            return super().receive(timeout)

    model, slow = tiny_model("llama"), Slow(scored([], [], []))
    plain = written(model, 120)
    store = rest_store.Datastore.open(
        write_datastore(tmp_path, Corpus(VOCABULARY, [[plain[0].tolist()]]))
    )
    output = drafted(model, [store, slow], plain)
    assert output.statistics.mean_tokens > 2
    assert len(slow.calls("receive")) < output.statistics.drafts.requested / 2
