"""The key-value cache that draft trees are verified in: slots that are written at once and kept where accepted.

A cache of `transformers` grows by what a forward pass was given, one length for all rows. Verification writes a whole
tree and keeps one path of it, of another length in each row of a batch; `TreeCache` does that, and takes its content
from a cache of `transformers` and gives it back. Torch is imported here; nothing here is thread-safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from rest_store.errors import CacheNotSupportedError, describe

_GROWTH = 256  # slots added when a cache that may grow is full

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


@dataclass(frozen=True)
class Pattern:
    """What the attention layers of one kind may look back at.

    Attributes:
        name: "full_attention", "sliding_attention" or "chunked_attention", as in `config.layer_types`.
        window: positions seen at most, the own one included; for chunks their size; 0: all.
    """

    name: str
    window: int = 0


class Slots:
    """Keys and values of the layers that share a pattern, a shape and a device, as one block of memory.

    Slot `s` of a row holds its token number `s`, padding on the left included; `base` is the first slot still held.
    """

    def __init__(self, pattern: Pattern, keys: torch.Tensor, values: torch.Tensor, base: int) -> None:
        self.pattern = pattern
        self.keys = keys  # [layers, rows, heads, slots, size]
        self.values = values
        self.base = base

    def first_needed(self, shortest: int) -> int:
        """Return the first slot that a row of `shortest` tokens may still look at."""
        return max(0, shortest - self.pattern.window) if self.pattern.window else 0

    def reserve(self, end: int, shortest: int, growth: int) -> None:
        """Have memory up to slot `end`; where that takes new memory, let go of what no row looks at any more."""
        if end - self.base <= self.keys.shape[3]:
            return
        base = max(self.base, self.first_needed(shortest))
        kept = self.base + self.keys.shape[3] - base
        size = max(end - base, kept) + growth
        self.keys = _moved(self.keys, kept, size)
        self.values = _moved(self.values, kept, size)
        self.base = base

    def move(self, rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy slots to slots of the same rows, in every layer; all int64[n] on the device."""
        sources, targets = sources - self.base, targets - self.base
        self.keys[:, rows, :, targets] = self.keys[:, rows, :, sources]
        self.values[:, rows, :, targets] = self.values[:, rows, :, sources]

    def fill(self, place: int, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
        """Write keys and values of the layer at `place`, [rows, heads, n, size]: the last n of `length` tokens."""
        taken = slice(length - keys.shape[2] - self.base, length - self.base)
        self.keys[place, :, :, taken] = keys
        self.values[place, :, :, taken] = values


def _moved(block: torch.Tensor, kept: int, size: int) -> torch.Tensor:
    """Return a block of `size` slots that begins with the last `kept` of `block`."""
    moved = block.new_zeros((*block.shape[:3], size, block.shape[4]))
    moved[:, :, :, :kept] = block[:, :, :, block.shape[3] - kept :]
    return moved


class TreeLayer(CacheLayerMixin):
    """One layer of a `TreeCache`, with the interface that models use."""

    is_compileable = False
    is_croppable = False

    def __init__(self, cache: TreeCache, slots: Slots, place: int) -> None:
        super().__init__()
        self.cache, self.slots, self.place = cache, slots, place
        self.is_sliding = slots.pattern.window > 0
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the memory is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of a step, [rows, heads, width, size]; return all that the step may look at."""
        keys, values = self.slots.keys[self.place], self.slots.values[self.place]
        if self.cache.columns is not None:
            keys.index_copy_(2, self.cache.columns, key_states)
            values.index_copy_(2, self.cache.columns, value_states)
            return keys, values
        base, end = self.slots.base, self.cache.end
        stop = end + key_states.shape[2]
        keys[:, :, end - base : stop - base] = key_states
        values[:, :, end - base : stop - base] = value_states
        seen = slice(self.cache.first_seen(self.slots.pattern) - base, stop - base)
        return keys[:, :, seen], values[:, :, seen]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many slots a step of `query_length` tokens looks at, and the first of them."""
        first = self.cache.first_seen(self.slots.pattern)
        return self.cache.end + query_length - first, first

    def get_seq_length(self) -> int:
        """Return the tokens of the longest row."""
        return self.cache.end

    def get_max_length(self) -> int:
        """Return -1: no limit."""
        return -1


class TreeCache(Cache):
    """A key-value cache whose rows have lengths of their own.

    Args:
        cache: the cache of `transformers` to take over, filled by a forward pass over the prompt.
        patterns: what each layer may look back at.
        length: tokens in `cache`.
        fixed: slots of a cache that must not grow (all shapes and addresses stay the same); None: grow as needed.

    Attributes:
        lengths: tokens held of each row, padding on the left included.
        columns: int64[width] on the device, where a step of a fixed cache writes; None: where the longest row ends.
        allocated: slots of memory.

    Raises:
        CacheNotSupportedError: a layer of `cache` is of a kind that cannot hold a tree (quantized, recurrent...).
    """

    def __init__(self, cache: Cache, patterns: Sequence[Pattern], length: int, fixed: int | None = None) -> None:
        groups: dict[Any, list[int]] = {}
        contents = {number: _content(cache.layers[number], length) for number in _held(cache)}
        for number, (keys, values) in contents.items():
            pattern = patterns[number]
            kind = (pattern, keys.shape[1:], values.shape[1:], keys.dtype, keys.device)
            groups.setdefault(kind, []).append(number)
        self.columns: torch.Tensor | None = None
        self._fixed = fixed is not None
        self.groups: list[Slots] = []
        layers: list[Any] = list(cache.layers)
        for (pattern, *_), numbers in groups.items():
            keys, values = contents[numbers[0]]
            base = 0 if fixed is not None else length - keys.shape[2]
            size = fixed if fixed is not None else keys.shape[2] + _GROWTH
            of_keys, of_values = (
                part.new_zeros((len(numbers), *part.shape[:2], size, part.shape[3])) for part in (keys, values)
            )
            slots = Slots(pattern, of_keys, of_values, base)
            self.groups.append(slots)
            for place, number in enumerate(numbers):
                layers[number] = TreeLayer(self, slots, place)
        super().__init__(layers=layers)
        self._take(contents, length)

    def refill(self, cache: Cache, length: int) -> None:
        """Take over another cache of the same layers, rows and types, in the same memory; for a fixed cache.

        Raises:
            CacheNotSupportedError: as on construction.
        """
        assert self._fixed, "memory that grew is not taken again"
        self._take({number: _content(cache.layers[number], length) for number in _held(cache)}, length)

    def _take(self, contents: Mapping[int, tuple[torch.Tensor, torch.Tensor]], length: int) -> None:
        for number, (keys, values) in contents.items():
            layer = self.layers[number]
            layer.slots.fill(layer.place, keys, values, length)
        self.lengths = [length] * self.groups[0].keys.shape[1]
        self._done = [False] * len(self.lengths)

    @property
    def end(self) -> int:
        """The slot after the longest row: where a step begins to write."""
        return max(self.lengths)

    @property
    def allocated(self) -> int:
        """Slots of memory of the largest group."""
        return max(group.keys.shape[3] for group in self.groups)

    @property
    def shortest(self) -> int:
        """The length of the shortest row that is still written to."""
        return min(length for length, done in zip(self.lengths, self._done, strict=True) if not done or all(self._done))

    def first_seen(self, pattern: Pattern) -> int:
        """Return the first slot that some token of the next step may look at under `pattern`."""
        if self._fixed or not pattern.window:
            return 0
        return max(0, self.shortest - pattern.window + 1)

    def finish(self, row: int) -> None:
        """Take note that `row` gets no more tokens, so that nothing need be kept for it to look back at."""
        self._done[row] = True

    def reserve(self, width: int) -> None:
        """Have memory for a step of `width` tokens."""
        end = self.end + width
        for group in self.groups:
            if self._fixed:
                assert end <= group.keys.shape[3], "a fixed cache is full"
            else:
                group.reserve(end, self.shortest, _GROWTH)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep, of the step just written, the tokens at `paths` of each row, in that order; forget the others.

        Args:
            paths: for each row ascending places in the step, 0 being its first token. What lies in order where it
                belongs, as the likeliest path of a single row does, is not copied.
        """
        end = self.end
        moved = [
            (row, end + place, self.lengths[row] + number)
            for row, path in enumerate(paths)
            for number, place in enumerate(path)
            if end + place != self.lengths[row] + number
        ]
        if moved:
            on_host = torch.tensor(moved).T.contiguous()
            for device in {group.keys.device for group in self.groups}:
                rows, sources, targets = on_host.to(device)
                for group in self.groups:
                    if group.keys.device == device:
                        group.move(rows, sources, targets)
        for row, path in enumerate(paths):
            self.lengths[row] += len(path)

    def give_back(self, cache: Cache) -> None:
        """Leave `cache` of `transformers` as if the tokens held here had been decoded one by one.

        Rows shorter than the longest, whose generation ended before the others', get zeros behind their last token.
        """
        for number in _held(cache):
            layer, own = cache.layers[number], self.layers[number]
            slots, length = own.slots, self.end
            keys = slots.keys[own.place][:, :, : length - slots.base].clone()
            values = slots.values[own.place][:, :, : length - slots.base].clone()
            for row, held in enumerate(self.lengths):
                keys[row, :, max(0, held - slots.base) :] = 0
                values[row, :, max(0, held - slots.base) :] = 0
            _fill(layer, keys, values, length)


def require_cache(cache: Cache) -> None:
    """Check that the layers of `cache`, filled or not, are of kinds that a `TreeCache` takes over.

    Raises:
        CacheNotSupportedError: one is not, or they are moved to and from another device.
    """
    if cache.offloading:
        raise CacheNotSupportedError(describe("verification", "the cache", "offloaded", "on the model's device"))
    for number in _held(cache):
        _require_layer(cache.layers[number])


def _held(cache: Cache) -> list[int]:
    """Return which layers hold something; the others look at the keys and values of one of these."""
    return [number for number, layer in enumerate(cache.layers) if type(layer).__name__ != "DummyLayer"]


def _require_layer(layer: Any) -> None:
    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer):
        expected = "attention with a dynamic or static cache, whole or with a sliding window"
        raise CacheNotSupportedError(describe("verification", "a layer of the cache", type(layer).__name__, expected))


def drop_contents(cache: Cache) -> None:
    """Let go of the keys and values of a cache of `transformers` that a `TreeCache` has taken over.

    Only layers that grow; static ones keep their memory, whose address somebody may rely on. `give_back` fills them.
    """
    for layer in cache.layers:
        if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
            layer.keys, layer.values = layer.keys[:, :, :0].clone(), layer.values[:, :, :0].clone()


def _content(layer: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values that a layer of `transformers` holds of `length` tokens, the last of them last."""
    _require_layer(layer)
    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        return layer.keys, layer.values
    held = min(length, layer.max_cache_len)
    return layer.keys[:, :, :held], layer.values[:, :, :held]


def _fill(layer: Any, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
    """Write keys and values, whose last slot is token number `length` - 1, to a layer of `transformers`."""
    if type(layer) is DynamicLayer:
        layer.keys, layer.values = keys, values
    elif type(layer) is DynamicSlidingWindowLayer:
        layer.keys = keys[:, :, -layer.sliding_window + 1 :]
        layer.values = values[:, :, -layer.sliding_window + 1 :]
        layer.cumulative_length = length
    else:
        held = min(length, layer.max_cache_len)
        layer.keys[:, :, :held] = keys[:, :, keys.shape[2] - held :]
        layer.values[:, :, :held] = values[:, :, values.shape[2] - held :]
        if type(layer) is StaticSlidingWindowLayer:
            layer.cumulative_length_int = length
        layer.cumulative_length.fill_(held if type(layer) is StaticSlidingWindowLayer else length)
