"""The script that measures an engine, small: each method in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.engines.vllm.engine import IN_VLLM
from tests.shared.pages import ROOT

pytestmark = IN_VLLM
OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 160, "max_num_seqs": 4}


def test_methods_are_measured_by_rows(model: Path, datastore: Path, tmp_path: Path) -> None:
    """n-gram lookups run on a CPU with the older model runner or the interpreter of kernels."""
    prompts = tmp_path / "prompts.jsonl"
    texts = ["the old house", "a new river", "one and two", "a tree", "no more", "and so on"]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    out = tmp_path / "engines.json"
    command = [sys.executable, "benchmarks/bench_engines.py", "--model", str(model)]
    command += ["--datastore", str(datastore), "--prompts", str(prompts), "--out", str(out)]
    command += ["--rows", "1", "--rows", "2", "--max-new-tokens", "24", "--draft-tokens", "5"]
    for way in ("none", "suffix", "ours"):
        command += ["--speculation", way]
    command += ["--minutes", "60"]
    command += ["--engine-options", json.dumps(OPTIONS)]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{ROOT}"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(out.read_text())["results"]
    assert (results["engine"], results["prompts"], results["repeated"]) == ("vllm", 4, 0)
    rows = results["rows"]
    cells = [(row["method"], row["again"], row["rows"]) for row in rows if "fault" not in row]
    assert cells == [
        *(("none", False, 1), ("none", False, 2)),
        *(("ours", False, 1), ("ours", False, 2)),
        *(("none", True, 1), ("none", True, 2)),
    ]
    [refused] = [row for row in rows if "fault" in row]
    assert refused["method"] == "suffix", "it needs a package that is not installed"
    for row in rows:
        if row is refused:
            continue
        assert row["tokens"] == 24 * row["rows"]
        assert row["same_texts"] == 1
        assert row["tokens_per_second"] > 0
        assert (row["M"] is None) == (row["method"] == "none")
