"""Attention of a model while trees are verified: an implementation that takes the mask of a tree.

It is registered with transformers under a name of its own, and models use it from the end of the
prompt's pass to that of a generation.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    eager_mask,
    flash_attention_mask,
    flex_attention_mask,
    sdpa_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rest_store.errors import NotSupportedError, describe

NAME = "rest_store_grouped_sdpa"
_SINCE = "2.5"  # torch, whose sdpa takes fewer heads of keys than of queries
_WITH_MASKS = ("sdpa", "eager", NAME)  # attention implementations that take a mask of any shape
# Arguments that change the result.
_OTHER_ATTENTION = ("position_bias", "softcap", "cache", "output_attentions")


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as sdpa of transformers does, with keys and values that query heads share.

    sdpa of transformers copies keys and values for each query head; this does not.

    With a mask, transformers makes these copies in every layer of every pass, because CUDA has no
    fast kernel for both. A CPU has one, and over a thousand tokens the copies take several times as
    long as attention itself.

    Arguments and result as those of `sdpa_attention_forward`, which is called where others than
    these matter.
    """
    shared = key.shape[1] != query.shape[1] and key.shape[3] == value.shape[3]
    if (
        not shared
        or attention_mask is None
        or any(kwargs.get(name) is not None for name in _OTHER_ATTENTION)
    ):
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
        return output
    attended = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=True,
    )
    return attended.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)

# Functions with one result, up to rounding: softmax attention over the positions of a mask. Eager
# attention is a function of each model's own, which is not registered.
_SAME_ATTENTION = (
    sdpa_attention_forward,
    flash_attention_forward,
    flex_attention_forward,
    grouped_attention,
)
_SAME_MASKS = (sdpa_mask, eager_mask, flash_attention_mask, flex_attention_mask)


def require_attention(model: Any) -> None:
    """Check that the attention of a tree computes the same as a model's own.

    Raises:
        NotSupportedError: its own is a function that somebody has registered with transformers,
            perhaps under one of the usual names.
    """
    name = model.config.get_text_config(decoder=True)._attn_implementation
    same_attention = (*_SAME_ATTENTION, None) if name == "eager" else _SAME_ATTENTION
    for what, function, same in (
        ("attention function", ALL_ATTENTION_FUNCTIONS.get(name), same_attention),
        ("attention mask function", ALL_MASK_ATTENTION_FUNCTIONS.get(name), _SAME_MASKS),
    ):
        function = getattr(function, "func", function)  # of a partial, such as those for kernels
        if function not in same:
            actual = f"{getattr(function, '__qualname__', function)} (registered as {name!r})"
            expected = (
                "sdpa, eager, flash or flex attention of transformers, which a tree's can take the"
                " place of"
            )
            raise NotSupportedError(describe(type(model).__name__, f"the {what}", actual, expected))


class TreeAttention:
    """Makes a model's attention take masks of trees, until `restore`.

    Flash and flex attention take causal masks only; they are replaced by sdpa, or else by eager
    attention. On a CPU, sdpa is replaced by `grouped_attention`, whose results are the same. Not
    thread-safe for one model.

    Args:
        model: a model of transformers.
        device: that it attends on.

    Attributes:
        name: the implementation in use.

    Raises:
        NotSupportedError: the implementation cannot be replaced.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._config = model.config.get_text_config(decoder=True)
        name = self._config._attn_implementation
        # A generation of this model has not ended.
        self._original = "sdpa" if name == NAME else name
        if name not in _WITH_MASKS:
            try:
                self._set("sdpa")
            except (ValueError, ImportError):  # not for this model
                self._set("eager")
            if self._config._attn_implementation not in _WITH_MASKS:
                expected = "sdpa or eager, which take the mask of a tree"
                raise NotSupportedError(
                    describe(
                        type(model).__name__, "the attention implementation", repr(name), expected
                    )
                )
        on_cpu = self._config._attn_implementation == "sdpa" and device.type == "cpu"
        if on_cpu and torch.__version__ >= _SINCE and _has_groups(self._config):
            self._set(NAME)
        self.name: str = self._config._attn_implementation

    def restore(self) -> None:
        """Give the model its own attention back; may be called again."""
        if self._config._attn_implementation != self._original:
            self._set(self._original)

    def _set(self, name: str) -> None:
        """Set the implementation of the part of the model that reads text."""
        config = self._model.config
        part = next(
            (part for part in config.sub_configs if getattr(config, part) is self._config), None
        )
        self._model.set_attn_implementation(name if part is None else {part: name})


def _has_groups(config: Any) -> bool:
    """Return whether several query heads share keys and values."""
    heads = getattr(config, "num_attention_heads", None)
    return getattr(config, "num_key_value_heads", heads) != heads
