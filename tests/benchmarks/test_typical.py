"""The measurement of typical acceptance, on a tiny model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import bench_typical
import pytest
import torch
from bench_typical import DRAFTING, Texts, distinct, main
from click.testing import CliRunner

from rest_store.bench.markdown_tables import filled
from rest_store.bench.results import read_results
from rest_store.bench.sections import section_of
from rest_store.drafting.sources import RecycledLogits
from rest_store.generation.generate import default_session_factory
from rest_store.generation.typical import TypicalRule
from tests.shared.tiny import write_model


def test_what_a_rule_keeps_is_as_far_from_the_model_as_what_it_leaves_out() -> None:
    scores = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25], [0.9, 0.05, 0.05]]).log()
    texts = Texts(passes=2, seconds=[1.0])
    texts.add([0, 1, 2], scores, [1, 0, 1], TypicalRule(0.1, math.inf))  # kept, drawn, drafted but drawn
    assert (texts.kept, texts.variation) == (1, pytest.approx(0.5))
    figures = texts.figures(Texts([[0, 1, 2]], seconds=[2.0]))
    assert figures["M"] == 1.5
    assert figures["speedup"] == 2
    assert figures["total variation"] == pytest.approx(0.5 / 3, abs=1e-4)
    assert figures["perplexity"] == pytest.approx((0.5 * 0.25 * 0.05) ** (-1 / 3), rel=1e-3)
    assert distinct([[1, 2, 1, 2], [2, 1]], 2) == 2 / 4


def test_exact_sampling_writes_the_plain_texts_and_typical_acceptance_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DRAFTING, "adaptive", False)  # with a model as small as this drafts do not pay
    ways_of_drafting: list[list[object]] = []

    def noting(sources: list[object]) -> Any:
        ways_of_drafting.append(sources)
        return default_session_factory(sources)

    monkeypatch.setattr(bench_typical, "default_session_factory", noting)
    model = write_model(tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    texts = ("for i in i in i in", "add add add") * 2  # each again, so that there is something to draft
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    words = ["--model", str(model), "--prompts", str(prompts), "--temperature", "0.3", "--rule", "0", "0.3"]
    words += ["--rule", "1", "1e9", "--max-new-tokens", "24", "--rounds", "1", "--out", str(tmp_path / "typical.json")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    logits = [source for sources in ways_of_drafting for source in sources if isinstance(source, RecycledLogits)]
    assert len(logits) == len(set(map(id, logits))) > 3, "no way drafts what another one has just written"
    result = read_results(tmp_path)["typical"]
    ways = result.figures["temperatures"]["0.3"]
    everything, nothing = ways["typical, 0, 0.3"], ways["typical, 1, 1e+09"]
    assert ways["exact"]["the plain text"] == nothing["the plain text"] == 1
    assert everything["kept"] > nothing["kept"] == 0
    name = "total variation at steps of exact sampling"
    assert everything["total variation"] > 0
    assert everything[name] > 0
    assert (nothing["total variation"], nothing[name]) == (0, 0)
    assert everything["M"] > ways["exact"]["M"]
    table = section_of(result).exhibits[0]
    assert "0.3, typical, 0, 0.3" in [row[0] for row in table.rows]
    text = filled("<!-- figures: typical -->\n<!-- end of figures -->", {"typical": result})
    assert text.count("\n| 0.3, ") == 4
