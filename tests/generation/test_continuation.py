"""A model with recurrent state is known, or tried, to read tokens together as one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation import continuation
from rest_store.generation.continuation import EXACT, INEXACT, difference, require_continuation
from tests.generation.test_recurrent import FIXED, model_of, noisy
from tests.shared.families import family_model
from tests.shared.tiny import drafted, prompts


@pytest.mark.parametrize("family", sorted(EXACT))
def test_what_is_known_to_be_exact_is_so(family: str) -> None:
    assert difference(model_of(family)) < 1e-4


@pytest.mark.parametrize("family", sorted(INEXACT - {"zamba"}))
def test_what_is_known_to_be_inexact_is_so_and_refused_before_any_output(family: str) -> None:
    model = model_of(family)
    assert difference(model) > 0.1
    passes: list[Any] = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
    with pytest.raises(
        NotSupportedError, match=f"{type(model).__name__}: .* read from an empty state"
    ):
        model.generate(**prompts(1), **FIXED, custom_generate=rest_store.generate)
    hook.remove()
    assert not passes


class OwnLfm2(transformers.Lfm2ForCausalLM):
    """A class that is not of transformers."""


class OwnJamba(transformers.JambaForCausalLM):
    """The same."""


def own(kind: type, family: str) -> Any:
    model = family_model(family)
    model.__class__ = kind
    return model


def test_a_model_of_an_unknown_class_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(
        continuation, "difference", lambda model: tried.append(model) or difference(model)
    )
    model = own(OwnLfm2, "lfm2")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    for _ in range(2):
        assert torch.equal(drafted(model, inputs, plain, noisy, **FIXED).sequences, plain)
    assert tried == [model]
    wrong = own(OwnJamba, "jamba")
    for _ in range(2):
        with pytest.raises(
            NotSupportedError, match=r"OwnJamba: .*logits differ by 0\.\d+ of their spread"
        ):
            wrong.generate(**inputs, **FIXED, custom_generate=rest_store.generate)
    assert tried == [model, wrong]


def test_logits_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuation, "difference", lambda model: float("nan"))
    with pytest.raises(NotSupportedError, match="logits differ by nan"):
        require_continuation(own(OwnLfm2, "lfm2"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["lfm2", "nemotron_h", "qwen3_5_text"])
def test_rounding_of_half_precision_is_no_other_continuation(
    family: str, dtype: torch.dtype
) -> None:
    model = family_model(family).to(dtype)
    assert difference(model) < continuation._ROUNDING[dtype] / 2


def test_positions_that_are_slots_of_the_cache_are_noticed() -> None:
    """In a batch rows are ahead of others, so that a slot is no position.

    One row alone would not show the fault.
    """
    model = model_of("inkling_text")
    assert difference(model) > 0.1
    with pytest.raises(NotSupportedError, match="the position of a token is a slot of the cache"):
        model.generate(**prompts(1), **FIXED, custom_generate=rest_store.generate)


def test_a_model_with_a_cache_of_its_own_is_refused_by_name() -> None:
    model = model_of("minimax")
    with pytest.raises(
        NotSupportedError, match=r"MiniMaxForCausalLM: its state is in a cache of its own"
    ):
        model.generate(**prompts(1), **FIXED, custom_generate=rest_store.generate)
