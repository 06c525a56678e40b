"""Verifiers with captured graphs, kept from one generation of a model to the next.

Capturing takes seconds, and a graph is bound to the memory it was captured with, so both are kept together: the last
few verifiers of each model, with their caches. Not thread-safe.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from rest_store.generation.cache import TreeKVCache
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.prefill import Prompt

_MAX_VERIFIERS = 2  # of a model, each with memory for its keys and values
_PLAIN = frozenset({bool, int, float, str})
_SLOTS_STEP = 256  # slots of a cache are a multiple of this, so that prompts of other lengths can use it

_verifiers: weakref.WeakKeyDictionary[Any, OrderedDict[Hashable, FixedVerifier]] = weakref.WeakKeyDictionary()


def acquire(model: Any, prompt: Prompt, widths: Sequence[int], slots: int) -> FixedVerifier:
    """Return a verifier for what follows `prompt`: a released one that fits, or a new one.

    Args:
        model: the target model.
        prompt: what was run through it.
        widths: the widths of steps.
        slots: of the cache at least.
    """
    slots = -(-slots // _SLOTS_STEP) * _SLOTS_STEP
    key = _key(model, prompt, widths, slots)
    verifier = _verifiers.get(model, OrderedDict()).pop(key, None)
    if verifier is None:
        cache = TreeKVCache(prompt.cache, prompt.patterns, prompt.length, slots)
        verifier = FixedVerifier(
            model, cache, widths, seen=prompt.seen, positions=prompt.positions, extras=prompt.extras
        )
        verifier.key = key
        return verifier
    verifier.cache.refill(prompt.cache, prompt.length)
    verifier.attach(model, seen=prompt.seen, positions=prompt.positions)
    return verifier


def release(model: Any, verifier: FixedVerifier) -> None:
    """Keep a verifier from `acquire` if it has graphs; the oldest of too many is dropped."""
    verifier.detach()
    if verifier.has_graphs:
        kept = _verifiers.setdefault(model, OrderedDict())
        kept[verifier.key] = verifier
        while len(kept) > _MAX_VERIFIERS:
            kept.popitem(last=False)


def _key(model: Any, prompt: Prompt, widths: Sequence[int], slots: int) -> Hashable:
    """Return everything that a graph depends on: shapes, options, addresses of the model's weights, and its modules."""
    weights = tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))
    modules = tuple(map(_settings, model.modules()))
    attention = model.config.get_text_config(decoder=True)._attn_implementation
    shapes = (prompt.logits.shape[0], prompt.logits.dtype, tuple(prompt.positions.shape), slots, tuple(sorted(widths)))
    return (*shapes, *prompt.patterns, attention, repr(sorted(prompt.extras.items())), hash(weights), hash(modules))


def _settings(module: Any) -> Hashable:
    """Return what the forward pass of `module` may read besides tensors, such as the adapter in use."""
    attributes = vars(module)
    settings: list[object] = [id(module), id(attributes.get("forward"))]
    for value in attributes.values():
        kind = type(value)
        if kind in _PLAIN:
            settings.append(value)
        elif kind in (list, tuple):
            settings.append(tuple(part for part in value if type(part) in _PLAIN))
        elif kind is dict:
            settings.append(tuple(part for part in value.values() if type(part) in _PLAIN))
    return tuple(settings)
