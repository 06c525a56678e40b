"""A few cases of each fuzzer, and what a campaign does with those that fail."""

from __future__ import annotations

import math
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fuzz import campaign
from tests.fuzz.campaign import Campaign, chance_of, fuzzer_of, run_case


class Fuzzer(campaign.Fuzzer):
    """Four kinds of cases, two of which fail."""

    def run(self, chance: random.Random) -> Counter[str]:
        self.case = "a case in words"
        kind = chance.randrange(4)
        if kind == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        assert kind != 1, f"wrong: {chance.random()}"
        return Counter(["answered" if kind == 2 else "NamedError"])


def test_a_campaign_goes_on_after_failures_and_says_how_to_run_them_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    kinds = [chance_of("test_fuzz", 5, number).randrange(4) for number in range(12)]
    assert set(kinds) == set(range(4))
    whole = Campaign(5)
    whole.run("test_fuzz", range(12), math.inf)
    failed = whole.failed["test_fuzz"]
    held = whole.outcomes["test_fuzz"]
    assert whole.cases["test_fuzz"] == 12
    assert failed.total() == kinds.count(0) + kinds.count(1)
    assert held == Counter(answered=kinds.count(2), NamedError=kinds.count(3))
    assert failed["the process crashed or hung"] == kinds.count(0)
    assert "answered" in whole.table()
    said = capfd.readouterr().out
    wrong = next(line for line in said.splitlines() if "wrong" in line)
    assert said.count("a case in words") == 2, "of each kind of failure once"
    again = Campaign(5)
    again.run("test_fuzz", [kinds.index(1)], math.inf)
    said = capfd.readouterr().out
    assert wrong in said, "the same failure"
    assert f"python -m tests.fuzz --only test_fuzz --seed 5 --case {kinds.index(1)}" in said
    assert again.failed["test_fuzz"]


@pytest.mark.parametrize(
    ("name", "seed", "numbers"),
    [
        ("generations", 7, range(8)),
        ("recurrent", 3, range(12)),
        ("structured", 0, range(8)),
        ("messages", 0, (0, 3, 6, 7, 9)),
        ("damage", 2, range(150)),
        ("engine_batches", 1, range(12)),
        ("live_kills", 0, range(3)),
        ("agent_memories", 2, range(3)),
        ("shared_walks", 1, range(2)),
    ],
)
def test_some_cases(name: str, seed: int, numbers: Sequence[int], tmp_path: Path) -> None:
    """A few cases that cost little run in this process."""
    if name == "agent_memories":
        pytest.importorskip("watchfiles", reason="watchfiles of [agents] is not installed")
    with ExitStack() as stack:
        fuzzer = fuzzer_of(name, tmp_path, stack)
        for number in numbers:
            result = run_case(fuzzer, chance_of(name, seed, number))
            assert not result.failure, f"case {number}: {result.detail}"
            assert result.outcomes
