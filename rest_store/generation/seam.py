"""The seam to transformers: what its cache is called in the installed release, and what it does not pass on.

5.24 renamed the argument of `generate`, `prepare_inputs_for_generation` and `forward`, the field of outputs, and what a
custom loop is given.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from transformers import GenerationMixin

_OF_STATES = "cache_params"  # of models without attention, before
# A caller may use any of them, as long as transformers takes old ones, too.
CACHE_NAMES = ("cache", "past_key_values", _OF_STATES)


def _name_of_the_cache() -> str:
    parameters = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next(name for name in CACHE_NAMES if name in parameters)


CACHE = _name_of_the_cache()


def name_of_cache(model: Any) -> str | None:
    """Return what `model` calls its cache; None: it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in (CACHE, _OF_STATES) if name in parameters), None)


def cache_in(values: Mapping[str, Any]) -> Any:
    """Return the cache among what `generate` prepared, or what a model returned; None: there is none."""
    return next((values[name] for name in (CACHE, _OF_STATES) if values.get(name) is not None), None)


def name_of_cache_in(options: Mapping[str, Any]) -> str | None:
    """Return the name under which options of `model.generate` hold a cache; None: they have none."""
    return next((name for name in CACHE_NAMES if options.get(name) is not None), None)


_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def streamer_of_the_call() -> Any:
    """Return the `streamer` of the call of `model.generate` that called the caller of this as its custom loop.

    transformers gives it the prompt, but does not pass it on, and its reader would wait for the text for ever. So it is
    read where it is, in that call's frame. None: it has none, or that call is not one of transformers.
    """
    frame = sys._getframe(2)
    return frame.f_locals.get("streamer") if frame.f_code is _GENERATE else None
