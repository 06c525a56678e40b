"""The example for vLLM runs as a user runs it, and ends as soon as it has its answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.vllm.engine import IN_VLLM, LENGTH
from tests.shared.pages import ROOT

pytestmark = IN_VLLM

# The script with a small engine that compiles nothing.
_SMALL = """
import functools, runpy, sys, vllm
small = dict(enforce_eager=True, num_gpu_blocks_override=64, block_size=32)
vllm.LLM = functools.partial(vllm.LLM, **small)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_writes_and_remembers(model: Path, empty: Path, tmp_path: Path) -> None:
    """Nothing that it wrote is lost, though it waits for nothing."""
    words = [ROOT / "examples/vllm_drafts.py", model, empty, "--remember", tmp_path / "live.ds"]
    words += ["--max-new-tokens", 12, "--max-model-len", LENGTH]
    ended = subprocess.run(
        [sys.executable, "-c", _SMALL, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "def add(" in ended.stdout
    assert "draft tokens were accepted" in ended.stdout
    with LiveDatastore.open(tmp_path / "live.ds", read_only=True) as live:
        assert live.info().document_count == 2
