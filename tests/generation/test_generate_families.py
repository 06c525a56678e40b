"""Every causal language model that the installed transformers has, tiny: the same text, or refused by name."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import rest_store
from tests.generation.architectures import CHAINS, FAMILIES, NOT_MADE, REFUSED, TREES, WRONG, outcome_of

pytestmark = pytest.mark.filterwarnings("ignore")

SOME = {"gpt_neox": TREES, "lfm2": CHAINS, "bloom": REFUSED, "blenderbot": NOT_MADE}


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

    for function, note in ((changed, "1 rows, right drafts"), (failing, "ZeroDivisionError: by zero")):
        monkeypatch.setattr(rest_store, "generate", function)
        assert outcome_of("llama")[2:] == (WRONG, note)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_text_or_refused_by_name(family: str) -> None:
    outcome = outcome_of(family)
    if outcome.kind == NOT_MADE:
        pytest.skip(f"no tiny model that generates: {outcome.note}")
    assert outcome.kind != WRONG, outcome.note
