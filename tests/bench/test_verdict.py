"""The verdict over a folder of results."""

from __future__ import annotations

import pytest

from rest_store.bench.results import Result
from rest_store.bench.verdict import verdict
from tests.shared.results import quality_of, speed_of

NOTHING = "How much faster drafts make a model was not measured: that is `rest-store bench speed`."
NO_QUALITY = "What datastores bring was not measured: that is `rest-store bench quality`."


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], [NOTHING, NO_QUALITY]),
        ([Result("speed", "speed", {}, {"families": 3}), Result("quality", "quality", {}, [])], [NOTHING, NO_QUALITY]),
        (
            [speed_of({"own": 1.9, "all": 1.9}, **{"prompt lookup": 1.4}), quality_of({"code": 0.8})],
            [
                "Generation is 1.90 times as fast with drafts, over 7 prompts: M is 2.50. "
                "Prompt lookup alone gives 1.40.",
                "In replays of 5 recordings M is 3.00 with 16 nodes, of which code brings 0.80.",
            ],
        ),
        (
            [speed_of({"all": 0.93}), quality_of({"a": 0.5, "b": -0.1}, **{"session, prompt lookup alone": 2.0})],
            [
                "Generation is slower, 0.93 times as fast, with drafts, over 7 prompts: M is 2.50.",
                "In replays of 5 recordings M is 3.00 with 16 nodes, of which a brings 0.50 and b brings -0.10; "
                "prompt lookup alone gives 2.00.",
            ],
        ),
        (
            [speed_of({"all": 0.9}), speed_of({"all": 1.5}), quality_of({})],
            [
                "Generation is 0.90 to 1.50 times as fast with drafts in 2 measurements, slower in 1 of them; "
                "M is 2.50.",
                "In replays of 5 recordings M is 3.00 with 16 nodes, without any datastore.",
            ],
        ),
    ],
)
def test_the_verdict_says_what_was_measured_and_what_was_not(results: list[Result], expected: list[str]) -> None:
    assert verdict({str(number): result for number, result in enumerate(results)}) == expected
