"""What can be generated with drafts and what is refused, by name and with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

from rest_store.errors import ModelNotSupportedError, ModeNotSupportedError, describe

_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
_GROWING_ROPE = ("dynamic", "longrope")  # frequencies depend on the length of the sequence


def require_model(model: Any, max_length: int) -> None:
    """Check that draft trees can be verified with `model`.

    Args:
        model: a model of `transformers`.
        max_length: tokens of a sequence at most.

    Raises:
        ModelNotSupportedError: an encoder-decoder, a recurrent state, positions that cannot be given (ALiBi), or rotary
            frequencies that change within `max_length`.
    """
    name = type(model).__name__
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise ModelNotSupportedError(describe(name, "the model", "an encoder-decoder", "decoder only"))
    if getattr(model, "_is_stateful", False):
        expected = "keys and values only, which can be kept for one path of a tree"
        raise ModelNotSupportedError(describe(name, "its state", "recurrent", expected))
    if "position_ids" not in inspect.signature(model.forward).parameters or getattr(config, "alibi", False):
        found = "derived from places in the cache (ALiBi)"
        raise ModelNotSupportedError(describe(name, "the position of a token", found, "an argument, position_ids"))
    if (rope := _growing_rope(config)) is not None:
        kind, limit = rope
        if max_length > limit:
            found = f"{max_length}, where {kind} rotary embeddings change their frequencies"
            raise ModelNotSupportedError(describe(name, "max_length", found, f"at most {limit}"))


def _growing_rope(config: Any) -> tuple[str, int] | None:
    """Return the kind of rotary embeddings that depend on the length, and the length up to which they do not."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        kind = rope.get("rope_type")
        if kind in _GROWING_ROPE:
            limit = rope.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            return str(kind), int(limit or config.max_position_embeddings)
    return None


def require_mode(config: Any, processors: Sequence[Any]) -> None:
    """Check that a generation of this kind is decided token by token.

    Args:
        config: the prepared `GenerationConfig`.
        processors: the prepared logits processors.

    Raises:
        ModeNotSupportedError: beam search and the like, another speculative method beside this one, outputs that belong
            to forward passes rather than to tokens, or classifier-free guidance.
    """
    mode = config.get_generation_mode()
    if mode not in _MODES:
        found = str(getattr(mode, "value", mode)).replace("_", " ")
        raise ModeNotSupportedError(describe("generation", "mode", found, "greedy search or sampling"))
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False) and config.return_dict_in_generate:
            expected = "off: a forward pass here covers several tokens"
            raise ModeNotSupportedError(describe("generation", name, "on", expected))
    for processor in processors:
        if isinstance(processor, UnbatchedClassifierFreeGuidanceLogitsProcessor):
            expected = "none: it runs the model once more for each token"
            raise ModeNotSupportedError(describe("generation", "guidance_scale", processor.guidance_scale, expected))
