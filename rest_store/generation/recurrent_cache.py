"""The cache of a model with recurrent state, which reads drafts from the last kept token on.

A recurrent state holds all that was read, so a token that was read wrongly cannot be taken out of
it again. While a pass reads several tokens, a `RecurrentCache` therefore leaves states as they are
and keeps those after the pass beside them. If the whole draft was accepted, these are kept instead:
nothing is copied or read again. If not, they are dropped. Convolutions alone are another matter:
their state is the latest inputs, and those of the pass are at hand, so that it can be kept after
any of its tokens.

A pass over one token changes states in place, as in plain generation. Nothing here is thread-safe.

transformers' side of this are `LinearAttentionLayer` and its relatives in `cache_utils`: mixers
call `get_conv_state`, `get_recurrent_state`, `update_conv_state` and `update_recurrent_state` of
the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from rest_store.errors import NotSupportedError, describe
from rest_store.generation.cache import Pattern, TreeKVCache, TreeLayer, require_cache
from rest_store.generation.tree_mixers import PassTree

_MIXED = (LinearAttentionAndFullAttentionLayer, LinearAttentionAndSlidingWindowAttentionLayer)


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """The states of one layer, with the interface that mixers of transformers use.

    Args:
        layer: of transformers, whose states are taken over.
    """

    def __init__(self, layer: LinearAttentionLayer) -> None:
        super().__init__(number_of_states=layer.number_of_states)
        _move_states(layer, self)
        # Of the latest pass, behind the state before it.
        self._conv_inputs: dict[int, torch.Tensor] = {}
        # The latest pass: a state, or the parts of states (`StateParts`).
        self._recurrent_after: dict[int, Any] = {}

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return the state and behind it the inputs of a pass, [rows, channels, kernel + width]."""
        if not self.is_conv_states_initialized[state_idx]:  # by a pass of this layer's first use
            self.lazy_initialization(
                conv_states=conv_states, state_idx=state_idx, conv_kernel_size=conv_kernel_size
            )
            self.has_previous_state[state_idx] = True
        inputs = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
        self._conv_inputs[state_idx] = inputs
        return inputs

    def update_recurrent_state(
        self, recurrent_states: Any, state_idx: int = 0, **kwargs: Any
    ) -> Any:
        """Keep the state after a pass beside the one before it.

        Of a pass over a tree it is `StateParts`.
        """
        if not self.is_recurrent_states_initialized[state_idx]:
            self.lazy_initialization(recurrent_states=recurrent_states, state_idx=state_idx)
        self._recurrent_after[state_idx] = recurrent_states
        return recurrent_states

    def keep(self, ends: Sequence[int]) -> None:
        """Keep the states of the latest pass.

        Args:
            ends: for each row how many tokens of the pass are kept; 0: the row stays as it was
                before. Rows whose recurrent states are kept have all tokens of the pass.
        """
        rows = [row for row, end in enumerate(ends) if end]
        for index, inputs in self._conv_inputs.items():
            state = self.conv_states[index]
            if len(set(ends)) == 1:
                state.copy_(inputs[..., ends[0] : ends[0] + state.shape[-1]])
            else:
                for row in rows:
                    state[row] = inputs[row, ..., ends[row] : ends[row] + state.shape[-1]]
        for index, after in self._recurrent_after.items():
            state = self.recurrent_states[index]
            if after is state:  # a pass over one token, which changed it in place
                continue
            if len(rows) < len(ends):
                state[rows] = after[rows].to(state.dtype)
            elif after.dtype == state.dtype and after.untyped_storage().nbytes() == after.nbytes:
                self.recurrent_states[index] = after
            else:  # a part of something larger
                state.copy_(after)

    def keep_nodes(self, rows: torch.Tensor, ends: torch.Tensor, tree: PassTree) -> None:
        """Keep the states after a node of each row of the latest pass, which read trees.

        Args:
            rows: which are kept, int64[kept]; others stay as they were before.
            ends: the node of each row, int64[rows].
            tree: that was read.
        """
        sees, lineage = tree.at(ends)
        for index, inputs in self._conv_inputs.items():
            state = self.conv_states[index]
            length = state.shape[-1]
            columns = inputs.shape[-1] - tree.sees.shape[1] + lineage[:, :length].flip(-1)
            after = inputs.gather(2, columns[:, None].expand(-1, inputs.shape[1], -1))
            state[rows] = after[rows]
        for index, read in self._recurrent_after.items():
            state = self.recurrent_states[index]
            state[rows] = read.state_at(state.float(), sees, ends)[rows].to(state.dtype)

    def drop(self) -> None:
        """Forget the latest pass."""
        self._conv_inputs.clear()
        self._recurrent_after.clear()

    def states(self) -> list[torch.Tensor]:
        """Return all states, [rows, ...]."""
        held = [*self.conv_states.values(), *self.recurrent_states.values()]
        return [state for state in held if state is not None]


