"""The script of examples/ for vLLM, in a real engine."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from click.testing import CliRunner

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.vllm.engine import IN_VLLM, LENGTH
from tests.shared.scripts import script

pytestmark = IN_VLLM


def test_it_writes_and_remembers(model: Path, empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = script("examples/vllm_drafts.py")
    small = {"enforce_eager": True, "num_gpu_blocks_override": 64, "block_size": 32}
    monkeypatch.setattr(example, "LLM", functools.partial(example.LLM, **small))
    arguments = [model, empty, "--remember", tmp_path / "live.ds", "--max-new-tokens", 12, "--max-model-len", LENGTH]
    ended = CliRunner().invoke(example.main, list(map(str, arguments)), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert "def add(" in ended.output
    assert "draft tokens were accepted" in ended.output
    with LiveDatastore.open(tmp_path / "live.ds", read_only=True) as live:
        assert live.info().document_count == 2
