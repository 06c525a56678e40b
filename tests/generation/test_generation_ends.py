"""Generations that are closed, fail or are dropped end at once, and return the cache."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation.seam import CACHE, cache_in
from rest_store.generation.stream import Stream
from tests.shared.tiny import Drafted, Scripted, bushy, futures_of, prompts, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}
KINDS = ["llama", "mistral with a sliding window"]


class Closing(Scripted):
    """A session that notes when it is closed."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def closing() -> type[Closing]:
    Closing.closed = 0
    return Closing


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the garbage collector: what is freed is freed by its last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def begun(
    model: Any, inputs: Any, session: Any = Scripted, **options: Any
) -> tuple[Any, torch.Tensor]:
    """A generation and the plain text."""
    plain = model.generate(**inputs, **FIXED)
    futures = futures_of(inputs, plain)
    drafter = [Drafted(lambda prompt: session(prompt, futures, bushy))]
    generator = rest_store.Generator(model, None, drafter, adaptive=False)
    return generator.stream(inputs, **FIXED, **options), plain


# --- The cache of the caller ----------------------------------------------------------------------


@pytest.mark.parametrize("architecture", KINDS)
def test_the_cache_of_a_generation_that_was_dropped_is_empty(architecture: str) -> None:
    model = tiny_model(architecture)
    cache = DynamicCache(config=model.config)
    for _ in begun(model, prompts(1), **{CACHE: cache})[0]:
        break
    assert int(cache.get_seq_length()) == 0
    inputs = prompts(3, 20, seed=3)
    assert torch.equal(
        model.generate(**inputs, **FIXED, **{CACHE: cache}), model.generate(**inputs, **FIXED)
    )


# --- Dropped and closed ---------------------------------------------------------------------------


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("place", [0, 1, 5, 99])
def test_what_is_dropped_is_freed_at_once(place: int, closing: type[Closing]) -> None:
    model = tiny_model("llama")
    generation, _ = begun(model, prompts(2), closing)
    for number, _ in enumerate(generation):
        if number == place:
            break
    held = [weakref.ref(generation)]
    loop = generation._generation
    held.append(weakref.ref(loop))
    if loop._verifier is not None:
        held += [weakref.ref(loop._verifier.cache), weakref.ref(loop._verifier.cache.groups[0])]
    del loop
    del generation
    assert [reference() for reference in held] == [None] * len(held)
    assert closing.closed == 2


@pytest.mark.parametrize("architecture", KINDS)
def test_leaving_the_block_closes(architecture: str, closing: type[Closing]) -> None:
    model = tiny_model(architecture)
    cache = DynamicCache(config=model.config)
    generation, plain = begun(model, prompts(1), closing, **{CACHE: cache})
    with generation as pieces:
        written = [token for _ in range(3) for token in next(pieces).tokens[0]]
    assert closing.closed == 1
    assert list(generation) == []
    assert int(cache.get_seq_length()) == 14 + len(written) - 1
    assert torch.equal(generation.result(), plain[:, : 14 + len(written)]), (
        "what was written until then"
    )
    left = {"max_new_tokens": 24 - len(written), "do_sample": False}
    assert torch.equal(model.generate(generation.result(), **{CACHE: cache}, **left), plain), (
        "it can be continued"
    )
    generation.close()
    assert closing.closed == 1


def test_a_generation_that_is_closed_before_its_first_pass_has_the_prompt(
    closing: type[Closing],
) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    generation, _ = begun(tiny_model("llama"), prompts(2), closing, **options)
    generation.close()
    output = generation.result()
    assert torch.equal(output.sequences, prompts(2)["input_ids"])
    assert (output.scores, output.logits, cache_in(output)) == ((), (), None)
    assert closing.closed == 0


def test_a_generation_that_is_refused_leaves_nothing_to_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    with pytest.raises(NotSupportedError):
        begun(tiny_model("llama"), prompts(1), num_beams=2)
    with pytest.raises(TypeError):
        Stream()  # type: ignore[call-arg]
    gc.collect()
    assert not raised


# --- Failed ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("length", [15, 20])
def test_a_generation_that_has_failed_is_closed(
    length: int, kind: type[BaseException], closing: type[Closing]
) -> None:
    model = tiny_model("llama")

    def fails(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if ids.shape[1] >= length:
            raise kind("no")
        return torch.tensor([False])

    cache = DynamicCache(config=model.config)
    generation, _ = begun(model, prompts(1), closing, **{CACHE: cache}, stopping_criteria=[fails])
    with pytest.raises(kind):
        list(generation)
    assert closing.closed == 1, "at once"
    assert list(generation) == []
    assert generation.result().shape[1] == length, "what was written before"
    assert 14 <= int(cache.get_seq_length()) < length, "and the caller has the cache"
    held = weakref.ref(generation)
    del generation
    assert held() is None
