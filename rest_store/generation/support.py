"""Models, inputs and modes that cannot be drafted for: refused by name, with the reason."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.cache import (
    FULL,
    SLIDING,
    Pattern,
    cache_patterns,
    has_states,
    holds_keys,
)
from rest_store.generation.seam import name_of_cache

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_GROWING_ROPE = ("dynamic", "longrope")  # frequencies depend on the length of the sequence
# Tensors that are continued for new tokens; others would each need their own rule.
_CONTINUED = {"attention_mask", "position_ids"}


def require_model(model: Any) -> None:
    """Check that drafts can be verified with a model of transformers.

    Raises:
        NotSupportedError: an encoder, no cache or one of its own, layers of kinds that are not
            known, positions that are not an argument (ALiBi and others) or that are slots of the
            cache, weights that are split over several processes, or parts that were replaced or
            wrapped so that passes over several tokens come out otherwise.
    """
    name = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise NotSupportedError(describe(name, "the model", "an encoder-decoder", "decoder only"))
    # BERT and its relatives; the configuration alone says so of GPT-NeoX, too.
    if not getattr(config, "is_decoder", True) and any(
        not getattr(m, "is_causal", True) for m in model.modules()
    ):
        raise NotSupportedError(
            describe(name, "the model", "an encoder, not a decoder", "decoder only")
        )
    if not model._supports_default_dynamic_cache():
        raise NotSupportedError(
            describe(
                name, "its state", "in a cache of its own", "in a dynamic cache of transformers"
            )
        )
    attention_patterns(model)
    parameters = inspect.signature(model.forward).parameters
    if name_of_cache(model) is None:
        expected = "keys and values only, which can be kept for one path of a tree"
        raise NotSupportedError(
            describe(name, "its state", "not in a standard key-value cache", expected)
        )
    if getattr(config, "recurrent_kv_cache_mode", "per_loop") != "per_loop":  # Dory
        read = "read by loops that do not write it"
        expected = "read where it is written (per_loop)"
        raise NotSupportedError(describe(name, "the key-value cache", read, expected))
    position = None
    has_positions = "position_ids" in parameters or not has_attention(config)
    if not has_positions or getattr(config, "alibi", False):
        position = "counted by the model itself, or left to ALiBi"
    elif hasattr(config, "rel_extent") or isinstance(
        getattr(config, "attention_layers", None), list
    ):
        # Inkling, and GPT-Neo
        position = "a slot of the cache"
    if position is not None:
        raise NotSupportedError(
            describe(name, "the position of a token", position, "an argument, position_ids")
        )
    if (split := _split_over_processes(model)) is not None:
        expected = (
            "whole in this process: processes that draft by their own clocks would wait for each"
            " other for ever"
        )
        raise NotSupportedError(describe(name, "the model", split, expected))
    _require_plain_passes(model)


def _require_plain_passes(model: Any) -> None:
    """Check that a pass over a tree is prepared and runs as passes over single tokens do.

    Raises:
        NotSupportedError: it does not.
    """
    name = type(model).__name__
    own = model.prepare_inputs_for_generation
    if (
        getattr(own, "__func__", None) is not type(model).prepare_inputs_for_generation
        or own.__self__ is not model
    ):
        # As prompt tuning of PEFT does.
        expected = "that of the class: passes over a tree do not call it"
        raise NotSupportedError(
            describe(name, "prepare_inputs_for_generation", "replaced", expected)
        )
    if model.training and any(
        getattr(module, "gradient_checkpointing", False) for module in model.modules()
    ):
        expected = "off, or eval(): in training, models may keep no keys and values with it"
        raise NotSupportedError(describe(name, "gradient checkpointing", "on", expected))
    if hooks := _hooks_that_count_tokens(model):
        expected = "hooks for which a pass over several tokens is as good as several passes"
        raise NotSupportedError(describe(name, "a hook", hooks, expected))


def _hooks_that_count_tokens(model: Any) -> str | None:
    """Return the hook of PEFT that treats a pass over a tree unlike single tokens, in words.

    None: there are none.
    """
    for hook in [*model._forward_pre_hooks.values(), *model._forward_hooks.values()]:
        # X-LoRA runs the model in its own hook.
        if (origin := getattr(hook, "__module__", "")).startswith("peft."):
            return f"that of {origin}"
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if getattr(hook, "keywords", {}).get("alora_offsets") is not None:
                return "that of an activated LoRA (PEFT), which counts from the end of a pass"
    return None


def attention_patterns(model: Any, layers: int = 1) -> list[Pattern]:
    """Return the attention patterns of the layers, from the model's text configuration.

    Raises:
        NotSupportedError: a layer is of another kind, such as recurrent.
    """
    config = model.config.get_text_config(decoder=True)
    window = int(getattr(config, "sliding_window", None) or 0)
    known = {FULL: Pattern(FULL), SLIDING: Pattern(SLIDING, window)}
    names = getattr(config, "layer_types", None)
    if names is None:
        names = [SLIDING if window else FULL] * layers
    if (
        not known.keys() >= set(names)
        and (cache := _empty_cache(config)) is not None
        and has_states(cache)
    ):
        return cache_patterns(cache)
    for name in names:
        if name not in known:
            expected = f"attention: one of {', '.join(known)}"
            raise NotSupportedError(
                describe(type(model).__name__, "the kind of a layer", repr(name), expected)
            )
    return [known[name] for name in names[:layers]]


def require_length(model: Any, length: float) -> None:
    """Check that rotary embeddings do not change in a sequence of so many tokens.

    Raises:
        NotSupportedError: they do.
    """
    for what, limit in _growing_rope(model.config.get_text_config(decoder=True)):
        if length > limit:
            reason = f"{length}, where {what}"
            raise NotSupportedError(
                describe(type(model).__name__, "max_length", reason, f"at most {limit}")
            )


def has_attention(config: Any) -> bool:
    """Return whether a layer attends to other tokens, so that their positions matter.

    A recurrent one reads in order.
    """
    cache = _empty_cache(config)
    return cache is None or holds_keys(cache)


def _empty_cache(config: Any) -> DynamicCache | None:
    """Return an empty cache for a model; None: transformers has none for a kind of layer."""
    try:
        return DynamicCache(config=config)
    except (KeyError, AttributeError):
        return None


def _split_over_processes(model: Any) -> str | None:
    """Return how the weights of `model` are split over several processes; None if they are not."""
    if (getattr(model, "tp_size", None) or 1) > 1:
        return "split by tensor parallelism"
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        return "split by DeepSpeed ZeRO-3"
    if any(getattr(module, "_is_fsdp_managed_module", False) for module in model.modules()):
        return "split by FSDP"
    return None


def position_count(model: Any) -> float:
    """Return how many positions the model has a table for.

    Infinite where rotary embeddings compute any position.
    """
    config = model.config.get_text_config(decoder=True)
    if getattr(config, "rope_parameters", None):
        return math.inf
    return getattr(config, "max_position_embeddings", None) or math.inf


def device_of(model: Any) -> torch.device:
    """Return the device of a model's inputs, also where accelerate keeps weights elsewhere."""
    device: torch.device = model.device
    if device.type != "meta":
        return device
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)
    return torch.device(getattr(hook, "execution_device", None) or "cpu")


