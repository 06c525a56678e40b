"""Fixtures of tests of the plug-ins: vLLM's modules in place, and a datastore."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from rest_store.engines import engine_metrics
from rest_store.engines.vllm import plugin
from tests.shared.engine import VOCABULARY, Vllm, cyclic, written_datastore
from tests.shared.strategies import identity

MODEL = cyclic(VOCABULARY)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Vllm]]:
    """Puts vLLM's modules in place, as the plug-in finds them, and installs it."""

    def started(
        head: Callable[[Any], Any] | None = None, installed: bool = True, method: str | None = None
    ) -> Vllm:
        vllm = Vllm(identity(VOCABULARY), head, method)
        for name, module in vllm.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        if installed:
            plugin.install()
        return vllm

    yield started
    gc.collect()
    counters, sessions = engine_metrics._metrics(("engine", "model_name"))
    for metric in (*counters.values(), sessions):
        REGISTRY.unregister(metric)
    engine_metrics._metrics.cache_clear()


@pytest.fixture
def vllm(start: Callable[..., Vllm]) -> Vllm:
    return start()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return written_datastore(tmp_path / "ds", MODEL)
