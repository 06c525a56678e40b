"""How a model attends while a tree is verified: by an implementation that takes the tree's mask, and takes it cheaply.

Torch is imported here.
"""

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

_TAKE_MASKS = ("sdpa", "eager")  # attention implementations that are given a mask of any shape
_MORE = ("position_bias", "softcap", "cache", "output_attentions")  # arguments that make attention something else


class attention_for_trees:  # noqa: N801  used as a function that returns a context
    """Makes a model's attention take masks while a step runs: switches it where it cannot.

    Flash and flex attention know causal masks only; sdpa, or else eager attention, stands in for them. On a CPU, sdpa
    is `grouped_attention` meanwhile. Not thread-safe for one model.

    Raises:
        ModelNotSupportedError: there is no implementation to switch to.
    """

    def __init__(self, model: Any, config: Any) -> None:
        self._config = config
        own = config._attn_implementation
        self.implementation = own
        if own not in _TAKE_MASKS:
            if not model._can_set_attn_implementation():
                expected = "sdpa or eager, which take the mask of a tree"
                raise ModelNotSupportedError(
                    describe(type(model).__name__, "the attention implementation", repr(own), expected)
                )
            self.implementation = "sdpa" if model._supports_sdpa else "eager"
        self._groups = self.implementation == "sdpa" and model.device.type == "cpu" and _groups_are_fast()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Return the context in which masks are taken."""
        own = self._config._attn_implementation_internal
        self._config._attn_implementation_internal = self.implementation
        try:
            with _grouping() if self._groups else nullcontext():
                yield
        finally:
            self._config._attn_implementation_internal = own


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
    """Attend as sdpa of `transformers`, without copying keys and values for each query head that shares them.

    Where there is a mask, `transformers` makes these copies in every layer of every pass, because CUDA has no fast
    kernel for both. A CPU has, and over a thousand tokens the copies take it several times as long as attention does.

    Args:
        module: the attention layer.
        query: [rows, query heads, width, size].
        key: [rows, heads, slots, size].
        value: [rows, heads, slots, size].
        attention_mask: [rows, 1, width, slots], True where something is seen; None: all is.
        dropout: as of `torch.nn.functional.scaled_dot_product_attention`.
        scaling: its `scale`.
        **kwargs: of `sdpa_attention_forward`, which does what is asked for by them.

    Returns:
        What the queries found, [rows, width, query heads, size], and no weights.
    """
    shared = key.shape[1] != query.shape[1] and key.shape[3] == value.shape[3] and query.device.type == "cpu"
    if not shared or attention_mask is None or any(kwargs.get(name) is not None for name in _MORE):
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
        return found
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, enable_gqa=True
    )
    return attended.transpose(1, 2).contiguous(), None


@functools.cache
def _groups_are_fast() -> bool:
    """Whether this torch has a kernel on CPUs that takes both shared heads and a mask."""
    query, key, mask = torch.zeros(1, 2, 2, 8), torch.zeros(1, 1, 2, 8), torch.ones(1, 1, 2, 2)
    try:
        kernel = torch._fused_sdp_choice(query, key, key, mask, enable_gqa=True)
    except (AttributeError, TypeError, RuntimeError):  # older ones have no shared heads
        return False
    return kernel != SDPBackend.MATH.value


_lock = threading.Lock()
_steps = 0  # that run now, in any thread


@contextmanager
def _grouping() -> Iterator[None]:
    """Return the context in which sdpa is `grouped_attention`, unless somebody has put another in its place.

    Models of other threads have it meanwhile, too; it gives them what their own gives.
    """
    global _steps
    if ALL_ATTENTION_FUNCTIONS["sdpa"] not in (sdpa_attention_forward, grouped_attention):
        yield
        return
    with _lock:
        _steps += 1
        ALL_ATTENTION_FUNCTIONS["sdpa"] = grouped_attention
    try:
        yield
    finally:
        with _lock:
            _steps -= 1
            if not _steps:
                del ALL_ATTENTION_FUNCTIONS["sdpa"]
