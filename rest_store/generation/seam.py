"""The seam to transformers: what its cache is called in the installed release.

5.24 renamed the argument of `generate`, `prepare_inputs_for_generation` and `forward`, the field of outputs, and what a
custom loop is given.
"""

from __future__ import annotations

import inspect
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
