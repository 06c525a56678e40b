"""The prompt's forward pass, run as `generate` of transformers runs it, and what verification needs of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from rest_store.errors import CacheFullError, ModelNotSupportedError, ModeNotSupportedError, describe
from rest_store.generation.cache import Pattern, capacity_of, patterns_in, require_cache
from rest_store.generation.support import position_count, require_inputs
from rest_store.generation.verify import patterns_of

# Arguments that a step makes itself, or that concern the prompt alone.
_NOT_FORWARDED = {"attention_mask", "position_ids", "past_key_values", "inputs_embeds", "use_cache", "logits_to_keep"}


@dataclass
class Prompt:
    """A prompt that has been through the model.

    Attributes:
        logits: [rows, 1, vocabulary], what follows it.
        cache: the cache of transformers with its keys and values, and those of what came before it.
        length: tokens in `cache`.
        patterns: what each layer of `cache` sees.
        seen: bool[rows, tokens], False for padding on the left; None: no padding.
        positions: int64[..., rows, 1], of the token that follows.
        extras: further arguments of the model's forward pass.
    """

    logits: torch.Tensor
    cache: Any
    length: int
    patterns: list[Pattern]
    seen: torch.Tensor | None
    positions: torch.Tensor
    extras: dict[str, Any]


def prompt_length(input_ids: torch.Tensor, config: Any, model_kwargs: Mapping[str, Any]) -> int:
    """Return the most tokens that the cache holds after the prompt's pass.

    With a filled cache, `input_ids` are all tokens where they are as long as the mask, and only the new ones otherwise.
    A mask that hides nothing is left out by `generate`, which keeps its length in `config`.
    """
    embedded, mask = model_kwargs.get("inputs_embeds"), model_kwargs.get("attention_mask")
    cache = model_kwargs.get("past_key_values")
    length = int(embedded.shape[1] if embedded is not None else input_ids.shape[1])
    held = int(cache.get_seq_length()) if cache is not None else 0
    mask_length = mask.shape[1] if mask is not None else getattr(config, "_mask_length", None)
    if not held or embedded is not None or mask_length == length:
        return max(length, held)
    return held + length


def require_prompt(model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Check before the prompt's pass that trees can be verified behind it.

    Args:
        model: a model of `transformers`.
        input_ids: int64[rows, length].
        config: the prepared `GenerationConfig`.
        model_kwargs: what `generate` prepared for the forward pass; gets a cache if it has none.

    Raises:
        ModeNotSupportedError: as in `require_inputs`; or a cache, and `use_cache` is False.
        ModelNotSupportedError: as in `patterns_of`.
        CacheNotSupportedError: as in `require_cache`.
        CacheFullError: as in `require_slots`.
    """
    require_inputs(model_kwargs)
    of_text = model.config.get_text_config(decoder=True)
    patterns_of(of_text, int(getattr(of_text, "num_hidden_layers", 1)))
    if model_kwargs.get("past_key_values") is None:
        model_kwargs["past_key_values"] = DynamicCache(config=of_text)
    elif model_kwargs.get("use_cache") is False:
        raise ModeNotSupportedError(describe("generation", "use_cache", "False beside past_key_values", "one of them"))
    cache = model_kwargs["past_key_values"]
    require_cache(cache)
    if not int(cache.get_seq_length()):
        require_slots(prompt_length(input_ids, config, model_kwargs), capacity_of(cache))


def require_slots(tokens: int, capacity: float) -> None:
    """Check that a static cache of `capacity` slots holds `tokens`.

    Raises:
        CacheFullError: it does not.
    """
    if tokens > capacity:
        expected = f"at least {tokens}, one slot for each token"
        raise CacheFullError(describe("generation", "max_cache_len of the static cache", capacity, expected))


def prefill(model: Any, input_ids: torch.Tensor, config: Any, model_kwargs: dict[str, Any]) -> Prompt:
    """Run the prompt through the model.

    Args:
        model: a decoder-only model of `transformers`.
        input_ids: int64[rows, length], padded on the left.
        config: the prepared `GenerationConfig`.
        model_kwargs: what `generate` prepared for the forward pass, checked by `require_prompt`.

    Raises:
        ModelNotSupportedError: the model keeps no keys and values.
    """
    model_kwargs["use_cache"] = True
    output = model._prefill(input_ids, config, model_kwargs)
    cache = output.get("past_key_values")
    if cache is None:
        expected = "keys and values, which can be kept for one path of a tree"
        raise ModelNotSupportedError(describe(type(model).__name__, "the key-value cache", "absent", expected))
    length = int(cache.get_seq_length())
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    if positions is None:
        following = torch.full((input_ids.shape[0], 1), length, device=input_ids.device)
    else:
        following = positions[..., -1:] + 1
    return Prompt(
        logits=output.logits[:, -1:],
        cache=cache,
        length=length,
        patterns=patterns_in(cache, patterns_of(model.config.get_text_config(decoder=True), len(cache.layers))),
        seen=mask.bool() if mask is not None and not bool((mask == 1).all()) else None,
        positions=following,
        extras={name: value for name, value in model_kwargs.items() if name not in _NOT_FORWARDED},
    )


def row_limits(model: Any, prompt: Prompt, input_ids: torch.Tensor) -> list[float]:
    """Return how long each row may become for the positions of the model and the slots of a static cache.

    Args:
        model: the target model.
        prompt: what was run through it.
        input_ids: int64[rows, length], the rows so far.
    """
    rows, length = input_ids.shape
    positions = position_count(model)
    following = [0] * rows
    if positions < math.inf:
        of_rows = prompt.positions[..., 0]  # one for all rows, or one for each; further axes before
        following = of_rows.expand(*of_rows.shape[:-1], rows).reshape(-1, rows).amax(dim=0).tolist()
    slots = capacity_of(prompt.cache) - prompt.length
    # The last token of a text needs neither a slot nor a position.
    return [length + 1 + min(slots, positions - position) for position in following]
