"""Sessions that fail, hang or return invalid trees never change a generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

import rest_store
import rest_store.generation.generate as entry
from rest_store.bench.baselines import tree_of
from rest_store.datastore.tree import TokenTree
from rest_store.errors import DrafterError, DraftingWarning
from rest_store.generation.draft_sessions import DraftSessions
from tests.shared.members import ScriptedSource
from tests.shared.strategies import refused
from tests.shared.tiny import Scripted, futures_of, prompts, right, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}


class Faulty:
    """A session that fails in one of its calls, from the `after`-th on."""

    def __init__(self, prompt: list[int], where: str, after: int = 0, error: BaseException | None = None) -> None:
        self.where, self.left = where, after
        self.error = error or ConnectionError("the service went away")
        self._do("opening")

    def _do(self, what: str) -> None:
        if what == self.where:
            self.left -= 1
            if self.left < 0:
                raise self.error

    def draft(self, *, max_nodes: int, costs: Any) -> TokenTree:
        self._do("draft")
        return tree_of([[7, 8, 9]])

    def accept(self, tokens: Any, top_k: Any = None) -> None:
        self._do("accept")

    def close(self) -> None:
        self._do("close")


@contextmanager
def warning_of(*fragments: str) -> Iterator[None]:
    """The block issues one warning, with these words in it."""
    with pytest.warns(DraftingWarning) as issued:
        yield
    assert len(issued) == 1
    for fragment in fragments:
        assert fragment in str(issued[0].message)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("where", ["opening", "draft", "accept", "close"])
def test_a_drafter_that_raises_changes_nothing(where: str, after: int, rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED)
    what = "nothing was drafted" if where == "opening" or after == 0 else "went on without"
    with warning_of(what, "ConnectionError: the service went away") if where != "close" else nullcontext():
        output = model.generate(
            **inputs,
            **FIXED,
            custom_generate=entry.generate,
            drafter=lambda prompt: Faulty(prompt, where, 0 if where in ("opening", "close") else after),
            adaptive=False,
            return_dict_in_generate=True,
        )
    assert torch.equal(output.sequences, plain)
    counts = output.statistics.drafts
    if where != "close":
        assert counts.failed == rows, "a session that has failed is not asked again"
        assert "ConnectionError: the service went away" in counts.errors[0]


def test_sources_that_fail_are_counted_and_change_nothing() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)

    with warning_of("nothing was drafted: scripted: ConnectionError: the service went away"):
        output = model.generate(
            **inputs,
            **FIXED,
            custom_generate=entry.generate,
            drafter=[ScriptedSource(ConnectionError("the service went away"))],
            adaptive=False,
            return_dict_in_generate=True,
        )
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.dropped == {("scripted", "error"): output.statistics.drafts.asked}


@pytest.mark.parametrize("session", [None, 3, rest_store.PromptLookup()], ids=repr)
def test_what_is_not_a_session_is_refused(session: Any) -> None:
    closed = []

    class Closing(Faulty):
        def close(self) -> None:
            closed.append(1)

    returned = iter([Closing([1], ""), session])
    refused(
        DrafterError,
        lambda: DraftSessions(lambda prompt: next(returned), [[1], [2]], 10),
        "what the drafter returned is",
    )
    assert closed == [1]


def test_sessions_are_closed_in_order_when_a_generation_ends_or_fails() -> None:
    model = tiny_model("llama")
    inputs = prompts(3)
    futures = futures_of(inputs, model.generate(**inputs, **FIXED))
    closed: list[int] = []

    class Closing(Scripted):
        def __init__(self, prompt: list[int]) -> None:
            super().__init__(prompt, futures, right)
            self.row = list(futures).index(tuple(prompt))

        def close(self) -> None:
            closed.append(self.row)

    model.generate(**inputs, **FIXED, custom_generate=entry.generate, drafter=Closing)
    assert closed == [0, 1, 2]

    def interrupted(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if ids.shape[1] > 20:
            raise KeyboardInterrupt
        return torch.tensor([False])

    with pytest.raises(KeyboardInterrupt):
        model.generate(
            **inputs, **FIXED, custom_generate=entry.generate, drafter=Closing, stopping_criteria=[interrupted]
        )
    assert closed == [0, 1, 2] * 2
