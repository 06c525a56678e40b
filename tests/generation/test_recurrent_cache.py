"""States beside keys and values: kept, dropped, set aside and given back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from rest_store.generation.cache import Pattern
from rest_store.generation.recurrent_cache import RecurrentCache

CHANNELS = 2
KERNEL = 3


def filled(rows: int, *, recurrent: bool = True) -> DynamicCache:
    """A cache of one layer of states and one of keys with four tokens a row: 10 * row + token."""
    from transformers import Lfm2Config

    config = Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"])
    cache = DynamicCache(config=config)
    cache.update_conv_state(tokens(rows, range(4)), 0, conv_kernel_size=KERNEL)
    if recurrent:
        cache.update_recurrent_state(torch.zeros(rows, 5), 0)
    cache.update(torch.zeros(rows, 1, 4, 2), torch.zeros(rows, 1, 4, 2), 1)
    return cache


def tokens(rows: int, numbers: Any) -> torch.Tensor:
    """Inputs of a convolution, [rows, channels, tokens]."""
    return torch.tensor([[[10.0 * row + n for n in numbers]] * CHANNELS for row in range(rows)])


def ours(rows: int, *, recurrent: bool = True) -> tuple[RecurrentCache, DynamicCache]:
    theirs = filled(rows, recurrent=recurrent)
    return RecurrentCache(theirs, [Pattern("full_attention")] * 2, 4, 8), theirs


def read(cache: RecurrentCache, width: int, state: float) -> None:
    """A pass over tokens 4, 5, .. of each row."""
    rows = len(cache.lengths)
    seen = cache.update_conv_state(tokens(rows, range(4, 4 + width)), 0, conv_kernel_size=KERNEL)
    assert seen.shape == (rows, CHANNELS, KERNEL + width)
    if not cache.rolls_back:
        cache.update_recurrent_state(torch.full((rows, 5), state), 0)
    cache.update(torch.ones(rows, 1, width, 2), torch.ones(rows, 1, width, 2), 1)


def state_of(cache: Any, kind: str) -> torch.Tensor | None:
    """The state of the first layer as a mixer gets it: before transformers 5.21, an attribute."""
    if hasattr(cache, f"get_{kind}_state"):
        state: torch.Tensor | None = getattr(cache, f"get_{kind}_state")(0)
        return state
    return dict(getattr(cache.layers[0], f"{kind}_states")).get(0)


def window(cache: RecurrentCache, row: int) -> list[float]:
    """The latest inputs that the convolution of `row` has."""
    state = state_of(cache, "conv")
    assert state is not None
    return [float(number) - 10 * row for number in state[row, 0]]


def recurrent(cache: RecurrentCache) -> list[float]:
    state = state_of(cache, "recurrent")
    assert state is not None
    return [float(number) for number in state[:, 0]]


def test_states_change_when_a_pass_is_kept_and_not_before() -> None:
    cache, theirs = ours(1)
    assert not theirs.has_previous_state(0)
    assert theirs.get_seq_length() == 0
    read(cache, 3, 7.0)
    assert (window(cache, 0), recurrent(cache), cache.lengths) == ([1, 2, 3], [0.0], [4])
    cache.keep_first([3])
    assert (window(cache, 0), recurrent(cache), cache.lengths) == ([4, 5, 6], [7.0], [7])


def test_states_of_a_pass_that_is_not_kept_are_dropped() -> None:
    cache, _ = ours(1)
    read(cache, 3, 7.0)
    cache.keep_first([0])
    cache.keep_first([1])  # of nothing
    assert (window(cache, 0), recurrent(cache)) == ([1, 2, 3], [0.0])


def test_rows_are_kept_one_by_one() -> None:
    cache, _ = ours(3)
    read(cache, 3, 7.0)
    cache.keep_first([3, 0, 3])
    assert [window(cache, row) for row in range(3)] == [[4, 5, 6], [1, 2, 3], [4, 5, 6]]
    assert recurrent(cache) == [7.0, 0.0, 7.0]
    assert cache.lengths == [7, 4, 7]


def test_convolutions_alone_are_rolled_back_to_any_token() -> None:
    cache, _ = ours(3, recurrent=False)
    assert cache.rolls_back
    read(cache, 3, 0.0)
    cache.keep_first([1, 2, 0])
    assert [window(cache, row) for row in range(3)] == [[2, 3, 4], [3, 4, 5], [1, 2, 3]]
    assert cache.lengths == [5, 6, 4]


def test_states_that_were_set_aside_are_put_back() -> None:
    cache, theirs = ours(2)
    cache.set_aside([1])
    for layer in (cache.layers[0],):
        layer.recurrent_states[0] += 3
        layer.conv_states[0] += 3
    cache.set_aside([1])  # it is still the row as it was
    cache.put_back([0])
    assert recurrent(cache) == [3.0, 3.0]
    cache.give_back(theirs)
    state = state_of(theirs, "recurrent")
    assert state is not None
    assert state[:, 0].tolist() == [3.0, 0.0]
    assert theirs.get_seq_length() == 4


def test_a_state_that_is_part_of_something_larger_is_copied() -> None:
    """A scan returns the last of several states, which would hold the others in memory."""
    cache, _ = ours(1)
    scan = torch.full((4, 1, 5), 7.0)
    cache.update_recurrent_state(scan[-1], 0)
    cache.update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 1)
    cache.keep_first([2])
    state = state_of(cache, "recurrent")
    assert state is not None
    assert state.untyped_storage().nbytes() == state.nbytes
    assert recurrent(cache) == [7.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_states_keep_their_type(dtype: torch.dtype) -> None:
    cache, _ = ours(1)
    cache.update_recurrent_state(torch.full((1, 5), 7.0, dtype=dtype), 0)
    cache.update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 1)
    cache.keep_first([2])
    state = state_of(cache, "recurrent")
    assert state is not None
    assert state.dtype == torch.float32
