"""The KV cache that draft trees are verified in.

A cache of transformers grows by all that a forward pass is given, with one length for all rows.
Verification writes a whole tree and keeps one path of it, of another length in each row of a batch.
`TreeKVCache` does that; it takes over the content of a cache of transformers and gives it back.
Nothing here is thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from rest_store.errors import NotSupportedError, describe

_GROWTH = 256  # slots added when a cache that may grow is full

FULL = "full_attention"
SLIDING = "sliding_attention"

# Layers of caches, by name: early releases of transformers 5 do not have all of them.
_DYNAMIC = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}
_WITH_STATES = {
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}


@dataclass(frozen=True)
class Pattern:
    """The positions that the attention layers of one kind see.

    Attributes:
        name: "full_attention" or "sliding_attention", as in `config.layer_types`.
        window: most positions seen, the own one included; 0: all.
    """

    name: str
    window: int = 0


class Slots:
    """The keys and values of all layers with one pattern, shape and device, as one block.

    Slot `s` of a row holds its token number `s`, padding on the left included. Slots before `base`
    were dropped.

    Args:
        pattern: of the layers' attention.
        layers: dynamic layers of transformers, which are taken over and emptied.
        lengths: tokens of each row, those included that a window dropped; the cache changes them in
            place.
        ended: rows that no token is written to any more; the cache changes them in place.
        room: slots for tokens to come.

    Attributes:
        keys: [layers, rows, heads, slots, size].
        values: the same.
        base: the slot that the block begins with.
    """

    def __init__(
        self,
        pattern: Pattern,
        layers: Sequence[DynamicLayer],
        lengths: list[int],
        ended: set[int],
        room: int,
    ) -> None:
        held = layers[0].keys.shape[2]
        self.pattern = pattern
        self.lengths = lengths
        self.ended = ended
        self.base = self.end - held
        self._drops = pattern.window > 0 and isinstance(layers[0], DynamicSlidingWindowLayer)
        self.keys, self.values = (
            part.new_zeros((len(layers), *part.shape[:2], held + room, part.shape[3]))
            for part in (layers[0].keys, layers[0].values)
        )
        for number, layer in enumerate(layers):
            self.keys[number, :, :, :held] = layer.keys
            self.values[number, :, :, :held] = layer.values
            _assign(layer, layer.keys.new_empty(0), layer.values.new_empty(0), 0)

    @property
    def end(self) -> int:
        """The slot after the longest row, where a step is written."""
        return max(self.lengths)

    @property
    def first_seen(self) -> int:
        """The first slot that some token of the next step sees."""
        return max(0, self._shortest - self.pattern.window + 1) if self.pattern.window else 0

    @property
    def _shortest(self) -> int:
        """The tokens of the shortest row that goes on."""
        return min(
            (length for row, length in enumerate(self.lengths) if row not in self.ended),
            default=self.end,
        )

    def reserve(self, width: int) -> None:
        """Allocate memory for a step of `width` tokens.

        Drop the positions that a window does not reach any more.
        """
        end = self.end + width
        if end - self.base <= self.keys.shape[3]:
            return
        base = max(self.base, self._shortest - self.pattern.window) if self._drops else self.base
        slots = self.base + self.keys.shape[3] - base
        size = max(end - base, slots) + _GROWTH
        self.keys = _moved(self.keys, slots, size)
        self.values = _moved(self.values, slots, size)
        self.base = base

    def move(self, rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy slots within their rows, in every layer; all int64[n] on the device."""
        sources = sources - self.base
        targets = targets - self.base
        self.keys[:, rows, :, targets] = self.keys[:, rows, :, sources]
        self.values[:, rows, :, targets] = self.values[:, rows, :, sources]


def _moved(block: torch.Tensor, slots: int, size: int) -> torch.Tensor:
    """Return a block of `size` slots that begins with the last `slots` of `block`."""
    moved = block.new_zeros((*block.shape[:3], size, block.shape[4]))
    moved[:, :, :, :slots] = block[:, :, :, block.shape[3] - slots :]
    return moved


