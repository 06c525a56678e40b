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

CACHE_NAMES = ("cache", "past_key_values")  # a caller may use any of them, as long as transformers takes old ones, too


def _name_of_the_cache() -> str:
    parameters = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next(name for name in CACHE_NAMES if name in parameters)


CACHE = _name_of_the_cache()


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
