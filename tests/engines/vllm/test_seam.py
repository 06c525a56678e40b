"""vLLM is as the table of the plug-in says, and a configuration that asks for no drafts says so."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from pathlib import Path
from typing import Any

import pytest

from rest_store.engines.vllm.plugin import _warn_once
from rest_store.engines.vllm.seam import (
    CONFIDENCE_PARTS,
    CREATE,
    DEPENDENCIES,
    GRAMMAR_PARTS,
    PROPOSE,
)
from rest_store.errors import ArgumentError
from rest_store.seam import difference, differences
from tests.engines.vllm.engine import IN_VLLM, SPECULATIVE

pytestmark = IN_VLLM


def test_vllm_has_what_the_table_lists() -> None:
    assert differences((CREATE, *DEPENDENCIES, *CONFIDENCE_PARTS, *GRAMMAR_PARTS)) == []


def test_each_speculator_proposes_as_the_table_says() -> None:
    """The speculators are heads and lookups, of which an engine has one."""
    import vllm.v1.worker.gpu.spec_decode as package

    names = [
        module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    modules = [importlib.import_module(name) for name in names]
    speculators = {
        one for module in modules for one in vars(module).values() if hasattr(one, "propose")
    }
    assert len(speculators) > 10
    assert [
        phrase for one in speculators if (phrase := difference(PROPOSE, one.propose)) is not None
    ] == []


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Any:
    """What the plug-in's logger is told; vLLM's loggers pass nothing on."""
    _warn_once.cache_clear()
    handler = Said()
    logger = logging.getLogger("vllm.rest_store")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("v2", "options", "reason"),
    [
        ("1", {"speculative_config": SPECULATIVE}, None),
        ("0", {"speculative_config": SPECULATIVE}, "not in the V1 model runner"),
        ("1", {}, "no speculative configuration"),
    ],
)
def test_settings_that_vllm_does_not_use_get_one_warning(
    model: Path,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    v2: str,
    options: dict[str, Any],
    reason: str | None,
) -> None:
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", v2)
    for settings in ({}, {"rest_store": {"datastores": []}}, {"rest_store": {}}):
        EngineArgs(str(model), additional_config=settings, **options).create_engine_config()
    assert said == ([f"rest-store: {reason}: no drafts, nothing is remembered"] if reason else [])


def test_a_wrong_setting_is_named_before_anything_starts(model: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    settings = {"rest_store": {"datastore": ["code.ds"]}}
    with pytest.raises(ArgumentError, match=r"additional_config\.rest_store: a key is 'datastore'"):
        EngineArgs(
            str(model), additional_config=settings, speculative_config=SPECULATIVE
        ).create_engine_config()
