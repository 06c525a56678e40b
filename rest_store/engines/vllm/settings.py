"""The settings of drafts inside vLLM, in its `additional_config`,
and where vLLM has no use for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rest_store.engines.settings import EngineSettings

_SECTION = "rest_store"
WHERE = f"additional_config.{_SECTION}"


@dataclass(frozen=True)
class VllmSettings(EngineSettings):
    """The settings of drafts inside vLLM: those of any engine, and one more.

    Attributes:
        lag: whether drafts are looked up a step ahead, while the device works on that step, and
            verified if they fit what it has written; None: where vLLM schedules steps ahead.
    """

    kinds = EngineSettings.kinds | {"lag": EngineSettings.kinds["tls"]}
    lag: bool | None = None


def settings_of(config: Any) -> VllmSettings | None:
    """Return the settings that vLLM's configuration holds; None if it has no section for them.

    Args:
        config: a `VllmConfig`.

    Raises:
        ArgumentError: they are not as `VllmSettings` has them.
    """
    additional = config.additional_config
    if not isinstance(additional, dict) or _SECTION not in additional:
        return None
    return VllmSettings.read(additional[_SECTION], WHERE)


def unused_because(config: Any) -> str | None:
    """Return why a vLLM of this configuration never asks for drafts, in words; None: it does.

    Args:
        config: a `VllmConfig`.
    """
    if config.speculative_config is None:
        return "no speculative configuration"
    if not config.use_v2_model_runner:
        return "not in the V1 model runner"
    return None
