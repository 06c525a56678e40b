"""What the model finds likely in vLLM is recycled: in its place, for later requests, and for the next engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.drafting.batch import accept_all
from rest_store.engines import batch_drafter
from tests.engines.vllm.engine import DRAFTER, IN_VLLM, SCARCE, Request, answers, counted, drafter_of, engine
from tests.shared.recycled import recycled_rows

pytestmark = IN_VLLM


class Checked:
    """`accept_all`, and how often the likeliest token was the one that was produced."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def __call__(self, sessions: Any, tokens: Any, top_k: Any, *, node_top_k: Any) -> None:
        accept_all(sessions, tokens, top_k, node_top_k=node_top_k)
        for new, rows, node_rows in zip(tokens, top_k, node_top_k, strict=True):
            if rows is not None:
                self._compare(rows[:-1], new[1 - len(rows) :])  # a row is of what comes after its token
            if node_rows is not None:
                self._compare(node_rows, new)

    def _compare(self, rows: Any, new: Any) -> None:
        for likely, token in zip(rows, new, strict=False):
            self.right += likely[0] == token
            self.wrong += likely[0] not in (token, -1)


def errors(totals: dict[tuple[str, str], float]) -> list[str]:
    return [label for name, label in totals if name == "errors"]


def test_likely_tokens_are_those_of_their_positions(
    model: Path,
    datastore: Path,
    requests: list[Request],
    texts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The likeliest is what the greedy text goes on with: after chunks of prompts, in rows that moved or came back."""
    checked, file = Checked(), tmp_path / "logits"
    monkeypatch.setattr(batch_drafter, "accept_all", checked)
    settings = {"datastores": [str(datastore)], "logits": str(file)}
    with engine(model, DRAFTER, settings, blocks=SCARCE) as llm:
        assert answers(llm, requests) == texts
        assert counted(llm, "num_preemptions") > 0
        batch = drafter_of(llm)._batch
        batch.close()  # as when the process ends
        totals = batch.metrics.totals()
        assert not errors(totals)
        unplaced = totals["unplaced_logits", ""]
        assert 0 < unplaced < 0.3 * totals["steps", ""], "only where rows near the longest length kept vLLM from asking"
    assert checked.wrong == 0
    assert checked.right > 300
    rows = recycled_rows(file, Datastore.open(datastore).tokenizer)
    assert len(rows) > checked.right
    assert all(len(set(likely)) == 8 for _, likely in rows)
