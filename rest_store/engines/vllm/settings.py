"""The settings of drafts inside vLLM, in its `additional_config`, and whether vLLM uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rest_store.engines.engine_settings import EngineSettings
from rest_store.errors import ArgumentError, describe

_SECTION = "rest_store"
WHERE = f"additional_config.{_SECTION}"


@dataclass(frozen=True)
class VllmSettings(EngineSettings):
    """The settings of drafts inside vLLM: those of any engine, and one more.

    Attributes:
        lag: whether drafts are looked up a step ahead, while the device works, and verified if they
            fit the tokens that it has written; None: yes if vLLM schedules steps ahead.
    """

    kinds = EngineSettings.kinds | {"lag": EngineSettings.kinds["tls"]}
    lag: bool | None = None


def settings_of(config: Any) -> VllmSettings | None:
    """Return the settings that vLLM's configuration holds; None if it has no section for them.

    Args:
        config: a `VllmConfig`.

    Raises:
        ArgumentError: a setting is unknown or invalid, or the model is spread over a pipeline. With
            any drafts, vLLM 0.32 fails an assertion there, in the first step that verifies some.
    """
    if not has_settings(config):
        return None
    settings = VllmSettings.read(config.additional_config[_SECTION], WHERE)
    stages = config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise ArgumentError(describe(WHERE, "pipeline_parallel_size", stages, 1))
    return settings


def has_settings(config: Any) -> bool:
    """Return whether vLLM's configuration has a section for the settings.

    Args:
        config: a `VllmConfig`.
    """
    additional = config.additional_config
    return isinstance(additional, dict) and _SECTION in additional


def unused_because(config: Any) -> str | None:
    """Return the reason why vLLM never asks for drafts with this configuration; None: it asks.

    Args:
        config: a `VllmConfig`.
    """
    if config.speculative_config is None:
        return "no speculative configuration"
    if not config.use_v2_model_runner:
        return "not in the V1 model runner"
    return None
