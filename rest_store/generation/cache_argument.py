"""The name under which models of the installed transformers take their cache, which differs between releases."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from transformers.generation.utils import GenerateDecoderOnlyOutput

# transformers 5.24 has the first; earlier releases the second, and for models with recurrent states alone the third.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")

_FIELDS = {field.name for field in dataclasses.fields(GenerateDecoderOnlyOutput)}
OUTPUT_NAME = next(name for name in CACHE_NAMES if name in _FIELDS)  # of the cache in what `generate` returns


def cache_name(model: Any) -> str | None:
    """Return what `model` calls its cache; None: it takes none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES if name in parameters), None)


def given_cache(arguments: Any) -> Any:
    """Return the cache among arguments of `generate`, whatever it is called; None: there is none."""
    return next((arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None), None)
