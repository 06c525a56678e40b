"""Drafts and padding stop at the last position and the last slot, as plain decoding does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import rest_store
from rest_store.generation.draft_sessions import EMPTY
from rest_store.generation.seam import CACHE
from tests.shared.families import family_model
from tests.shared.tiny import bushy, drafted, prompts, right, tiny_model

POSITIONS = 32
# All but the last look positions up.
TABLES = ["gpt2", "gpt_bigcode", "gptj", "opt", "biogpt", "bert", "llama"]
SOME = [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.slow) for name in TABLES]


def model_with_positions(name: str) -> Any:
    return family_model(name, max_position_embeddings=POSITIONS, n_positions=POSITIONS)


class Positions:
    """Notes the positions that a model is given."""

    def __init__(self, model: Any) -> None:
        self.greatest = self.least = 0
        self.hook = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model: Any, arguments: Any, options: dict[str, Any]) -> None:
        self.greatest = max(self.greatest, int(options["position_ids"].max()))
        self.least = min(self.least, int(options["position_ids"].min()))


def silent(future: list[int], random: Any, max_nodes: int) -> Any:
    return EMPTY


# --- Positions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_a_row_at_the_last_position_waits_for_the_others(name: str) -> None:
    model = model_with_positions(name)
    inputs = prompts(3)
    for cache in ("dynamic", "static"):
        options: dict[str, Any] = {
            "max_length": POSITIONS,
            "do_sample": False,
            "cache_implementation": cache,
        }
        plain = model.generate(**inputs, **options)
        seen = Positions(model)
        output = drafted(model, inputs, plain, [right, silent, bushy], **options)
        seen.hook.remove()
        assert torch.equal(output.sequences, plain)
        assert output.statistics.drafts.accepted > 10
        assert 0 <= seen.least <= seen.greatest < POSITIONS


@pytest.mark.parametrize("name", SOME)
def test_an_end_before_the_last_position_is_reached_with_drafts_too(name: str) -> None:
    """Drafts may reach beyond the text's end where more tokens than positions are asked for."""
    model = model_with_positions(name)
    inputs = prompts(2, padded=False)

    def end(script: Any, length: int, **options: Any) -> Any:
        class Ends(transformers.StoppingCriteria):
            """Ends the first row at `length` tokens, and the other one three tokens earlier."""

            eos_token_id = torch.tensor([0])

            def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
                first = inputs["input_ids"][0]
                ends = [
                    length if bool((row[:14] == first).all()) else length - 3 for row in input_ids
                ]
                return torch.tensor([input_ids.shape[1] >= end for end in ends])

        options = {
            "max_new_tokens": 60,
            "do_sample": False,
            "stopping_criteria": [Ends()],
            **options,
        }
        if script is None:
            return model.generate(**inputs, **options)
        return drafted(model, inputs, plain, script, **options)

    for length in (POSITIONS - 1, POSITIONS, POSITIONS + 1):
        plain = end(None, length)
        assert plain.shape[1] == length
        for scripts in ([right, right], [right, silent], [silent, right]):
            output = end(scripts, length)
            assert torch.equal(output.sequences, plain)
            assert output.statistics.drafts.accepted > 5


@pytest.mark.parametrize("first", [0, 3])
def test_texts_end_where_the_callers_own_positions_do(first: int) -> None:
    """The positions are given once for all rows."""
    model = model_with_positions("gpt2")
    inputs = prompts(2, padded=False)
    options = {"position_ids": torch.arange(first, first + 14)[None], "do_sample": False}
    for new_tokens in (POSITIONS - 14 - first, POSITIONS - 14 - first + 1):
        plain = model.generate(**inputs, **options, max_new_tokens=new_tokens)
        output = drafted(model, inputs, plain, [right, bushy], **options, max_new_tokens=new_tokens)
        assert torch.equal(output.sequences, plain)
        assert output.statistics.drafts.accepted > 5


def test_texts_beyond_the_last_position_fail_as_plain_ones_do() -> None:
    model = model_with_positions("gpt2")
    for own in ({}, {"custom_generate": rest_store.generate}):
        with pytest.raises(IndexError):
            model.generate(**prompts(1), max_new_tokens=40, do_sample=False, **own)


class AtTwenty(transformers.StoppingCriteria):
    """Ends a text at twenty tokens."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([input_ids.shape[1] >= 20] * input_ids.shape[0])


@pytest.mark.parametrize("limit", ["max_length", "max_new_tokens"])
def test_a_limit_may_be_as_large_as_that_of_a_tokenizer_without_one(limit: str) -> None:
    """Such tokenizers have a `model_max_length` of 1e30."""
    model, prompt = tiny_model("llama"), prompts(1, 6, seed=5)
    options = {limit: int(1e30), "do_sample": False, "stopping_criteria": [AtTwenty()]}
    plain = model.generate(**prompt, **options)
    output = model.generate(
        **prompt,
        **options,
        custom_generate=rest_store.generate,
        sources=[rest_store.PromptLookup()],
    )
    assert output.tolist() == plain.tolist()


# --- No cache -------------------------------------------------------------------------------------


def test_without_a_cache_none_is_returned() -> None:
    model = tiny_model("llama")
    fixed = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    plain = model.generate(**prompts(2), **fixed, use_cache=False)
    output = model.generate(
        **prompts(2), **fixed, use_cache=False, custom_generate=rest_store.generate
    )
    assert getattr(output, CACHE) is getattr(plain, CACHE) is None
    assert torch.equal(output.sequences, plain.sequences)
