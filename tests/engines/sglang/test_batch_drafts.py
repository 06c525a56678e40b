"""Drafts for SGLang's batches, without SGLang: texts stay the same, and arrays equal trees."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.grammar_matchers import GrammarDefinition, Mask
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.sglang import request_grammar
from rest_store.engines.sglang.batch_drafts import BatchDrafts
from rest_store.engines.sglang.verify_arrays import verify_arrays
from rest_store.live.live_datastore import LiveDatastore
from tests.engines.sglang.scheduler import NODES, Scheduler, request
from tests.shared.engine import VOCABULARY, cyclic, drafter_with, plain_output
from tests.shared.strategies import Corpus, write_datastore

MODEL = cyclic(VOCABULARY)
PROMPTS = [[20 * start + 3, 20 * start + 4] for start in range(4)]


@pytest.fixture
def datastore(tmp_path: Path) -> str:
    """A datastore of the model's text, in which wrong continuations outnumber right ones."""
    texts = []
    for prompt in PROMPTS:
        right = [*prompt, *plain_output(MODEL, prompt, 60)]
        texts.append(right)
        for place in range(5, 60, 6):
            wrong = [*right[:place], (right[place] + 7) % VOCABULARY, *right[place + 1 : place + 4]]
            texts += [[9, 9, *wrong], [11, 11, *wrong]]
    (tmp_path / "ds").mkdir()
    return str(write_datastore(tmp_path / "ds", Corpus(VOCABULARY, [texts])))


@pytest.fixture
def drafter(datastore: str, tmp_path: Path) -> Iterator[RequestDrafter]:
    drafter = drafter_with(datastores=[datastore], remember=str(tmp_path / "live"))
    yield drafter
    drafter.close()


def scheduler(drafter: RequestDrafter, shape: str = "tree", *, is_ahead: bool = False) -> Scheduler:
    return Scheduler(BatchDrafts(drafter, NODES, shape), MODEL, VOCABULARY, is_ahead=is_ahead)


def counted(drafter: RequestDrafter, name: str, label: str = "") -> float:
    return drafter.metrics.totals()[name, label]


def errors(drafter: RequestDrafter) -> dict[str, float]:
    return {
        label: total
        for (name, label), total in drafter.metrics.totals().items()
        if name == "errors" and total
    }


def written(one: Any) -> list[int]:
    return list(one.output_ids[: one.finished_len])


def expected(one: Any) -> list[int]:
    """What the model writes, up to its end token."""
    output = plain_output(MODEL, list(one.origin_input_ids), one.sampling_params.max_new_tokens)
    return output[: output.index(2) + 1] if 2 in output else output


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_texts_are_those_without_drafts(
    drafter: RequestDrafter, shape: str, is_ahead: bool
) -> None:
    engine = scheduler(drafter, shape, is_ahead=is_ahead)
    first, second, third, fourth = (
        request(f"r{row}", prompt, 30 + 7 * row) for row, prompt in enumerate(PROMPTS)
    )
    engine.prefill(first, second)
    # The third is read while the others' latest tokens are processed; the second is put off and
    # read again, whole.
    engine.run(
        lambda: engine.prefill(third),
        lambda: engine.retract(second),
        lambda: engine.prefill(second, fourth),
    )
    for one in (first, second, third, fourth):
        assert written(one) == expected(one)
    tokens = sum(len(one.output_ids) for one in (first, second, third, fourth))
    assert engine.steps < tokens / 4 / 1.5  # four at a time, of which many tokens at once
    assert errors(drafter) == {}
    assert not drafter._requests


