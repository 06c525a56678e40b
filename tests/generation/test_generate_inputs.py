"""Where a generation goes on from: filled caches, whose keys and values are held once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

import rest_store
from rest_store.generation import cache as cache_module
from rest_store.generation.generate import generate
from rest_store.generation.seam import CACHE
from tests.shared.tiny import Drafted, SameTree, bushy, drafted, prompts, tiny_model

NEW = 30
FIXED = {"max_new_tokens": NEW, "do_sample": False}


def ways(texts: torch.Tensor) -> dict[str, Any]:
    """Drafts along these texts, and the prompt and the output."""
    return {
        "custom_generate": generate,
        "sources": [rest_store.PromptLookup()],
        "references": texts.tolist(),
        "adaptive": False,
        "return_dict_in_generate": True,
    }


class Wrapped(torch.nn.Module):
    """Embeddings inside another module, which has no number of them."""

    def __init__(self, embeddings: torch.nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, ids: torch.Tensor) -> Any:
        return self.embeddings(ids)


def test_embeddings_may_be_wrapped() -> None:
    model = tiny_model("llama")
    inputs = prompts(2)
    plain = model.generate(**inputs, **FIXED)
    model.set_input_embeddings(Wrapped(model.get_input_embeddings()))
    output = model.generate(**inputs, **FIXED, **ways(plain))
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


# --- A cache that is filled already ---------------------------------------------------------------


@pytest.mark.parametrize("form", ["new tokens", "all tokens"])
@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window"])
def test_a_conversation_goes_on_with_the_cache_it_left(architecture: str, form: str) -> None:
    model = tiny_model(architecture)
    new = prompts(1, 6, seed=5)["input_ids"]

    def converse(**options: Any) -> Any:
        cache = DynamicCache(config=model.config)
        ours = {**options, "return_dict_in_generate": False}
        first = model.generate(
            prompts(1)["input_ids"], **{CACHE: cache}, max_new_tokens=15, do_sample=False, **ours
        )
        more = torch.cat([first if form == "all tokens" else first[:, -1:], new], dim=1)
        mask = torch.ones(1, 28 + 1 + new.shape[1], dtype=torch.long)
        output = model.generate(more, attention_mask=mask, **{CACHE: cache}, **FIXED, **options)
        assert int(cache.get_seq_length()) == mask.shape[1] + NEW - 1
        return output

    plain = converse()
    output = converse(**ways(plain))
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


# --- Prompts in chunks ----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window", "gpt2"])
def test_a_prompt_is_read_in_chunks_where_that_is_asked_for(architecture: str, rows: int) -> None:
    model = tiny_model(architecture)
    inputs, options = prompts(rows), {**FIXED, "prefill_chunk_size": 5}
    plain = model.generate(**inputs, **options)
    widths: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    output = model.generate(**inputs, **options, **ways(plain))
    hook.remove()
    assert widths[:3] == [5, 5, 4]
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


@pytest.mark.parametrize("form", ["new tokens", "all tokens"])
def test_a_filled_cache_is_continued_in_chunks(form: str) -> None:
    """The text is that without chunks, which not every release of transformers gives."""
    model = tiny_model("llama")
    new = prompts(2, 7, seed=5, padded=False)["input_ids"]
    texts = []
    for own in ({}, {"custom_generate": generate, "prefill_chunk_size": 3}):
        cache, inputs = DynamicCache(config=model.config), prompts(2)
        first = model.generate(**inputs, **{CACHE: cache}, max_new_tokens=15, do_sample=False)
        more = torch.cat([first if form == "all tokens" else first[:, -1:], new], dim=1)
        mask = torch.cat([inputs["attention_mask"], torch.ones(2, 15 + 7, dtype=torch.long)], dim=1)
        text = model.generate(more, attention_mask=mask, **{CACHE: cache}, **FIXED, **own)
        texts.append(text[:, -NEW:])
    assert torch.equal(*texts)


# --- Memory ---------------------------------------------------------------------------------------


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

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if (
            function == torch.ops.aten.copy_.default
            and arguments[1].ndim > 3
            and arguments[1].shape[-2] >= self.slots
        ):
            self.numbers += arguments[1].numel()
        return function(*arguments, **(options or {}))


def test_a_long_cache_is_taken_over_with_one_copy_also_if_the_first_tree_is_wide() -> None:
    model = tiny_model("llama", positions=2048)
    cache = DynamicCache(config=model.config)
    first = model.generate(
        prompts(1, 1000)["input_ids"], **{CACHE: cache}, max_new_tokens=1, do_sample=False
    )
    with Copies(1000) as copies:
        model.generate(
            torch.cat([first, prompts(1, 6)["input_ids"]], dim=1),
            **{CACHE: cache},
            max_new_tokens=8,
            do_sample=False,
            custom_generate=generate,
            sources=[
                Drafted(
                    lambda _: SameTree(
                        [[token, *more] for more in ([], [3, 4, 5]) for token in range(90)]
                    )
                )
            ],
            max_nodes=400,
            adaptive=False,
        )
    assert cache.get_seq_length() == 1000 + 1 + 6 + 8 - 1
    assert copies.numbers == sum(layer.keys[:, :, :1007].numel() * 2 for layer in cache.layers)


def test_a_window_drops_what_rows_that_go_on_do_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that has ended keeps no keys of the others."""
    monkeypatch.setattr(cache_module, "_GROWTH", 8)
    sizes: list[int] = []
    reserve = cache_module.Slots.reserve

    def noted(slots: Any, width: int) -> None:
        reserve(slots, width)
        sizes.append(slots.keys.shape[3])

    monkeypatch.setattr(cache_module.Slots, "reserve", noted)
    model = tiny_model("mistral with a sliding window")
    inputs = prompts(2)
    unbounded = model.generate(**inputs, max_new_tokens=150, do_sample=False)
    end = next(
        token for token in unbounded[0, 14:40].tolist() if token not in unbounded[1].tolist()
    )
    options = {"max_new_tokens": 150, "do_sample": False, "eos_token_id": end}
    plain = model.generate(**inputs, **options)
    output = drafted(model, inputs, plain, bushy, **options)
    assert torch.equal(output.sequences, plain)
    assert [len(origins) for origins in output.statistics.origins][1] == 150
    assert max(sizes) < 100