def vocabulary_size(model: Any) -> int:
    """Return how many token ids the model reads."""
    size = getattr(model.get_input_embeddings(), "num_embeddings", None)  # a wrapper has none
    return int(size if size is not None else model.config.get_text_config(decoder=True).vocab_size)


def _growing_rope(config: Any) -> list[tuple[str, int]]:
    """Return rotary embeddings that depend on the length, each with its greatest safe length."""
    limits = []
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        kind = rope.get("rope_type")
        if kind in _GROWING_ROPE:
            original = rope.get("original_max_position_embeddings")
            limit = original or getattr(config, "original_max_position_embeddings", None)
            what = f"{kind} rotary embeddings change their frequencies"
            limits.append((what, int(limit or config.max_position_embeddings)))
    return limits


def require_inputs(model_kwargs: Mapping[str, Any]) -> None:
    """Check that only text goes into the model.

    Args:
        model_kwargs: as `generate` prepared them for the forward pass.

    Raises:
        NotSupportedError: another tensor, such as `inputs_embeds`, `token_type_ids` or an image.
    """
    for name, value in model_kwargs.items():
        if name not in _CONTINUED and _holds_tensor(value):
            expected = "no input besides input_ids, their mask and positions"
            raise NotSupportedError(describe("generation", name, "passed", expected))


def require_mode(config: Any, processors: Sequence[Any]) -> None:
    """Check that a generation of this kind is decided token by token.

    Args:
        config: the prepared `GenerationConfig`.
        processors: the prepared logits processors.

    Raises:
        NotSupportedError: beam search, assisted generation and the like, outputs that belong to
            forward passes rather than to tokens, or classifier-free guidance.
    """
    mode = config.get_generation_mode()
    if mode not in _MODES:
        name = str(getattr(mode, "value", mode)).replace("_", " ")
        raise NotSupportedError(describe("generation", "mode", name, "greedy search or sampling"))
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False) and config.return_dict_in_generate:
            expected = "off: a forward pass here covers several tokens"
            raise NotSupportedError(describe("generation", name, "on", expected))
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            expected = "None: guidance runs the model once more for each token"
            raise NotSupportedError(
                describe("generation", "guidance_scale", processor.guidance_scale, expected)
            )


def _holds_tensor(value: object) -> bool:
    """Return whether a value is a tensor, or a sequence or mapping with one."""
    items: Iterable[object] = [value]
    if isinstance(value, list | tuple):
        items = value
    elif isinstance(value, Mapping):
        items = value.values()
    return any(isinstance(item, torch.Tensor) for item in items)
