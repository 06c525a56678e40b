"""Every causal language model that the installed transformers has,
tiny: the same text, or refused by name.
"""

from __future__ import annotations

import pytest
import transformers

from tests.shared.supported import documented, families, outcome_of, release


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", families())
def test_the_same_text_or_refused_by_name(family: str) -> None:
    outcome = outcome_of(family)
    if release() == transformers.__version__:
        assert outcome == documented()[family], "run python -m tests.shared.supported"
    if outcome.startswith("not tried"):
        pytest.skip(outcome)


def test_families_with_recurrent_state_are_documented() -> None:
    outcomes = documented()
    for family in (
        "lfm2",
        "mamba2",
        "nemotron_h",
        "qwen3_5_text",
        "qwen3_next",
        "granitemoehybrid",
        "zamba2",
    ):
        assert outcomes[family] == "equal, chains"
    assert outcomes["llama"] == "equal, trees"
    assert outcomes["mamba"].startswith(
        "refused: reading several tokens behind its recurrent state"
    )
