"""The forward pass over the prompt, as `generate` of transformers runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache, StaticCache

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.cache import (
    Pattern,
    cache_patterns,
    has_states,
    holds_keys,
    require_cache,
)
from rest_store.generation.seam import cache_in, name_of_cache
from rest_store.generation.support import attention_patterns, require_inputs

# Arguments that a step makes itself, or that concern the prompt alone.
_NOT_FORWARDED = {"attention_mask", "position_ids", "use_cache", "logits_to_keep"}


@dataclass
class PrefilledPrompt:
    """A prompt that has been through the model.

    Attributes:
        logits: [rows, 1, vocabulary], of the token after it.
        cache: the cache of transformers, with the prompt and all tokens before it.
        length: tokens in `cache`.
        patterns: of the attention of each layer of `cache`.
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


def prompt_length(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> int:
    """Return how many tokens the cache holds after the prompt's pass."""
    held = held_tokens(cache_in(model_kwargs))
    return int(input_ids.shape[1]) + (
        held if held and not _has_all_tokens(input_ids, model_kwargs) else 0
    )


def held_tokens(cache: Any) -> int:
    """Return how many tokens `cache` holds.

    Of one without keys, which is empty before the prompt, 0.
    """
    return int(cache.get_seq_length()) if cache is not None and holds_keys(cache) else 0


def _has_all_tokens(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> bool:
    """Return whether `input_ids` include the tokens of a filled cache beside the new ones."""
    positions = model_kwargs.get("position_ids")
    return positions is None or int(positions.shape[-1]) == input_ids.shape[1]


def require_prompt(model: Any, config: Any, model_kwargs: dict[str, Any]) -> None:
    """Check before the prompt's pass that trees can be verified behind it.

    Args:
        model: a model of `transformers`.
        config: the prepared `GenerationConfig`.
        model_kwargs: as `generate` prepared them for the forward pass. A dynamic cache is added if
            there is none, or in place of a static one of `cache_implementation`.

    Raises:
        NotSupportedError: as in `require_inputs`; or as in `require_cache`.
    """
    require_inputs(model_kwargs)
    cache = cache_in(model_kwargs)
    new_cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    is_made_static = (
        config.cache_implementation is not None
        and isinstance(cache, StaticCache)
        and not cache.offloading
    )
    if cache is None or is_made_static:
        model_kwargs[str(name_of_cache(model))] = cache = new_cache
    require_cache(cache)
    if has_states(new_cache) and not has_states(cache):
        expected = "made for the model: DynamicCache(config=model.config)"
        raise NotSupportedError(
            describe("verification", "the cache", "without recurrent states", expected)
        )
    if not holds_keys(cache) and cache.has_previous_state():
        expected = "empty: without keys it does not say how many tokens it holds"
        raise NotSupportedError(describe("verification", "the cache", "filled", expected))


def prefill(
    model: Any, input_ids: torch.Tensor, chunk_size: int | None, model_kwargs: dict[str, Any]
) -> PrefilledPrompt:
    """Run the prompt through the model.

    Args:
        model: a decoder-only model of `transformers`.
        input_ids: int64[rows, length], padded on the left.
        chunk_size: most tokens of one pass; None: no limit. It bounds the memory that a long prompt
            takes.
        model_kwargs: as `generate` prepared them, and as `require_prompt` accepts them.

    Raises:
        NotSupportedError: the model does not keep the keys and values of all tokens.
    """
    model_kwargs["use_cache"] = True
    held = held_tokens(cache_in(model_kwargs))
    new = input_ids[:, held:] if held and _has_all_tokens(input_ids, model_kwargs) else input_ids
    chunks = torch.split(new, new.shape[1] if chunk_size is None else chunk_size, dim=1)
    end = held
    for ids in chunks:
        end += ids.shape[1]
        chunk_kwargs = model_kwargs
        if len(chunks) > 1:
            chunk_kwargs = _cut_inputs(end - ids.shape[1], end, model_kwargs)
        inputs = model.prepare_inputs_for_generation(ids, is_first_iteration=True, **chunk_kwargs)
        output = model(**inputs, return_dict=True)
        cache = cache_in(output)
        if not isinstance(cache, Cache) or (holds_keys(cache) and cache.get_seq_length() != end):
            actual = "absent"
            if isinstance(cache, Cache):
                actual = f"of {int(cache.get_seq_length())} tokens"
            expected = f"keys and values of {end} tokens, which can be kept for one path of a tree"
            raise NotSupportedError(
                describe(type(model).__name__, "the key-value cache", actual, expected)
            )
    mask = model_kwargs.get("attention_mask")
    positions = inputs.get("position_ids")
    if positions is None:  # the model has none
        positions = torch.full((1, 1), end - 1)
    own = {*_NOT_FORWARDED, name_of_cache(model)}
    patterns = attention_patterns(model, len(cache.layers))
    patterns += cache_patterns(cache)[len(patterns) :]  # Dory appends layers for its loops
    return PrefilledPrompt(
        logits=output.logits[:, -1:],
        cache=cache,
        length=end,
        patterns=patterns,
        seen=mask.bool() if mask is not None and not bool((mask == 1).all()) else None,
        positions=positions[..., -1:] + 1,
        extras={name: value for name, value in model_kwargs.items() if name not in own},
    )


def _cut_inputs(start: int, end: int, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `generate`, cut to the tokens from `start` to `end`."""
    mask, positions = (model_kwargs.get(name) for name in ("attention_mask", "position_ids"))
    mask = None if mask is None else mask[:, :end]
    positions = None if positions is None else positions[..., start:end]
    return {**model_kwargs, "attention_mask": mask, "position_ids": positions}


def unpadded(input_ids: torch.Tensor, model_kwargs: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens of each row that the attention mask shows.

    `input_ids` are int64[rows, length].
    """
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return [ids.tolist() for ids in input_ids]
    seen = mask[:, mask.shape[1] - input_ids.shape[1] :].bool()
    return [ids[is_seen].tolist() for ids, is_seen in zip(input_ids, seen, strict=True)]