class TreeLayer(CacheLayerMixin):
    """One layer of a `TreeKVCache`, with the interface that models of transformers use.

    It is the `number`-th layer of `slots`.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, slots: Slots, number: int) -> None:
        # Not that of `CacheLayerMixin`, which sets keys and values.
        self.slots = slots
        self.number = number
        self.is_sliding = slots.pattern.window > 0
        self.is_initialized = True

    @property
    def keys(self) -> torch.Tensor:
        """The keys in use, [rows, heads, slots, size]."""
        keys: torch.Tensor = self.slots.keys[self.number, :, :, : self.slots.end - self.slots.base]
        return keys

    @property
    def values(self) -> torch.Tensor:
        """The same of values."""
        values: torch.Tensor = self.slots.values[
            self.number, :, :, : self.slots.end - self.slots.base
        ]
        return values

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the memory is allocated."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of a step, [rows, heads, width, size].

        Return all that the step sees.
        """
        slots = self.slots
        keys = self.slots.keys[self.number]
        values = self.slots.values[self.number]
        stop = slots.end + key_states.shape[2]
        keys[:, :, slots.end - slots.base : stop - slots.base] = key_states
        values[:, :, slots.end - slots.base : stop - slots.base] = value_states
        seen = slice(slots.first_seen - slots.base, stop - slots.base)
        return keys[:, :, seen], values[:, :, seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many slots a step of `query_length` tokens sees, and the first of them."""
        return self.slots.end + query_length - self.slots.first_seen, self.slots.first_seen

    def get_seq_length(self) -> int:
        """Return the tokens of the longest row."""
        return self.slots.end

    def get_max_length(self) -> int:
        """Return -1: no limit."""
        return -1


class TreeKVCache(Cache):
    """A KV cache whose rows have different lengths.

    Args:
        cache: the dynamic cache of transformers to take over, filled by a forward pass over the
            prompt. It is emptied, so that keys and values are held once.
        patterns: of the attention of each layer.
        length: tokens in `cache`.
        room: slots that the first step needs.

    Attributes:
        lengths: tokens held of each row, padding on the left included.
        ended: rows that no token is written to any more, whose tokens a window may drop.
        has_states: whether there are recurrent states beside.

    Raises:
        NotSupportedError: a layer of `cache` is of a kind that cannot hold a tree (quantized...).
    """

    has_states = False

    def __init__(
        self, cache: Cache, patterns: Sequence[Pattern], length: int, room: int = _GROWTH
    ) -> None:
        require_cache(cache)
        self._held = [
            number for number in _attention_layers(cache) if cache.layers[number].is_initialized
        ]
        self._begin(length, cache.layers[self._held[0]].keys.shape[0])
        super().__init__(layers=self._taken_over(cache, patterns, room))

    def _begin(self, length: int, rows: int) -> None:
        """Have rows of `length` tokens."""
        self.lengths = [length] * rows
        self.ended: set[int] = set()
        self.groups: list[Slots] = []

    def _taken_over(self, cache: Cache, patterns: Sequence[Pattern], room: int) -> list[Any]:
        """Take over the keys and values of `cache`.

        Return its layers, with ours in place of those that hold some.
        """
        kinds: dict[Any, list[int]] = {}
        for number in self._held:
            layer = cache.layers[number]
            shape = (
                type(layer),
                layer.keys.shape[1:],
                layer.values.shape[1:],
                layer.keys.dtype,
                layer.keys.device,
            )
            kinds.setdefault((patterns[number], shape), []).append(number)
        layers: list[Any] = list(cache.layers)
        for (pattern, _), numbers in kinds.items():
            group_layers = [cache.layers[number] for number in numbers]
            slots = Slots(pattern, group_layers, self.lengths, self.ended, max(room, _GROWTH))
            self.groups.append(slots)
            for index, number in enumerate(numbers):
                layers[number] = TreeLayer(slots, index)
        return layers

    @property
    def device(self) -> torch.device:
        """Where the first layer is."""
        device: torch.device = self.groups[0].keys.device
        return device

    def reserve(self, width: int) -> None:
        """Allocate memory for a step of `width` tokens."""
        for group in self.groups:
            group.reserve(width)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at `paths` of the latest step, in that order; drop the others.

        Args:
            paths: for each row ascending positions in the step, 0 being its first token. Tokens
                that are in their final slot already are not copied.
        """
        end = max(self.lengths)
        moves: list[tuple[int, int, int]] = []  # row, source, target
        for row, path in enumerate(paths):
            for number, position in enumerate(path):
                source = end + position
                target = self.lengths[row] + number
                if source != target:
                    moves.append((row, source, target))
        if moves:
            on_host = torch.tensor(moves).T.contiguous()
            devices = {group.keys.device for group in self.groups}
            on_devices = {device: on_host.to(device) for device in devices}
            for group in self.groups:
                group.move(*on_devices[group.keys.device])
        for row, path in enumerate(paths):
            self.lengths[row] += len(path)

    def give_back(self, cache: Cache) -> None:
        """Fill the original cache as if the tokens here had been decoded one by one.

        Rows that are shorter than the longest get zeros behind their last token.
        """
        end = max(self.lengths)
        for number in self._held:
            slots = self.layers[number].slots
            layer = cache.layers[number]
            first = 0
            if isinstance(layer, DynamicSlidingWindowLayer):
                first = max(slots.base, end - layer.sliding_window + 1) - slots.base
            parts = [block[self.layers[number].number] for block in (slots.keys, slots.values)]
            for row, length in enumerate(self.lengths):
                for part in parts:
                    part[row, :, max(0, length - slots.base) :] = 0
            keys, values = (part[:, :, first : end - slots.base] for part in parts)
            _assign(layer, keys, values, end)


def has_states(cache: Any) -> bool:
    """Return whether a layer of `cache` holds states of a recurrence or of a convolution.

    Only the layer classes of the seam count.
    """
    return bool(layers_with_states(cache))


def layers_with_states(cache: Any) -> set[int]:
    """Return the numbers of the layers that hold such states."""
    return {
        number
        for number, layer in enumerate(getattr(cache, "layers", ()))
        if hasattr(layer, "conv_states") and hasattr(layer, "number_of_states")
    }


def holds_keys(cache: Cache) -> bool:
    """Return whether a layer of `cache` has keys, so that it knows how many tokens it holds."""
    return not has_states(cache) or bool(_attention_layers(cache))


def cache_patterns(cache: Cache) -> list[Pattern]:
    """Return the attention patterns of the layers of a cache that was made for a model."""
    windows = [int(getattr(layer, "sliding_window", 0)) for layer in cache.layers]
    return [Pattern(SLIDING, window) if window else Pattern(FULL) for window in windows]


def require_cache(cache: Cache) -> None:
    """Check that ours can take over `cache`, filled or not.

    Raises:
        NotSupportedError: a layer is of another kind than dynamic or recurrent, or the cache is
            offloaded.
    """
    if cache.offloading:
        raise NotSupportedError(
            describe("verification", "the cache", "offloaded", "on the model's device")
        )
    kinds = _DYNAMIC | (_WITH_STATES if has_states(cache) else set())
    for kind in map(type, cache.layers):
        if kind.__name__ not in kinds or kind.__module__ != Cache.__module__:
            expected = (
                "attention with a dynamic cache, whole or with a sliding window, or recurrent"
                " states"
            )
            raise NotSupportedError(
                describe("verification", "a layer of the cache", kind.__name__, expected)
            )


def _attention_layers(cache: Cache) -> list[int]:
    """Return the layers that may have keys and values.

    Others share those of one of these, or have states alone.
    """
    return [
        number for number, layer in enumerate(cache.layers) if isinstance(layer, CacheLayerMixin)
    ]


def _assign(layer: Any, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
    """Make a dynamic layer of transformers hold `keys` and `values`.

    They are those of the last tokens of `length`.
    """
    layer.is_initialized = True  # also where it was reset meanwhile
    layer.keys = keys
    layer.values = values
    if isinstance(layer, DynamicSlidingWindowLayer):
        layer.cumulative_length = length
