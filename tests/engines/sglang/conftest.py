"""Shared by the tests in SGLang: a tiny model, and what is imported on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.sglang.engine import ON_CPU
from tests.shared.tiny import text_tokenizer, write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("model"),
        hidden_size=128,
        vocab_size=len(text_tokenizer()),
        max_position_embeddings=512,
    )


@pytest.fixture
def sglang_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What SGLang imports on a CPU is found."""
    monkeypatch.syspath_prepend(str(ON_CPU))
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
