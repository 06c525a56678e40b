"""Turns of conversations as data sets and logs have them, read as messages."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Message
from build_index.readers.conversations import parse_messages
from rest_store.errors import CorpusFormatError

CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def messages(*turns: Any) -> tuple[tuple[Message, ...], dict[str, int]]:
    left_out: Counter[str] = Counter()
    return parse_messages(turns, "logs.jsonl:3", "messages", left_out), left_out


def more(turn: dict[str, Any]) -> dict[str, Any]:
    """Fields of a turn besides role and content."""
    ((_, _, *fields),), _ = messages(turn)
    return json.loads(fields[0]) if fields else {}


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text", "summary_text", None])
def test_text_of_parts_is_kept_whatever_they_call_themselves(kind):
    parts = [{"type": kind, "text": "a long "}, {"type": kind, "text": "answer"}]
    if kind is None:
        parts = [{"text": part["text"]} for part in parts]
    assert messages({"role": "user", "content": parts}) == ((("user", "a long answer"),), {})


def test_parts_without_text_are_counted_by_type():
    parts = [
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "x"},
        {"type": "?!", "a": 1},
        {"type": 3},
    ]
    parsed, left_out = messages({"role": "user", "content": parts})
    assert parsed == (("user", "x"),)
    assert left_out == {"parts of type 'image_url'": 1, "parts of type 'unknown'": 2}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_one_name_whichever_the_record_has(field):
    assert more({"role": "assistant", "content": "A", field: "R"}) == {"reasoning_content": "R"}
    assert more({"role": "assistant", "content": "A", field: {"effort": "high"}}) == {}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "R"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "R"}]},
        {"type": "reasoning", "text": "R"},
        {"type": "reasoning", "reasoning": "R"},
    ],
)
def test_parts_of_reasoning_are_reasoning_and_no_text(part):
    turn = {"role": "assistant", "content": [part, {"type": "text", "text": "A"}]}
    assert messages(turn) == ((("assistant", "A", '{"reasoning_content": "R"}'),), {})


def test_calls_ids_and_names_are_kept_and_null_content_is_told_from_an_empty_one():
    assert more({"role": "assistant", "content": None, "tool_calls": CALLS}) == {
        "tool_calls": CALLS,
        "content": None,
    }
    assert more({"role": "assistant", "tool_calls": CALLS}) == {
        "tool_calls": CALLS,
        "content": None,
    }
    assert more({"role": "assistant", "content": "x", "tool_calls": CALLS}) == {"tool_calls": CALLS}
    named = {"tool_call_id": "a", "name": "f"}
    assert more({"role": "tool", "content": "18", **named, "weight": 1}) == named
    call = {"name": "f", "arguments": "{}"}
    calls = [{"type": "function", "function": call}]
    assert more({"role": "assistant", "content": None, "function_call": call}) == {
        "tool_calls": calls,
        "content": None,
    }


def test_null_content_with_nothing_beside_it_is_an_empty_turn():
    assert messages({"role": "tool", "content": None}, {"role": "user", "content": "x"})[0] == (
        ("tool", ""),
        ("user", "x"),
    )


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        (
            {"role": "ai", "text": "a long answer"},
            "one with fields 'role', 'text', expected role and content",
        ),
        ({"from": "gpt"}, "one with fields 'from', expected role and content"),
        ({"content": "x"}, "one with fields 'content', expected role and content"),
        ({"role": "user", "content": 3}, "a number, expected a text, or role and content"),
        ({"role": "user", "content": ["x"]}, "a list, expected a text, or role and content"),
    ],
)
def test_a_turn_in_which_nothing_is_said_is_malformed(turn, problem):
    with pytest.raises(CorpusFormatError) as error:
        messages({"role": "user", "content": "x"}, turn)
    assert str(error.value) == f"logs.jsonl:3: turn 1 of 'messages' is {problem}"


def test_a_malformed_turn_ends_a_named_file_and_is_counted_in_a_directory(tmp_path):
    rows = [
        {"trajectory": [{"role": "ai", "text": "a long answer"}]},
        {"trajectory": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        CorpusFormatError,
        match=r"rows.jsonl:1: turn 0 of 'trajectory' is one with fields 'role', 'text'",
    ):
        list(open_corpus(CorpusSpec(str(path), "trajectory")))
    corpus = open_corpus(CorpusSpec(str(tmp_path), "trajectory"))
    assert [document.messages for document in corpus] == [(("user", "x"), ("assistant", "y"))]
    assert corpus.counts.skipped == {"malformed record": 1}
    assert "turn 0 of 'trajectory'" in corpus.counts.largest["malformed record"][1]


def test_a_conversation_without_a_text_has_no_messages():
    assert (
        messages(
            {"role": "user", "content": " ", "name": "me"}, {"role": "assistant", "content": None}
        )[0]
        == ()
    )
    assert messages({"role": "assistant", "content": "", "tool_calls": CALLS})[0] != ()
