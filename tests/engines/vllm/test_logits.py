"""What the model finds likely in vLLM is recycled: in its place, for later requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rest_store.drafting.batch import accept_all
from rest_store.engines import request_drafter
from tests.engines.vllm.engine import IN_VLLM, SCARCE, Request, answers, counted, drafter_of, engine

pytestmark = IN_VLLM


class Checked:
    """`accept_all`, and how often the likeliest token was the one that was produced."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def __call__(self, sessions: Any, tokens: Any, top_k: Any, *, node_top_k: Any) -> None:
        accept_all(sessions, tokens, top_k, node_top_k=node_top_k)
        for new, rows in zip(tokens, top_k, strict=True):
            for likely, token in zip(
                () if rows is None else rows[:-1], new, strict=rows is not None
            ):
                self.right += likely[0] == token
                self.wrong += likely[0] != token


def errors(totals: dict[tuple[str, str], float]) -> list[str]:
    return [label for name, label in totals if name == "errors"]


def test_likely_tokens_are_those_of_their_positions(
    model: Path,
    datastore: Path,
    requests: list[Request],
    texts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The likeliest token is the next one of the greedy text, after chunks and moved rows, too."""
    checked = Checked()
    monkeypatch.setattr(request_drafter, "accept_all", checked)
    with engine(model, {"datastores": [str(datastore)]}, blocks=SCARCE) as llm:
        assert answers(llm, requests) == texts
        assert counted(llm, "num_preemptions") > 0
        batch = drafter_of(llm)
        assert not errors(batch.metrics.totals())
    assert checked.wrong == 0
    assert checked.right > 300
