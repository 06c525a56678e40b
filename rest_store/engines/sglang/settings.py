"""The settings of drafts inside SGLang, from the environment: it has no arguments for plug-ins."""

from __future__ import annotations

import json
import os

from rest_store.engines.engine_settings import EngineSettings
from rest_store.errors import ArgumentError, describe

VARIABLE = "REST_STORE_SGLANG"


def read_settings() -> EngineSettings:
    """Return the settings that the environment holds as JSON.

    Raises:
        ArgumentError: the settings are absent, unknown or invalid.
    """
    text = os.environ.get(VARIABLE)
    try:
        return EngineSettings.read(None if text is None else json.loads(text), VARIABLE)
    except json.JSONDecodeError as error:
        raise ArgumentError(describe(VARIABLE, "value", f"no JSON: {error}", "an object")) from None
