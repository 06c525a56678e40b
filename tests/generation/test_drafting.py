"""The drafting side at arm's length."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import rest_store.generation.generate as entry
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.generation.drafting import EMPTY, Drafting, pruned, tree_of, well_formed
from tests.shared.tiny import VOCABULARY, Scripted, futures_of, prompts, right, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}


def packed(tokens: list[int], parents: list[int], depths: list[int]) -> TokenTree:
    """A tree that nobody has checked, as a kernel or the network may give it."""
    columns = (np.array([1] * len(tokens), np.int64), *(np.array(c, np.int32) for c in (tokens, parents, depths)))
    return TokenTree.from_packed(b"".join(column.tobytes() for column in columns), SuffixMatch(0, 0))


MALFORMED: dict[str, Any] = {
    "nothing": None,
    "a list": [1, 2, 3],
    "too many nodes": tree_of([list(range(60))]),
    "a token beyond the vocabulary": tree_of([[VOCABULARY]]),
    "a negative token": packed([-1], [-1], [1]),
    "a parent after its child": packed([5, 6], [1, -1], [2, 1]),
    "its own parent": packed([5], [0], [1]),
    "a parent before the context": packed([5], [-2], [1]),
    "depths of their own": packed([5, 6], [-1, 0], [1, 1]),
    "columns cut off": TokenTree.from_packed(b"\1" * 47, SuffixMatch(0, 0)),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_answers_change_nothing_and_are_counted(name: str) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    futures = futures_of(inputs, plain)
    calls = []

    def script(future: list[int], random: Any, max_nodes: int) -> Any:
        calls.append(1)
        return MALFORMED[name] if len(calls) == 2 else right(future, random, max_nodes)

    output = model.generate(
        **inputs,
        **FIXED,
        custom_generate=entry.generate,
        drafter=lambda prompt: Scripted(prompt, futures, script),
        adaptive=False,
        source_timeout=60.0,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    counts = output.statistics.drafts
    assert (counts.malformed, counts.failed, counts.late) == (1, 0, 0)
    assert len(counts.errors) == 1
    assert counts.accepted > 5, "one bad answer does not end drafting"


class Faulty:
    """A session that fails in one of its calls, from the `after`-th on."""

    def __init__(self, prompt: list[int], where: str, after: int = 0) -> None:
        self.where, self.left = where, after
        self._do("opening")

    def _do(self, what: str) -> None:
        if what == self.where:
            self.left -= 1
            if self.left < 0:
                raise ConnectionError("the service went away")

    def draft(self, *, max_nodes: int, costs: Any) -> TokenTree:
        self._do("draft")
        return tree_of([[7, 8, 9]])

    def accept(self, tokens: Any, top_k: Any = None) -> None:
        self._do("accept")

    def close(self) -> None:
        self._do("close")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("where", ["opening", "draft", "accept", "close"])
def test_a_drafter_that_raises_changes_nothing(where: str, after: int, rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED)
    output = model.generate(
        **inputs,
        **FIXED,
        custom_generate=entry.generate,
        drafter=lambda prompt: Faulty(prompt, where, 0 if where in ("opening", "close") else after),
        adaptive=False,
        source_timeout=60.0,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    counts = output.statistics.drafts
    if where != "close":
        assert counts.failed == rows * (3 if where == "draft" else 1), "asked three times, then no more"
        assert "ConnectionError: the service went away" in counts.errors[0]


def test_a_drafter_that_hangs_changes_nothing() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    released = threading.Event()
    closed = threading.Event()

    class Hanging(Faulty):
        def draft(self, *, max_nodes: int, costs: Any) -> TokenTree:
            released.wait()
            return EMPTY

        def close(self) -> None:
            closed.set()

    output = model.generate(
        **inputs,
        **FIXED,
        custom_generate=entry.generate,
        drafter=lambda prompt: Hanging(prompt, "nowhere"),
        source_timeout=0.01,
        adaptive=False,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    counts = output.statistics.drafts
    assert counts.late == counts.asked == 1, "while it hangs nothing more is asked of it"
    assert not closed.is_set()
    released.set()
    assert closed.wait(60.0), "closed once it answers"


def test_sessions_are_told_what_was_written_in_order_with_the_likeliest_tokens_after() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    futures = futures_of(inputs, plain)
    told: list[tuple[list[int], Any]] = []

    class Listening(Scripted):
        def accept(self, tokens: Any, top_k: Any = None) -> None:
            told.append((list(tokens), top_k))
            super().accept(tokens, top_k)

    done = threading.Event()

    class Closing(Listening):
        def close(self) -> None:
            done.set()

    model.generate(
        **inputs,
        **FIXED,
        custom_generate=entry.generate,
        drafter=lambda prompt: Closing(prompt, futures, right),
        adaptive=False,
        source_timeout=60.0,
    )
    assert done.wait(60.0)
    written = plain[0, 14:].tolist()
    flat = [token for tokens, _ in told for token in tokens]
    assert flat == written[: len(flat)]
    assert len(flat) > 12
    for tokens, top_k in told:
        assert top_k.shape == (len(tokens), 8)
        assert (top_k[-1] == -1).all(), "what follows the last token is not known yet"
        assert top_k[:-1, 0].tolist() == tokens[1:], "greedy search takes the likeliest"


def test_sessions_that_ask_are_told_what_follows_each_node_of_their_tree() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    text = plain[0].tolist()
    futures = futures_of(inputs, plain)
    checked = []

    class Asking(Scripted):
        def draft(self, *, max_nodes: int, costs: Any) -> Any:
            self.context = text[: len(text) - (len(self.future) - 8)]
            self.tree = tree_of([[*self.future[:2], 5, 6, 7], [3, 4]])
            return self.tree

        def accept(self, tokens: Any, top_k: Any = None, *, node_top_k: Any = None) -> None:
            if node_top_k is not None:
                assert node_top_k.shape == (1 + len(self.tree), 8)
                for row in range(1 + len(self.tree)):
                    path = np.flatnonzero(self.tree.mask()[row - 1]) if row else []
                    with torch.no_grad():
                        logits = model(torch.tensor([self.context + self.tree.tokens[path].tolist()])).logits[0, -1]
                    if node_top_k[row, 0] < 0:
                        assert self.tree.depths[row - 1] >= len(self.future) - 8, "only what was cut off is unknown"
                    else:
                        assert node_top_k[row].tolist() == logits.topk(8).indices.tolist()
                        checked.append(row)
            super().accept(tokens, top_k)

    output = model.generate(
        **inputs,
        **FIXED,
        custom_generate=entry.generate,
        drafter=lambda prompt: Asking(prompt, futures, right),
        adaptive=False,
        source_timeout=60.0,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    assert not output.statistics.drafts.errors
    assert len(checked) > 30


def test_well_formed_trees_are_taken() -> None:
    assert well_formed(tree_of([[1, 2], [1, 3], [4]]), 4, 5) is None
    assert well_formed(EMPTY, 4, 5) is None


def test_pruning_keeps_parents_and_order() -> None:
    tree = tree_of([[1, 2, 3], [1, 4], [5, 6, 7]])
    assert pruned(tree, 16, 5)[0] is tree
    shallow, kept = pruned(tree, 16, 2)
    assert shallow == tree_of([[1, 2], [1, 4], [5, 6]])
    assert kept.tolist() == [0, 1, 3, 4, 5]
    assert pruned(tree, 4, 2)[0] == tree_of([[1, 2], [1, 4], [5]])
    assert pruned(tree, 16, 0)[0] == pruned(tree, 16, -1)[0] == EMPTY


def test_trees_that_share_beginnings_share_nodes() -> None:
    tree = tree_of([[1, 2, 3], [1, 4], [1, 2]])
    assert tree.tokens.tolist() == [1, 2, 3, 4]
    assert tree.parents.tolist() == [-1, 0, 1, 0]


def test_without_sessions_there_is_nothing_to_ask() -> None:
    drafting = Drafting([None, None], 10)
    assert not drafting.active
    drafting.ask([0, 1], 8, None)
    assert drafting.trees(0.0) == [EMPTY, EMPTY]
    assert not drafting.busy
    drafting.close()
