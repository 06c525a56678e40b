"""Every tiny causal language model of transformers writes the same text, or is refused by name."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

import rest_store
from rest_store.generation.continuation import EXACT, INEXACT
from tests.generation.architectures import (
    CHAINS,
    FAMILIES,
    NOT_MADE,
    REFUSED,
    RESULTS,
    TREES,
    WRONG,
    Outcome,
    committed,
    outcome_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")

SOME = {
    "gpt_neox": TREES,
    "lfm2": TREES,
    "kimi_linear": CHAINS,
    "bloom": REFUSED,
    "xlstm": NOT_MADE,
}
FILES = [path.stem for path in sorted(RESULTS.glob("architectures*.json"))]


def kinds_in(name: str) -> dict[str, str]:
    rows = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]
    return {row["family"]: row["kind"] for row in rows}


@pytest.mark.parametrize("family", SOME)
def test_some_families(family: str) -> None:
    assert outcome_of(family).kind == SOME[family]


def test_another_text_and_an_error_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    generate = rest_store.generate

    @functools.wraps(generate)  # transformers looks at its parameters
    def changed(*args: Any, **kwargs: Any) -> Any:
        output = generate(*args, **kwargs)
        output.sequences[-1, -1] += 1
        return output

    @functools.wraps(generate)
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("by zero")

    for function, note in (
        (changed, "1 rows, right drafts"),
        (failing, "ZeroDivisionError: by zero"),
    ):
        monkeypatch.setattr(rest_store, "generate", function)
        assert outcome_of("llama")[2:] == (WRONG, note)


def test_results_are_of_the_oldest_the_pinned_and_the_newest_release() -> None:
    assert FILES == ["architectures", "architectures_newest", "architectures_oldest"]


@pytest.mark.parametrize("name", FILES)
def test_most_families_have_the_same_text_and_none_another(name: str) -> None:
    kinds = kinds_in(name)
    assert WRONG not in kinds.values()
    assert sum(kind in (TREES, CHAINS) for kind in kinds.values()) >= 112


@pytest.mark.parametrize("name", FILES)
def test_families_of_known_continuation_have_that_outcome(name: str) -> None:
    kinds = kinds_in(name)
    assert {
        family for family in EXACT & kinds.keys() if kinds[family] not in (TREES, CHAINS)
    } == set()
    assert {family for family in INEXACT & kinds.keys() if kinds[family] != REFUSED} == set()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_text_or_refused_by_name(family: str) -> None:
    outcome = outcome_of(family)
    results = committed()
    assert outcome.kind != WRONG, outcome.note
    if results is not None:
        assert _told(outcome) == _told(results[family]), (
            "run python -m tests.generation.architectures"
        )
    if outcome.kind == NOT_MADE:
        pytest.skip(f"no tiny model that generates: {outcome.note}")


def _told(outcome: Outcome) -> Outcome:
    """An outcome without the message of an error of others, which torch may word."""
    return outcome._replace(note="") if outcome.kind == NOT_MADE else outcome
