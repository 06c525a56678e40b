"""vLLM writes the same text with and without drafts, whatever happens to a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.engine import (
    IN_VLLM,
    LENGTH,
    SCARCE,
    Request,
    answers,
    counted,
    drafter_of,
    engine,
)

pytestmark = IN_VLLM
GREEDY = {"temperature": 0.0, "max_tokens": 40}


@pytest.fixture(scope="module")
def drafted(
    model: Path, datastore: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """An engine with drafts that are looked up a step ahead, short of memory."""
    settings = {
        "datastores": [str(datastore)],
        "remember": str(tmp_path_factory.mktemp("exact") / "memory"),
        "lag": True,
    }
    with engine(model, settings, blocks=SCARCE) as llm:
        yield llm


def test_texts_are_those_of_plain_vllm(
    drafted: Any, requests: list[Request], texts: list[list[int]]
) -> None:
    """Prompts are read in chunks, rows are preempted, move, and end at the longest length."""
    assert answers(drafted, requests) == texts
    assert len(requests[-1].prompt) + len(texts[-1]) == LENGTH
    assert counted(drafted, "num_preemptions") > 0
    assert counted(drafted, "spec_decode_num_accepted_tokens") > 20
    assert counted(drafted, "spec_decode_num_accepted_tokens") < counted(
        drafted, "spec_decode_num_draft_tokens"
    )


def test_texts_beside_aborted_requests(
    drafted: Any, requests: list[Request], texts: list[list[int]]
) -> None:
    aborted = {0: 5, 4: 1, 5: 30, 8: 2}
    for place, (text, whole) in enumerate(
        zip(answers(drafted, requests, aborted), texts, strict=True)
    ):
        assert text == (whole[: len(text)] if place in aborted else whole)
        assert len(text) < len(whole) or place not in aborted


def test_texts_of_the_same_prompt_at_once(
    drafted: Any, requests: list[Request], texts: list[list[int]]
) -> None:
    """Rows that hold the same for a while cannot be told apart."""
    prompt, settings, _ = requests[0]
    same = [Request(prompt, {**settings, "max_tokens": most}) for most in (60, 20, 60, 5, 60)]
    assert answers(drafted, same) == [
        texts[0][: request.settings["max_tokens"]] for request in same
    ]


def test_structured_output(drafted: Any, plain: Any, requests: list[Request]) -> None:
    from vllm.sampling_params import StructuredOutputsParams

    shapes: list[dict[str, Any]] = [
        {"regex": r"[a-f]{20,40}"},
        {"choice": ["return first + second", "return second"]},
        {"json": {"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]}},
    ]

    def asked() -> list[Request]:  # an engine changes them
        structured: list[dict[str, Any]] = [
            {**GREEDY, "structured_outputs": StructuredOutputsParams(**shape)} for shape in shapes
        ]
        return [
            Request(request.prompt, settings)
            for request, settings in zip(requests[:5], [*structured, GREEDY, GREEDY], strict=True)
        ]

    written = answers(drafted, asked())
    assert written == answers(plain, asked())
    assert plain.get_tokenizer().decode(written[1]).startswith("return ")


FORM = r"\{is_the_first_of_them: (true|false), color: (vermilion|aquamarine)\}"


def formed(requests: list[Request]) -> list[Request]:
    """A request whose text has a form; an engine changes it."""
    from vllm.sampling_params import StructuredOutputsParams

    settings = {"max_tokens": 80, "structured_outputs": StructuredOutputsParams(regex=FORM)}
    return [Request(requests[0].prompt, {**GREEDY, **settings})]


@pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
def test_forced_text_is_drafted(
    model: Path, datastore: Path, requests: list[Request], backend: str
) -> None:
    """There are fewer steps than tokens, with the library that masks the logits.

    This is the last test of the module: the end of an engine ends what all in a process share.
    """
    with engine(model, backend=backend) as llm:
        [form] = answers(llm, formed(requests))
        words = llm.get_tokenizer().decode(form, skip_special_tokens=True)
    assert re.fullmatch(FORM, words)
    with engine(model, {"datastores": [str(datastore)]}, backend=backend) as llm:
        before = counted(llm, "spec_decode_num_accepted_tokens")
        assert answers(llm, formed(requests)) == [form]
        assert counted(llm, "spec_decode_num_accepted_tokens") - before > 0.6 * len(form)
        totals = drafter_of(llm).metrics.totals()
        assert totals["source_accepted_tokens", "grammar"] > 10
        assert {label: n for (name, label), n in totals.items() if name == "errors" and n} == {}