@pytest.mark.parametrize("is_ahead", [False, True])
def test_drafts_are_from_text_alone_where_there_are_images(
    drafter: RequestDrafter, tmp_path: Path, is_ahead: bool
) -> None:
    """SGLang replaces each image by several ids that no vocabulary has."""
    engine = scheduler(drafter, is_ahead=is_ahead)
    image = [1_000_007] * 20 + [(1 << 62) - 1] * 3
    one = request("one", PROMPTS[0], 30)
    one.multimodal_inputs = object()
    one.origin_input_ids = array("q", [12, 13, *image, 14, 15, *image, *PROMPTS[0]])
    one.origin_input_ids_unpadded = array("q", [12, 13, 250, 14, 15, 250, *PROMPTS[0]])
    engine.prefill(one)
    engine.run(lambda: None, lambda: engine.retract(one), lambda: engine.prefill(one), lambda: None)
    assert written(one) == expected(one)
    assert counted(drafter, "accepted_tokens") > 5
    assert errors(drafter) == {}
    drafter.close()
    with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
        assert live.count([12, 13, 14, 15, *PROMPTS[0], *expected(one)[:9]]) == 1


def test_an_adapter_remembers_by_its_name(drafter: RequestDrafter, tmp_path: Path) -> None:
    """SGLang's id of it is new at each start."""
    drafts = BatchDrafts(drafter, NODES, "tree", {"id 1": "tuned"}.__getitem__)
    engine = Scheduler(drafts, MODEL, VOCABULARY)
    one = request("one", PROMPTS[0], 30)
    one.lora_id = "id 1"
    engine.prefill(one)
    engine.run()
    assert written(one) == expected(one)
    drafter.close()
    with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
        text = expected(one)[:9]
        assert [live.namespace(name).count(text) for name in ("/lora:tuned", "")] == [1, 0]


def test_a_request_switches_drafts_off(drafter: RequestDrafter) -> None:
    """A request beside it has drafts."""
    engine = scheduler(drafter)
    off = request("off", PROMPTS[0], 30, custom_params={"drafts": False})
    on = request("on", PROMPTS[1], 30)
    engine.prefill(off, on)
    engine.run()
    for one in (off, on):
        assert written(one) == expected(one)
    assert set(engine.written["off"]) == {1}
    assert max(engine.written["on"]) > 1


def test_the_last_step_is_accepted(drafter: RequestDrafter) -> None:
    engine = scheduler(drafter)
    one = request("one", PROMPTS[0], 30)
    engine.prefill(one)
    engine.run()
    assert counted(drafter, "accepted_tokens") + engine.steps + 1 == len(one.output_ids)
    assert counted(drafter, "steps") == engine.steps


def test_what_the_model_found_likely_is_drafted_again(drafter: RequestDrafter) -> None:
    engine = scheduler(drafter)
    unknown = [request(rid, [190, 191], 40) for rid in ("first", "second")]
    for one in unknown:
        engine.prefill(one)
        engine.run()
    drafted, accepted = (
        counted(drafter, f"source_{kind}_tokens", "logits") for kind in ("draft", "accepted")
    )
    assert 20 < 0.7 * drafted < accepted


