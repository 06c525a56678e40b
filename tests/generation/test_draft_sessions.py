"""Sessions and sources that fail never change a generation; what is verified of a draft."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
import torch

import rest_store.generation.generate as entry
from rest_store.bench.baselines import merge_paths
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import draft_all
from rest_store.drafting.draft_policy import DraftPolicy
from rest_store.drafting.merge import subtree
from rest_store.drafting.session_sources import SessionSources
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import DraftingWarning
from rest_store.generation import draft_sessions
from rest_store.generation.cache import TreeKVCache
from rest_store.generation.draft_sessions import EMPTY, likeliest_nodes, shortened
from rest_store.generation.generator import Generator
from rest_store.generation.loop import Generation
from tests.shared.tiny import VOCABULARY, Drafted, drafted, prompts, right, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}


class Faulty:
    """A session that fails in one of its calls, from the `after`-th on."""

    def __init__(
        self, prompt: list[int], where: str, after: int = 0, error: BaseException | None = None
    ) -> None:
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
        return merge_paths([[7, 8, 9]])

    def accept(self, tokens: Any) -> None:
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
def test_a_source_that_raises_changes_nothing(where: str, after: int, rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED)
    after = 0 if where in ("opening", "close") else after
    what = "nothing was drafted" if after == 0 else "went on without"
    with (
        warning_of(what, "ConnectionError: the service went away")
        if where != "close"
        else nullcontext()
    ):
        output = model.generate(
            **inputs,
            **FIXED,
            custom_generate=entry.generate,
            sources=[Drafted(lambda prompt: Faulty(prompt, where, after))],
            adaptive=False,
            return_dict_in_generate=True,
        )
    assert torch.equal(output.sequences, plain)
    counts = output.statistics.drafts
    if where == "accept":
        assert counts.omissions[("drafted", "error")] > 0, (
            "a member that has lost the text is not asked again"
        )
    elif where != "close":
        assert counts.omissions == {("drafted", "error"): counts.requested - rows * after}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("every", [1, 4])
def test_a_tree_that_cannot_be_verified_costs_its_step_alone(every: int, rows: int) -> None:
    model, inputs = tiny_model("llama"), prompts(rows)
    plain = model.generate(**inputs, **FIXED)
    steps = 0

    def script(future: list[int], random: Any, max_nodes: int) -> TokenTree:
        nonlocal steps
        steps += 1
        return (
            merge_paths([[5, VOCABULARY]])
            if steps % every == 0
            else right(future, random, max_nodes)
        )

    what = "nothing was drafted" if every == 1 else "went on without"
    with warning_of(what, "draft: a token outside the model's 0..95"):
        output = drafted(model, inputs, plain, script, **FIXED)
    assert torch.equal(output.sequences, plain)
    counts = output.statistics.drafts
    assert counts.requested == steps, "the sessions go on"
    assert counts.failed == steps // every
    assert (counts.accepted > 0) == (every > 1)


def test_the_wait_for_services_is_that_of_the_latest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have ended do not count."""
    model, inputs = tiny_model("llama"), prompts(3)
    plain = model.generate(**inputs, **FIXED)
    ends = int(plain[0, inputs["input_ids"].shape[1] + 2])  # of the first row, after three tokens
    waits: list[tuple[float, int]] = []
    monkeypatch.setattr(
        SessionSources, "waited", property(lambda _: 1.0, lambda *_: None), raising=False
    )

    def learn(_: Any, __: Any, sessions: Any, ___: int, piece: Any, ____: float) -> None:
        waits.append((sessions.waited, sum(map(bool, piece.tokens))))

    monkeypatch.setattr(Generation, "_learn", learn)
    monkeypatch.setattr(DraftPolicy, "wants_drafts", lambda _, waiting: True)
    options = {"custom_generate": entry.generate, "sources": [PromptLookup()], "eos_token_id": ends}
    model.generate(**inputs, **FIXED, **options)
    assert {rows for _, rows in waits} > {3}
    assert all(waited <= rows for waited, rows in waits)


def test_what_fails_at_the_beginning_or_end_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = tiny_model("llama"), prompts(1)
    attention = model.config._attn_implementation

    def fails(*_: Any) -> None:
        raise MemoryError("no more memory")

    generator = Generator(model, None, [PromptLookup()])
    for method in ("__init__", "give_back"):
        with monkeypatch.context() as patched:
            patched.setattr(TreeKVCache, method, fails)
            generation = generator.stream(inputs, **FIXED)
            with pytest.raises(MemoryError):
                list(generation)
        assert model.config._attn_implementation == attention
        assert generation._generation._sessions is None