class StateAndTreeLayer(StateLayer, TreeLayer):
    """The states of a layer that has keys and values, too: those of `attention`."""

    def __init__(self, layer: LinearAttentionLayer, attention: TreeLayer) -> None:
        TreeLayer.__init__(self, attention.slots, attention.number)
        StateLayer.__init__(self, layer)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Allocate states; keys and values have their memory."""
        if kwargs:
            StateLayer.lazy_initialization(self, **kwargs)


class RecurrentCache(TreeKVCache):
    """Keys, values and recurrent states, whose rows have different lengths.

    Args:
        cache: as in `TreeKVCache`, with layers that have states.
        patterns: the positions that each layer sees.
        length: tokens in `cache`.
        room: slots that the first step needs.

    Attributes:
        lengths: tokens held of each row, padding on the left included.
        rolls_back: whether any number of tokens of a pass can be kept. Otherwise all of them or
            none.

    Raises:
        NotSupportedError: as in `require_cache`.
    """

    has_states = True

    def __init__(self, cache: Cache, patterns: Sequence[Pattern], length: int, room: int) -> None:
        require_cache(cache)
        self._held = [
            number
            for number, layer in enumerate(cache.layers)
            if getattr(layer, "keys", None) is not None
        ]
        self._begin(length, _rows(cache))
        layers = self._taken_over(cache, patterns, room)
        for number, layer in enumerate(cache.layers):
            if isinstance(layer, _MIXED):
                layers[number] = StateAndTreeLayer(layer, layers[number])
            elif isinstance(layer, LinearAttentionLayer):
                layers[number] = StateLayer(layer)
        Cache.__init__(self, layers=layers)
        self._state_layers = {
            number: layer for number, layer in enumerate(layers) if isinstance(layer, StateLayer)
        }
        recurrent = [
            any(layer.is_recurrent_states_initialized.values())
            for layer in self._state_layers.values()
        ]
        self.rolls_back = not any(recurrent)
        # States of rows that the latest passes do not concern.
        self._set_aside: dict[int, list[torch.Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where the first states are."""
        return self._states()[0].device

    @property
    def longest_window(self) -> int:
        """The most inputs that a convolution's state holds; at least 1."""
        longest = 1
        for layer in self._state_layers.values():
            for state in layer.conv_states.values():
                if state is not None:
                    longest = max(longest, state.shape[-1])
        return longest

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens of the longest row, also where no layer has keys."""
        return max(self.lengths)

    def keep_first(self, ends: Sequence[int]) -> None:
        """Keep the first tokens of each row of the latest pass, so many as `ends` says.

        Drop the others.

        Args:
            ends: as in `StateLayer.keep`.
        """
        if any(ends):
            for layer in self._state_layers.values():
                layer.keep(ends)
        self.drop()
        self.keep([range(end) for end in ends])

    def keep_paths(self, paths: Sequence[Sequence[int]], tree: PassTree) -> None:
        """Keep the tokens at `paths` of the latest pass, which read trees; drop the others.

        Args:
            paths: as in `TreeKVCache.keep`.
            tree: that was read.
        """
        rows = torch.tensor([row for row, path in enumerate(paths) if path], device=self.device)
        ends = torch.tensor([path[-1] if path else 0 for path in paths], device=self.device)
        for layer in self._state_layers.values():
            layer.keep_nodes(rows, ends, tree)
        self.drop()
        self.keep(paths)

    def drop(self) -> None:
        """Forget the states after the latest pass."""
        for layer in self._state_layers.values():
            layer.drop()

    def set_aside(self, rows: Sequence[int]) -> None:
        """Copy the states of idle rows, which passes of the others change, until `put_back`."""
        for row in rows:
            if row not in self._set_aside:
                self._set_aside[row] = [state[row].clone() for state in self._states()]

    def put_back(self, rows: Iterable[int]) -> None:
        """Restore the states of rows that were set aside."""
        for row in rows:
            for state, copy in zip(self._states(), self._set_aside.pop(row, ()), strict=False):
                state[row] = copy

    def give_back(self, cache: Cache) -> None:
        """Fill the original cache as if the tokens here had been decoded one by one."""
        self.put_back(range(len(self.lengths)))
        super().give_back(cache)
        for number, layer in self._state_layers.items():
            _move_states(layer, cache.layers[number])

    def _states(self) -> list[torch.Tensor]:
        states: list[torch.Tensor] = []
        for layer in self._state_layers.values():
            states += layer.states()
        return states


def _rows(cache: Cache) -> int:
    """Return the rows of a filled cache."""
    for layer in cache.layers:
        held = [getattr(layer, "keys", None), *getattr(layer, "conv_states", {}).values()]
        for tensor in held:
            if tensor is not None:
                return int(tensor.shape[0])
    raise NotSupportedError(
        describe("verification", "the cache", "empty", "one that the prompt was read into")
    )


def _move_states(source: LinearAttentionLayer, target: LinearAttentionLayer) -> None:
    """Give the states of a layer to another one; the first is empty then, as a new one is."""
    names = (
        "conv_states",
        "recurrent_states",
        "is_conv_states_initialized",
        "is_recurrent_states_initialized",
        "has_previous_state",
        "conv_kernel_size",
    )
    for name in names:
        setattr(target, name, dict(getattr(source, name)))
    target.device = source.device
    target.dtype = source.dtype
    for name in names:
        empty = False if name.startswith(("is_", "has_")) else None
        setattr(source, name, dict.fromkeys(range(source.number_of_states), empty))
