"""Attention of a model while a tree is verified: an implementation that takes the tree's mask, at little cost."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rest_store.errors import ModelNotSupportedError, describe

_WITH_MASKS = ("sdpa", "eager")  # attention implementations that take a mask of any shape
_OTHER_ATTENTION = ("position_bias", "softcap", "cache", "output_attentions")  # arguments that change the result


class TreeAttention:
    """Makes a model's attention take masks while a step runs.

    Flash and flex attention take causal masks only; they are replaced by sdpa, or else by eager attention. On a CPU,
    sdpa is replaced by `grouped_attention`. Not thread-safe for one model.

    Args:
        model: a model of transformers.
        config: its text configuration.

    Attributes:
        implementation: what is used meanwhile.

    Raises:
        ModelNotSupportedError: the implementation cannot be replaced.
    """

    def __init__(self, model: Any, config: Any) -> None:
        self._config = config
        self.implementation = config._attn_implementation
        if self.implementation not in _WITH_MASKS:
            if not model._can_set_attn_implementation():
                expected = "sdpa or eager, which take the mask of a tree"
                name = repr(self.implementation)
                raise ModelNotSupportedError(
                    describe(type(model).__name__, "the attention implementation", name, expected)
                )
            self.implementation = "sdpa" if model._supports_sdpa else "eager"
        self._grouped = self.implementation == "sdpa" and model.device.type == "cpu" and _has_grouped_kernel()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Return the context in which masks are taken."""
        original = self._config._attn_implementation
        self._config._attn_implementation = self.implementation
        try:
            with _grouped_sdpa() if self._grouped else nullcontext():
                yield
        finally:
            self._config._attn_implementation = original


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
    """Attend as sdpa of transformers, without a copy of keys and values for each query head that shares them.

    With a mask, transformers makes these copies in every layer of every pass, because CUDA has no fast kernel for both.
    A CPU has one, and over a thousand tokens the copies take several times as long as attention itself.

    Args:
        module: the attention layer.
        query: [rows, query heads, width, size].
        key: [rows, heads, slots, size].
        value: [rows, heads, slots, size].
        attention_mask: bool[rows, 1, width, slots], True where a slot is seen; None: all are.
        dropout: as in `torch.nn.functional.scaled_dot_product_attention`.
        scaling: its `scale`.
        **kwargs: as in `sdpa_attention_forward`, which is called if they matter.

    Returns:
        [rows, width, query heads, size], and no weights.
    """
    shared = key.shape[1] != query.shape[1] and key.shape[3] == value.shape[3] and query.device.type == "cpu"
    if not shared or attention_mask is None or any(kwargs.get(name) is not None for name in _OTHER_ATTENTION):
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
        return output
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


@functools.cache
def _has_grouped_kernel() -> bool:
    """Whether this torch has a CPU kernel that takes both shared heads and a mask."""
    query, key, mask = torch.zeros(1, 2, 2, 8), torch.zeros(1, 1, 2, 8), torch.ones(1, 1, 2, 2)
    try:
        kernel = torch._fused_sdp_choice(query, key, key, mask, enable_gqa=True)
    except (AttributeError, TypeError, RuntimeError):  # older releases have no shared heads
        return False
    return kernel != SDPBackend.MATH.value


_lock = threading.Lock()
_steps = 0  # running now, in any thread


@contextmanager
def _grouped_sdpa() -> Iterator[None]:
    """Return the context in which sdpa is `grouped_attention`, unless other code has replaced sdpa already.

    Models of other threads use it too meanwhile; its results are the same.
    """
    global _steps
    with _lock:
        replaced = ALL_ATTENTION_FUNCTIONS["sdpa"] not in (sdpa_attention_forward, grouped_attention)
        if not replaced:
            _steps += 1
            ALL_ATTENTION_FUNCTIONS["sdpa"] = grouped_attention
    if replaced:
        yield
        return
    try:
        yield
    finally:
        with _lock:
            _steps -= 1
            if not _steps and ALL_ATTENTION_FUNCTIONS["sdpa"] is grouped_attention:  # not what came meanwhile
                del ALL_ATTENTION_FUNCTIONS["sdpa"]
