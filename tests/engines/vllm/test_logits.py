"""What the model finds likely in vLLM is recycled: in its place, for later requests, and for the next engine."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from rest_store.datastore.datastore import Datastore
from tests.engines.vllm.engine import DRAFTER, IN_VLLM, SCARCE, Request, answers, drafter_of, engine
from tests.shared.recycled import recycled_rows

pytestmark = IN_VLLM


def followers(requests: list[Request], texts: list[list[int]]) -> dict[tuple[int, ...], set[int]]:
    """Of each three tokens, those that the model has written after them."""
    found: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for request, output in zip(requests, texts, strict=True):
        text = [*request.prompt, *output]
        for place in range(max(3, len(request.prompt)), len(text)):
            found[tuple(text[place - 3 : place])].add(text[place])
    return found


def test_likely_tokens_are_those_of_their_positions(
    model: Path, datastore: Path, requests: list[Request], texts: list[list[int]], tmp_path: Path
) -> None:
    """The likeliest is what the greedy text goes on with: after chunks of prompts, in rows that moved or came back."""
    file = tmp_path / "logits"
    settings = {"datastores": [str(datastore)], "logits": str(file)}
    with engine(model, DRAFTER, settings, blocks=SCARCE) as llm:
        assert answers(llm, requests) == texts
        batch = drafter_of(llm)._batch
        batch.close()  # as when the process ends
        figures = batch.figures()
        assert figures.errors == {}
        assert 0 < figures.unplaced < 0.3 * figures.calls, (
            "only where rows near the longest length kept vLLM from asking"
        )
    written = followers(requests, texts)
    rows = recycled_rows(file, Datastore.open(datastore).tokenizer)
    known = [(tuple(context), likely) for context, likely in rows if tuple(context) in written]
    assert len(known) > 200
    assert all(likely[0] in written[context] for context, likely in known)
    assert all(len(set(likely)) == 8 for _, likely in known)


def test_the_next_engine_drafts_from_them(
    model: Path, empty: Path, requests: list[Request], texts: list[list[int]], tmp_path: Path
) -> None:
    settings = {"datastores": [str(empty)], "logits": str(tmp_path / "logits")}
    accepted = []
    for _ in range(2):
        with engine(model, DRAFTER, settings) as llm:
            assert answers(llm, requests) == texts
            batch = drafter_of(llm)._batch
            batch.close()  # as when the process ends
            accepted.append(batch.figures().accepted_by["logits"])
    assert accepted[1] > max(10, accepted[0])


def test_other_calls_of_the_model_are_told_apart(
    model: Path, datastore: Path, requests: list[Request], texts: list[list[int]]
) -> None:
    """For log probabilities of prompts, vLLM computes logits a second time in a step."""
    asked = [
        Request(one.prompt, {**one.settings, "prompt_logprobs": 1} if place % 2 else one.settings, one.after)
        for place, one in enumerate(requests)
    ]
    with engine(model, DRAFTER, {"datastores": [str(datastore)]}) as llm:
        assert answers(llm, asked) == texts
        figures = drafter_of(llm)._batch.figures()
        assert figures.errors == {}
        assert figures.unplaced >= len(asked) // 2
