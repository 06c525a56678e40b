"""The measurement of short answers, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_short_answers
import pytest

from rest_store.drafting.sources import RecycledLogits
from tests.shared.tiny import write_model


def test_the_second_round_is_not_drafted_from_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both write the same texts."""
    logits: list[list[RecycledLogits]] = []

    def noting(model: Any, prompt: Any, length: int, settings: Any, drafted: dict[str, Any], first: int) -> float:
        logits.append([source for source in drafted["drafter"] if isinstance(source, RecycledLogits)])
        return 1.0

    monkeypatch.setattr(bench_short_answers, "ratio", noting)
    recordings = tmp_path / "recordings.jsonl"
    recordings.write_text(json.dumps({"prompt": [5, 6, 7], "output": [8]}) + "\n")
    options = {
        "model": str(write_model(tmp_path / "model")),
        "datastores": (),
        "recordings": (recordings,),
        "prompts": 2,
    }
    assert bench_short_answers.short_answers(options, 4, 0) == [[1.0, 1.0], [1.0, 1.0]]
    first, again, second, once_more = (one for (one,) in logits)
    assert first is again
    assert second is once_more
    assert first is not second
