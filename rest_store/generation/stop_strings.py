"""Stop strings, as a stopping criterion: a custom loop gets no tokenizer from `model.generate`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig, StopStringCriteria

from rest_store.generation.prompt_inputs import needed_tokenizer


def with_stop_criterion(model: Any, tokenizer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `model.generate` with a criterion in place of stop strings.

    Args:
        model: a model of transformers.
        tokenizer: of a `Generator`, for calls without one; or None.
        options: of `model.generate`.

    Raises:
        ArgumentError: there are stop strings and no tokenizer.
    """
    strings = _stop_strings(model, options)
    if strings is None:
        return _without(options, "stop_strings", "tokenizer")
    own = options.get("tokenizer")
    own = needed_tokenizer(tokenizer) if own is None else own
    criterion = StopStringCriteria(tokenizer=own, stop_strings=strings)
    others = _without_stop_strings(model, options)
    others["stopping_criteria"] = [*(options.get("stopping_criteria") or []), criterion]
    return others


def _stop_strings(model: Any, options: Mapping[str, Any]) -> Any:
    """Return the stop strings of a call; None: there are none.

    They are an argument, or stand in a `generation_config`: that of the call or of the model.
    """
    configs = (options.get("generation_config"), _model_config(model))
    strings = [options.get("stop_strings"), *map(_stop_strings_in, configs)]
    return next((value for value in strings if value is not None), None)


def _without_stop_strings(model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with which `model.generate` sees no stop strings, and no tokenizer."""
    others = _without(options, "stop_strings", "tokenizer")
    config = options.get("generation_config")
    if _stop_strings_in(_model_config(model)) is not None:
        # None in a configuration of the call would be replaced by the model's, and None as an
        # argument must not stand beside a configuration.
        call_parameters: dict[str, Any] = {}
        if config is not None:
            call_parameters = _parameters_of(others.pop("generation_config"))
        return {**call_parameters, **others, "stop_strings": None}
    if _stop_strings_in(config) is not None:
        others["generation_config"] = copy.deepcopy(config)
        others["generation_config"].stop_strings = None
    return others


def _model_config(model: Any) -> Any:
    return getattr(model, "generation_config", None)


def _without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _stop_strings_in(config: Any) -> Any:
    return getattr(config, "stop_strings", None)


def _parameters_of(config: Any) -> dict[str, Any]:
    """Return the parameters that a generation configuration sets, as those of `model.generate`."""
    known = vars(GenerationConfig())
    return {
        name: value
        for name, value in vars(config).items()
        if value is not None and name in known and not name.startswith("_")
    }
