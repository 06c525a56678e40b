"""What the steps of a streamed answer tell of other tenants.

The attack of arXiv 2411.01076: how many tokens each step brings shows where drafts were accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rest_store
from rest_store.drafting.remembering import flush
from tests.shared.strategies import identity
from tests.shared.tiny import VOCABULARY, prompts, tiny_model

TOKENS = 32


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


def ask(
    model: Any, live: rest_store.LiveDatastore, group: str, *, remember: bool = False
) -> list[int]:
    """Ask the same as others; return how many tokens each step of the answer brought."""
    sizes: list[int] = []
    generator = rest_store.Generator(
        model, None, [live], adaptive=False, remember=live if remember else None
    )
    generator.generate(
        prompts(1),
        group=group,
        max_new_tokens=TOKENS,
        do_sample=False,
        on_piece=lambda piece: sizes.append(len(piece.tokens[0])),
    )
    assert flush(live)
    return sizes


def test_steps_show_that_another_asked_the_same_only_after_enough_others(
    model: Any, tmp_path: Path
) -> None:
    nothing = [1] * TOKENS
    for shared_after in (1, 2, 3):
        with rest_store.LiveDatastore.open(
            tmp_path / str(shared_after),
            tokenizer=identity(VOCABULARY),
            shared_after=shared_after,
        ) as live:
            assert ask(model, live, "attacker") == nothing
            for number in range(1, 4):
                tenant = f"tenant {number}"
                before = ask(model, live, "attacker")
                ask(model, live, tenant, remember=True)
                if number < shared_after:
                    assert ask(model, live, "attacker") == before == nothing
                else:
                    assert len(ask(model, live, "attacker")) < TOKENS / 2
                assert len(ask(model, live, tenant)) < TOKENS / 2


def test_an_output_without_a_group_is_of_no_tenant(model: Any, tmp_path: Path) -> None:
    with rest_store.LiveDatastore.open(
        tmp_path / "live", tokenizer=identity(VOCABULARY), shared_after=2
    ) as live:
        ask(model, live, "", remember=True)
        assert ask(model, live, "") == ask(model, live, "attacker") == [1] * TOKENS
