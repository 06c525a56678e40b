"""A grammar as a source: nothing that it forbids is drafted, and what it forces is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import accept_all, draft_all
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.grammar_matchers import GrammarDefinition, GrammarMatcher
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ArgumentError, SourceError
from tests.shared.grammars import END, ID, TOKENS, TextsMatcher, grammar_of, spelled
from tests.shared.members import ScriptedSource, scored
from tests.shared.strategies import refused

FORCED = '{"name": "red"}'
COLORS = [f'{{"name": "{color}"}}' for color in ("red", "green")]


def paths(tree: TokenTree) -> list[bytes]:
    """The text of the path to each node."""
    texts: list[bytes] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        texts.append((b"" if parent < 0 else texts[parent]) + TOKENS[token])
    return texts


def require_allowed(tree: TokenTree, grammar: Grammar, written: list[int]) -> None:
    """Each path of the tree may follow the text."""
    root = grammar.begin()
    assert all(root.accept(token) for token in written)
    matchers: list[GrammarMatcher] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        matcher = (root if parent < 0 else matchers[parent]).fork()
        assert matcher.accept(token)
        matchers.append(matcher)


def test_a_forced_text_is_drafted_whole_at_the_first_step() -> None:
    session = DraftSession([grammar_of(FORCED)], prompt=[5, 6])
    tree = session.draft(max_nodes=32)
    tokens = [*spelled(FORCED), END]
    assert tree.longest_path(tokens).size == len(tokens)
    assert tree.scores is not None
    assert tree.origins is not None
    assert set(tree.origins.tolist()) == {1}


def test_each_of_few_choices_is_a_child() -> None:
    session = DraftSession([grammar_of(*COLORS)], prompt=[1])
    session.accept(spelled('{"name": "'))
    tree = session.draft(max_nodes=8)
    assert {ID[b"red"], ID[b"green"]} <= set(tree.tokens[tree.children(-1)].tolist())


def test_candidates_of_other_sources_that_are_forbidden_never_become_nodes() -> None:
    prompt = spelled('{"name": "blue"}') * 3 + spelled('{"name": "green"}')
    grammar = grammar_of(*COLORS)
    plain = DraftSession([PromptLookup()], prompt=prompt)
    session = DraftSession([PromptLookup(), grammar], prompt=prompt)
    written = spelled('{"name": "')
    for one in (plain, session):
        one.accept(written)
    assert any(path.startswith(b"b") for path in paths(plain.draft(16)))
    tree = session.draft(16)
    require_allowed(tree, grammar, written)
    assert tree.scores is not None
    of_first = dict(zip(tree.tokens.tolist(), tree.scores.tolist(), strict=True))
    assert of_first[ID[b"green"]] > of_first[ID[b"red"]], "the prompt has it"


def test_the_tokens_that_earlier_texts_were_spelled_with_are_drafted() -> None:
    grammar = grammar_of(FORCED)
    letters = [ID[bytes([letter])] for letter in FORCED.encode()]
    first = DraftSession([grammar], prompt=[1])
    assert first.draft(32).longest_path(letters).size < len(letters)
    for token in [*letters, END]:
        first.accept([token])
    second = DraftSession([grammar], prompt=[1])
    assert second.draft(32).longest_path(letters).size == len(letters)


def test_values_that_earlier_texts_chose_are_likelier() -> None:
    grammar = grammar_of(*COLORS)
    written = spelled('{"name": "')
    for _ in range(3):
        session = DraftSession([grammar], prompt=[1])
        session.accept(written)
        session.accept([ID[b"green"]])
    session = DraftSession([grammar], prompt=[1])
    session.accept(written)
    tree = session.draft(8)
    assert tree.tokens[0] == ID[b"green"]
    assert tree.scores is not None
    assert tree.scores[0] > 0.8


def test_texts_at_random() -> None:
    chance = random.Random(3)
    for _ in range(60):
        texts = {
            "".join(chance.choices("ab", k=chance.randint(1, 9)))
            for _ in range(chance.randint(1, 5))
        }
        grammar = grammar_of(*texts)
        recycled = RecycledLogits()
        prompt = [ID[bytes([letter])] for letter in "".join(chance.choices("abc", k=30)).encode()]
        session = DraftSession([PromptLookup(), recycled, grammar], prompt=prompt)
        text = [*spelled(chance.choice(sorted(texts))), END]
        written: list[int] = []
        while len(written) < len(text):
            tree = session.draft(chance.randint(0, 24), shape=chance.choice(["tree", "chain"]))
            require_allowed(tree, grammar, written)
            new = text[len(written) : len(written) + chance.randint(1, 3)]
            top_k = np.array([chance.sample(range(len(TOKENS)), 8) for _ in new], np.int32)
            session.accept(new, top_k)
            written += new
        assert len(session.draft(8)) == 0, "the text has ended"
        assert session.statistics.omissions == {}


def test_a_chain_follows_the_grammar() -> None:
    tree = DraftSession([grammar_of(FORCED)], prompt=[1]).draft(32, shape="chain")
    assert tree.parents.tolist() == list(range(-1, len(tree) - 1))
    assert paths(tree)[-1] == FORCED.encode()


def test_costs_cut_the_tree() -> None:
    session = DraftSession([grammar_of(FORCED)], prompt=[1])
    assert len(session.draft(16, [1.0, 5.0, 9.0])) == 0
    assert len(session.draft(16, [1.0] * 17)) > 4


def test_a_text_that_leaves_the_grammar_is_drafted_without_it() -> None:
    prompt = [1, 2, 3, 4, 1, 2]
    session = DraftSession([PromptLookup(), grammar_of(FORCED)], prompt=prompt)
    session.accept([1, 2])
    tree = session.draft(8)
    assert tree.tokens[0] == 3, "as without a grammar"
    assert session.statistics.omissions == {("grammar", "error"): 1}
    assert "the text has left the grammar" in session.statistics.absent["grammar"].reason


class Broken(TextsMatcher):
    def __init__(self, steps: list[int]) -> None:
        super().__init__([FORCED.encode()])
        self.steps = steps

    def fork(self) -> Broken:
        if not self.steps:
            raise RuntimeError("no more")
        self.steps.pop()
        forked = Broken(self.steps)
        forked.written = self.written
        forked.ended = self.ended
        return forked


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_matcher_that_fails_costs_its_drafts_alone(steps: int) -> None:
    grammar = Grammar(GrammarDefinition(lambda: Broken([0] * steps), TOKENS))
    session = DraftSession([PromptLookup(), grammar], prompt=spelled(FORCED) * 2)
    written = 0
    text = spelled(FORCED)
    while written < len(text):
        session.draft(8)
        session.accept(text[written : written + 1])
        written += 1
    assert session.statistics.absent["grammar"].reason.startswith("grammar: RuntimeError: no more")


def test_a_grammar_that_cannot_begin_is_left_out() -> None:
    def begin() -> GrammarMatcher:
        raise ValueError("nothing satisfies it")

    session = DraftSession(
        [PromptLookup(), Grammar(GrammarDefinition(begin, TOKENS))], prompt=[1, 2, 3, 1, 2]
    )
    assert session.draft(4).tokens[0] == 3
    assert session.statistics.omissions == {("grammar", "error"): 1}


def test_the_tree_of_a_member_is_filtered_and_what_is_forced_is_not_averaged() -> None:
    blue = spelled('{"name": "blue')
    source = ScriptedSource(
        scored(blue, list(range(-1, len(blue) - 1)), [0.5] * len(blue), origin=2)
    )
    grammar = grammar_of(FORCED)
    session = DraftSession([grammar, source], prompt=[1])
    tree = session.draft(32)
    require_allowed(tree, grammar, [])
    tokens = [*spelled(FORCED), END]
    path = tree.longest_path(tokens)
    assert path.size == len(tokens)
    assert tree.scores is not None
    alone = DraftSession([grammar_of(FORCED)], prompt=[1]).draft(32)
    assert alone.scores is not None
    (*_, end) = alone.longest_path(tokens)
    assert tree.scores[path[-1]] >= 0.99 * alone.scores[end]


def test_rows_of_a_members_nodes_are_those_that_it_drafted() -> None:
    letters = [ID[b"{"], ID[b'"'], ID[b"x"]]
    source = ScriptedSource(scored(letters, [-1, 0, 1], [0.9, 0.8, 0.7], origin=2))
    session = DraftSession([grammar_of(FORCED), source], prompt=[1])
    tree = session.draft(8)
    rows = np.arange(1 + len(tree), dtype=np.int32)[:, None].repeat(8, axis=1)
    session.accept(letters[:2], node_top_k=rows)
    (of_member,) = [np.array(entry[3]) for entry in source.log if entry[0] == "accept"]
    path = tree.longest_path(letters)
    assert of_member[:, 0].tolist() == [0, 1 + path[0], 1 + path[1], -1]


def test_batches_draft_as_sessions_alone() -> None:
    texts = [COLORS, [FORCED], COLORS]
    prompts = [spelled(COLORS[1]), [1], spelled(FORCED)]

    def sessions() -> list[DraftSession]:
        return [
            DraftSession([PromptLookup(), grammar_of(*some)], prompt=prompt)
            for some, prompt in zip(texts, prompts, strict=True)
        ]

    together = sessions()
    alone = sessions()
    for token in (ID[b"{"], ID[b'"'], ID[b"name"]):
        assert draft_all(together, 12) == [session.draft(12) for session in alone]
        accept_all(together, [[token]] * 3)
        for session in alone:
            session.accept([token])


def test_there_is_one_grammar_at_most() -> None:
    refused(
        SourceError, lambda: DraftSession([grammar_of("a"), grammar_of("b")]), "a second Grammar"
    )


def test_something_else_is_no_grammar() -> None:
    refused(ArgumentError, lambda: Grammar({"type": "object"}), "grammar: compiled is a dict")
