"""Where a generation goes on from: filled caches, whose keys and values are held once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

import rest_store
from rest_store.generation.generate import generate
from rest_store.generation.seam import CACHE
from tests.shared.tiny import Drafted, SameTree, prompts, tiny_model

NEW = 30
FIXED = {"max_new_tokens": NEW, "do_sample": False}


def ways(texts: torch.Tensor) -> dict[str, Any]:
    """Drafts along these texts, and the prompt and the output."""
    return {
        "custom_generate": generate,
        "drafter": [rest_store.PromptLookup()],
        "references": texts.tolist(),
        "adaptive": False,
        "return_dict_in_generate": True,
    }


# --- A cache that is filled already -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["new tokens", "all tokens"])
@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window"])
def test_a_conversation_goes_on_with_the_cache_it_left(architecture: str, given: str) -> None:
    model = tiny_model(architecture)
    new = prompts(1, 6, seed=5)["input_ids"]

    def converse(**options: Any) -> Any:
        cache = DynamicCache(config=model.config)
        ours = {**options, "return_dict_in_generate": False}
        first = model.generate(prompts(1)["input_ids"], **{CACHE: cache}, max_new_tokens=15, do_sample=False, **ours)
        more = torch.cat([first if given == "all tokens" else first[:, -1:], new], dim=1)
        mask = torch.ones(1, 28 + 1 + new.shape[1], dtype=torch.long)
        output = model.generate(more, attention_mask=mask, **{CACHE: cache}, **FIXED, **options)
        assert int(cache.get_seq_length()) == mask.shape[1] + NEW - 1
        return output

    plain = converse()
    output = converse(**ways(plain))
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_keys_and_values_are_held_once() -> None:
    model = tiny_model("llama")
    cache = DynamicCache(config=model.config)
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    held = [
        sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
        for _ in generator.stream(prompts(2), **FIXED, **{CACHE: cache})
    ]
    assert held
    assert set(held) == {0}
    assert cache.get_seq_length() == 14 + NEW - 1, "and given back at the end"


class Copies(TorchDispatchMode):
    """Counts the numbers that are copied in pieces of keys or values of at least `slots` tokens."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots, self.numbers = slots, 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function == torch.ops.aten.copy_.default and arguments[1].ndim > 3 and arguments[1].shape[-2] >= self.slots:
            self.numbers += arguments[1].numel()
        return function(*arguments, **(options or {}))


def test_a_long_cache_is_taken_over_with_one_copy_also_if_the_first_tree_is_wide() -> None:
    model = tiny_model("llama", positions=2048)
    cache = DynamicCache(config=model.config)
    first = model.generate(prompts(1, 1000)["input_ids"], **{CACHE: cache}, max_new_tokens=1, do_sample=False)
    with Copies(1000) as copies:
        model.generate(
            torch.cat([first, prompts(1, 6)["input_ids"]], dim=1),
            **{CACHE: cache},
            max_new_tokens=8,
            do_sample=False,
            custom_generate=generate,
            drafter=[Drafted(lambda _: SameTree([[token, *more] for more in ([], [3, 4, 5]) for token in range(90)]))],
            max_nodes=400,
            adaptive=False,
        )
    assert cache.get_seq_length() == 1000 + 1 + 6 + 8 - 1
    assert copies.numbers == sum(layer.keys[:, :, :1007].numel() * 2 for layer in cache.layers)