def test_references_may_be_read_once() -> None:
    model, inputs = tiny_model("llama"), prompts(2)
    plain = model.generate(**inputs, **FIXED)[:, inputs["input_ids"].shape[1] :].tolist()
    generator = Generator(model, None, [PromptLookup()], adaptive=False)
    outputs = [
        generator.generate(inputs, references=texts, **FIXED) for texts in (plain, iter(plain))
    ]
    assert [output.statistics.forward_passes for output in outputs] == [
        outputs[0].statistics.forward_passes
    ] * 2
    assert outputs[0].statistics.forward_passes < len(plain[0]) / 2


def cut(
    monkeypatch: pytest.MonkeyPatch,
    trees: list[TokenTree],
    depths: list[int],
    costs: npt.NDArray[np.float64] | None = None,
) -> list[TokenTree]:
    """Return the trees of rows whose sessions draft `trees`."""
    drafting = Mock(side_effect=lambda row_sessions, *_, **__: trees[: len(row_sessions)])
    monkeypatch.setattr(draft_sessions, "draft_all", drafting)
    options = Mock()
    options.session_factory.return_value = lambda row, prompt: Mock(statistics=Mock(waited=0.0))
    sessions = draft_sessions.DraftSessions(options, [[1]] * len(trees), 100)
    return sessions.draft(depths, 16, costs)


def test_a_draft_is_cut_to_the_depth_that_can_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TokenTree(
        [1, 2, 3, 4, 5],
        [-1, 0, 1, 0, -1],
        [1] * 5,
        scores=[0.5, 0.25, 0.2, 0.2, 0.1],
        origins=[1, 2, 3, 4, 5],
    )
    assert cut(monkeypatch, [tree], [5]) == [tree]
    [cut_tree] = cut(monkeypatch, [tree], [2])
    assert cut_tree == subtree(tree, np.array([0, 1, 3, 4]))
    assert [len(tree) for tree in cut(monkeypatch, [tree] * 3, [0, 1, 3])] == [0, 2, 5]


def test_rows_of_a_batch_share_the_width_that_they_pay_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step takes the time of the widest row, so other rows use its places, too."""

    def chain(scores: list[float]) -> TokenTree:
        size = len(scores)
        parents = range(-1, size - 1)
        return TokenTree(range(size), parents, [1] * size, scores=scores, origins=[1] * size)

    sure = chain([0.9, 0.8, 0.7, 0.6])
    doubtful = chain([0.3, 0.2, 0.1])
    costs = 1 + 0.35 * np.arange(17)

    def sizes(trees: list[TokenTree]) -> list[int]:
        return [len(tree) for tree in cut(monkeypatch, trees, [20] * len(trees), costs)]

    assert sizes([sure, sure]) == [4, 4]
    assert sizes([sure, doubtful]) == [2, 2], "four nodes of one row would cost both rows"
    assert sizes([sure, sure, sure, doubtful]) == [3, 3, 3, 3], "the places of all are free"
    assert sizes([doubtful, doubtful]) == [0, 0]


def test_likely_tokens_are_learnt_from_passes_without_drafts() -> None:
    """Otherwise recycled logits alone would never have anything to draft."""
    recycled = RecycledLogits()
    statistics = (
        Generator(tiny_model("llama"), None, [recycled], adaptive=False)
        .generate(prompts(1), **FIXED)
        .statistics
    )
    assert statistics.drafts.nodes > 0
    assert len(recycled) > 0


def test_all_rows_are_drafted_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services are then asked for all of them before any is waited for."""
    drafting = Mock(side_effect=draft_all)
    monkeypatch.setattr(draft_sessions, "draft_all", drafting)
    Generator(tiny_model("llama"), None, [PromptLookup()], adaptive=False).generate(
        prompts(3), **FIXED
    )
    assert len(drafting.call_args_list[0].args[0]) == 3


def test_a_tree_is_cut_to_its_likeliest_path_where_a_chain_is_asked_for() -> None:
    tree = TokenTree(
        [5, 6, 7, 8, 9],
        [-1, -1, 1, 1, 0],
        [1] * 5,
        scores=[0.3, 0.6, 0.1, 0.5, 0.2],
        origins=[1] * 5,
    )
    assert likeliest_nodes(tree).tolist() == [1, 3]
    chain = subtree(tree, likeliest_nodes(tree))
    assert (chain.tokens.tolist(), chain.parents.tolist()) == ([6, 8], [-1, 0])
    assert likeliest_nodes(chain).tolist() == [0, 1]
    assert likeliest_nodes(EMPTY).tolist() == []
    assert shortened(chain, 1).tokens.tolist() == [6]
    assert shortened(chain, 2) is chain
    assert len(shortened(chain, 0)) == 0


def test_without_draft_tokens_nothing_is_asked_for() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    output = drafted(model, inputs, plain, right, **FIXED, max_nodes=0)
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.requested == 0
