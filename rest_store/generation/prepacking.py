"""Linear layers with prepacked weights, for CPUs: a tree costs little more than a token.

torch computes a float32 linear layer on a CPU with a BLAS that reads the weights in their usual
layout. oneDNN, a part of torch, also takes them in blocks that fit the processor's registers, which
is several times as fast for the few rows of a step. On some processors the BLAS is faster for a
single row, so both are timed when weights are packed, and so are fewer threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.threads import fitting_threads

_ROWS = 16  # of the input that the blocks are chosen for; other numbers work too
_REPEATS = 5  # of a timing

_Linear = Callable[..., torch.Tensor]
_Packed = list[tuple[torch.nn.Linear, Any]]


@contextmanager
def prepacked_weights(model: torch.nn.Module) -> Iterator[int]:
    """Compute the linear layers of `model` from prepacked weights inside a `with` block.

    A second copy of the weights is held meanwhile. Sums are the same up to the order of addition,
    as between passes of different widths. torch has fewer threads inside the block where that is
    faster: other programs may be busy.

    Args:
        model: any module. Its `torch.nn.Linear` layers in float32 on the CPU are prepacked, unless
            their `forward` was replaced, or their weights are of a tensor class of their own, such
            as torchao's quantized ones. Do not change their weights inside the block.

    Yields:
        The number of prepacked layers.

    Raises:
        NotSupportedError: there is no such layer, or this torch has no oneDNN.
    """
    pack, linear = _operators()
    layers = [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and _can_be_packed(module)
    ]
    if not layers:
        expected = (
            "at least one: a torch.nn.Linear with its own forward and plain weights, in float32, on"
            " the CPU"
        )
        raise NotSupportedError(
            describe(type(model).__name__, "number of linear layers", 0, expected)
        )
    # Tied ones once.
    weights = {layer.weight: pack(layer.weight.detach(), _ROWS) for layer in layers}
    packed = [(layer, weights[layer.weight]) for layer in layers]
    with fitting_threads(lambda: _pass(packed, linear, _ROWS)):
        singly = _is_faster_for_one_row(packed, linear)
        try:
            for layer, weight in packed:
                vars(layer)["forward"] = _forward(layer, weight, linear, minimum=1 if singly else 2)
            yield len(layers)
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)


def _operators() -> tuple[Callable[..., Any], _Linear]:
    """Return the operators that pack a weight and multiply with it.

    Torch's compiler uses them for frozen weights.
    """
    operators = torch.ops.mkldnn
    try:
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return operators._reorder_linear_weight, operators._linear_pointwise
    except AttributeError:
        pass
    raise NotSupportedError(
        describe(
            "prepacked_weights", f"torch {torch.__version__}", "without oneDNN", "one that has it"
        )
    )


def _can_be_packed(layer: torch.nn.Linear) -> bool:
    weight = layer.weight
    has_own_forward = type(layer) is torch.nn.Linear and "forward" not in vars(layer)
    is_plain = type(weight) is torch.nn.Parameter and weight.layout == torch.strided
    return (
        has_own_forward
        and is_plain
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
    )


def _inputs(packed: _Packed, rows: int) -> dict[int, torch.Tensor]:
    """Return an input of so many rows for each input size of the layers."""
    sizes = {layer.in_features for layer, _ in packed}
    return {size: torch.ones(rows, size, dtype=torch.float32, device="cpu") for size in sizes}


@torch.no_grad()
def _pass(packed: _Packed, linear: _Linear, rows: int) -> None:
    """Compute all layers from prepacked weights, each for an input of so many rows."""
    inputs = _inputs(packed, rows)
    for layer, weight in packed:
        linear(inputs[layer.in_features], weight, layer.bias, "none", [], "")


@torch.no_grad()
def _usual_pass(packed: _Packed, rows: int) -> None:
    """Compute all layers from weights in their usual layout."""
    inputs = _inputs(packed, rows)
    for layer, _ in packed:
        torch.nn.functional.linear(inputs[layer.in_features], layer.weight, layer.bias)


def _is_faster_for_one_row(packed: _Packed, linear: _Linear) -> bool:
    """Return whether prepacked weights are faster than the usual layout for an input of one row."""
    usual = []
    prepacked = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        _usual_pass(packed, 1)
        between = time.perf_counter()
        _pass(packed, linear, 1)
        usual.append(between - began)
        prepacked.append(time.perf_counter() - between)
    return min(prepacked) < min(usual)


def _forward(
    layer: torch.nn.Linear, weight: Any, linear: _Linear, *, minimum: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a forward pass with prepacked weights for inputs of `minimum` rows or more."""

    def forward(rows: torch.Tensor) -> torch.Tensor:
        few = rows.numel() < minimum * layer.in_features
        if few or torch.is_grad_enabled() or rows.dtype != torch.float32:
            return torch.nn.functional.linear(rows, layer.weight, layer.bias)
        return linear(rows, weight, layer.bias, "none", [], "")

    return forward