def test_what_was_likely_in_one_step_is_not_taken_for_that_of_the_next(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with a grammar shows no logits that are the model's."""
    engine = scheduler(drafter)
    engine.prefill(request("one", [190, 191], 8))
    engine.step()
    assert engine.drafts._likely_rows("one") is not None
    monkeypatch.setattr(engine.drafts, "take", lambda *_: None)
    engine.step()
    assert engine.drafts._likely_rows("one") is None


def test_a_predicted_output_is_drafted_from(drafter: RequestDrafter, tmp_path: Path) -> None:
    engine = scheduler(drafter)
    prediction = plain_output(MODEL, [200, 201], 40)
    one = request(
        "one", [200, 201], 40, custom_params={"prediction": prediction, "group": "g", "epoch": 3}
    )
    engine.prefill(one)
    engine.run()
    assert written(one) == expected(one)
    assert engine.steps < 12
    assert counted(drafter, "source_accepted_tokens", "prompt") > 25
    drafter.close()
    with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
        assert [(document.group, document.epoch) for document in live.documents()] == [("g", 3)]


PENALIZED = [
    {"repetition_penalty": 1.2},
    {"repetition_penalty": 0.9},
    {"presence_penalty": 0.5},
    {"frequency_penalty": -0.5},
]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("sampling", PENALIZED, ids=lambda sampling: next(iter(sampling)))
def test_a_request_with_penalties_gets_no_draft_nodes(
    drafter: RequestDrafter, tmp_path: Path, sampling: dict[str, Any], is_ahead: bool
) -> None:
    """The request writes one token a step, which SGLang counts rightly.

    The request beside it has drafts, and this one is remembered.
    """
    engine = scheduler(drafter, is_ahead=is_ahead)
    penalized = request("penalized", PROMPTS[0], 30, **sampling)
    other = request("other", PROMPTS[1], 30)
    engine.prefill(penalized, other)
    engine.run()
    assert set(engine.written["penalized"]) == {1}
    assert max(engine.written["other"]) > 2
    assert [written(one) for one in (penalized, other)] == [
        expected(one) for one in (penalized, other)
    ]
    assert errors(drafter) == {}
    drafter.close()
    with LiveDatastore.open(tmp_path / "live", read_only=True) as live:
        assert live.count([*PROMPTS[0], *written(penalized)]) == 1


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_request_that_must_not_end_yet_gets_no_draft_nodes(
    drafter: RequestDrafter, is_ahead: bool
) -> None:
    """SGLang counts its tokens anew after it was put off."""
    engine = scheduler(drafter, is_ahead=is_ahead)
    one = request("one", PROMPTS[0], 60, min_new_tokens=8)
    engine.prefill(one)
    engine.run(*[lambda: None] * 9, lambda: engine.retract(one), lambda: engine.prefill(one))
    first = engine.written["one"][:9]
    again = engine.written["one"][10:]
    for steps in (first, again):  # of a text that was just read, which gave one token
        assert steps[:7] == [1] * 7
        assert max(steps[7:]) > 1
    assert written(one) == expected(one)
    assert errors(drafter) == {}


def test_padding_is_never_accepted(drafter: RequestDrafter) -> None:
    """The model writes the token of the padding all the time."""
    engine = Scheduler(BatchDrafts(drafter, NODES, "tree"), lambda text: 0, VOCABULARY)
    one = request("one", [7, 8], 20, presence_penalty=1.0)
    engine.prefill(one)
    engine.run()
    assert set(engine.written["one"]) == {1}


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize(
    "malformed", ["x", 7, ["a"], {"prediction": 7}, {"group": 3}, {"prediction": [[0.5]]}]
)
def test_extra_arguments_that_are_malformed_are_left_out_alone(
    drafter: RequestDrafter, malformed: Any, is_ahead: bool
) -> None:
    engine = scheduler(drafter, is_ahead=is_ahead)
    faulty = request("faulty", PROMPTS[0], 30, custom_params=malformed)
    other = request("other", PROMPTS[1], 30)
    engine.prefill(faulty, other)
    engine.run()
    assert [written(one) for one in (faulty, other)] == [expected(one) for one in (faulty, other)]
    assert errors(drafter) == {"references": 1}
    assert max(engine.written["faulty"]) > 2
    assert max(engine.written["other"]) > 2


def test_a_fault_of_one_request_costs_that_one_its_drafts(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scheduler(drafter)
    faulty, other = (request(rid, PROMPTS[0], 30) for rid in ("faulty", "other"))
    engine.prefill(faulty, other)
    native = engine.drafts._step

    def step(one: Any, *others: Any) -> Any:
        return 1 / 0 if one is faulty else native(one, *others)

    monkeypatch.setattr(engine.drafts, "_step", step)
    engine.run()
    assert written(faulty) == written(other) == expected(faulty)
    assert set(engine.written["faulty"]) == {1}
    assert max(engine.written["other"]) > 2
    assert errors(drafter) == {"requests": 29}


def test_faults_cost_drafts_and_no_tokens(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = scheduler(drafter, is_ahead=True)
    requests = [
        request(f"r{row}", prompt, 30, custom_params={"prediction": [7]})
        for row, prompt in enumerate(PROMPTS)
    ]
    engine.prefill(*requests)

    def broken(*_: object) -> None:
        raise OSError("no tree today")

    monkeypatch.setattr(engine.drafts._drafter, "draft", broken)
    engine.run(monkeypatch.undo)
    assert [written(one) for one in requests] == [expected(one) for one in requests]
    assert errors(drafter) == {"batch": 1}


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Trees of less than `NODES` nodes, whose siblings differ."""
    size = draw(st.integers(0, NODES - 1))
    parents = [draw(st.integers(-1, node - 1)) for node in range(size)]
    return TokenTree(range(10, 10 + size), parents, [1] * size)


@given(st.lists(trees(), max_size=4))
def test_arrays_hold_the_trees(drafts: list[TokenTree]) -> None:
    tokens, mask = verify_arrays(list(range(len(drafts))), drafts, NODES)
    assert tokens.dtype == np.int64
    assert mask.dtype == np.bool_
    for row, tree in enumerate(drafts):
        of_row = mask.reshape(-1, NODES, NODES)[row]
        parents = [max(np.flatnonzero(of_row[node][:node]), default=-1) for node in range(NODES)]
        size = len(tree)
        assert parents == [-1, *(parent + 1 for parent in tree.parents), *[-1] * (NODES - 1 - size)]
        assert all(
            of_row[node, node] and not of_row[node, node + 1 :].any() for node in range(NODES)
        )
        for node in range(1, 1 + size):
            assert (of_row[node, :node] == of_row[parents[node], :node]).all()
        expected = [row, *tree.tokens, *[0] * (NODES - 1 - size)]
        assert tokens.reshape(-1, NODES)[row].tolist() == expected


class OneText:
    """A matcher of one sequence of tokens."""

    def __init__(self, tokens: list[int], place: int = 0) -> None:
        self.tokens = tokens
        self.place = place

    def accept(self, token: int) -> bool:
        if self.place >= len(self.tokens) or token != self.tokens[self.place]:
            return False
        self.place += 1
        return True

    def fork(self) -> OneText:
        return OneText(self.tokens, self.place)

    def mask(self) -> Mask | None:
        if self.place == len(self.tokens):
            return None
        mask = np.zeros(VOCABULARY // 32 + 1, np.uint32)
        token = self.tokens[self.place]
        mask[token // 32] = 1 << token % 32
        return mask.view(np.int32)


class KnownGrammar:
    """SGLang's object for a request's grammar, of a class that has a maker."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens


def grammar_of_known(known_grammar: KnownGrammar) -> Grammar:
    text = [b"%d" % token for token in range(VOCABULARY)]
    return Grammar(GrammarDefinition(lambda: OneText(known_grammar.tokens), text))


def broken(known_grammar: KnownGrammar) -> Grammar:
    raise ValueError("not this one")


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("maker", [grammar_of_known, broken, None])
def test_the_grammar_of_a_request_is_asked(
    drafter: RequestDrafter, maker: Any, is_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was put off continues in the middle of its output, and so does its grammar."""
    makers = {} if maker is None else {"KnownGrammar": maker}
    monkeypatch.setattr(request_grammar, "_MAKERS", makers)
    engine = scheduler(drafter, is_ahead=is_ahead)
    unknown = [request(rid, [190, 191], 40) for rid in ("first", "second")]
    for one in unknown:
        one.grammar = KnownGrammar(expected(one))
        one.grammar_key = ("known", "text")
    engine.prefill(unknown[0])
    engine.run(lambda: engine.retract(unknown[0]), lambda: engine.prefill(unknown[0]))
    steps = engine.steps
    engine.prefill(unknown[1])
    engine.run()
    assert [written(one) for one in unknown] == [expected(one) for one in unknown]
    assert errors(drafter) == ({"grammar": 1} if maker is broken else {})
    if maker is grammar_of_known:
        assert steps <= 9
        assert counted(drafter, "source_accepted_tokens", "grammar") > 0
    else:
        assert steps > 9
        assert counted(drafter, "source_draft_tokens", "grammar") == 0
