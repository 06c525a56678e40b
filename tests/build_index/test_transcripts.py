"""Transcripts of agents, made by hand after their formats' descriptions, whole and malformed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build_index.documents import Document
from build_index.readers import transcripts
from rest_store.errors import CorpusError, CorpusFormatError
from tests.shared.corpora import compressed, read_corpus, write_files

# --- Samples --------------------------------------------------------------------------------------

QUESTION = "Why does it fail?"
RESULT = "def half(n):\n    return n / 0\n"
THOUGHT = "A division by zero?"
SAID = "I look at the file."
CALL = {"name": "Read", "arguments": {"path": "half.py"}}
LAST = "It divides by zero."


def of_claude(kind: str, content: Any, **fields: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content, **fields.pop("message", {})}
    return {"type": kind, "message": message, "sessionId": "s1", "parentUuid": None, **fields}


def answer_of_claude(block: dict[str, Any], number: int = 1, **fields: Any) -> dict[str, Any]:
    return of_claude("assistant", [block], message={"id": f"msg_{number}"}, **fields)


CLAUDE_CODE = [
    {"type": "summary", "summary": "Half", "leafUuid": "u9"},
    of_claude("user", QUESTION),
    answer_of_claude({"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"}),
    answer_of_claude({"type": "text", "text": SAID}),
    answer_of_claude({"type": "tool_use", "id": "t1", "name": "Read", "input": CALL["arguments"]}),
    of_claude("user", [{"type": "tool_result", "tool_use_id": "t1", "content": RESULT}]),
    answer_of_claude({"type": "text", "text": LAST}, 2),
    {"type": "system", "subtype": "turn_duration", "sessionId": "s1", "uuid": "u8"},
]


def of_codex(payload: dict[str, Any], kind: str = "response_item") -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00.000Z", "type": kind, "payload": payload}


def message_of_codex(role: str, text: str) -> dict[str, Any]:
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


ITEMS = [
    message_of_codex("user", QUESTION),
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Looking"}],
        "content": [{"type": "reasoning_text", "text": THOUGHT}],
        "encrypted_content": "gAAAA",
    },
    message_of_codex("assistant", SAID),
    {
        "type": "function_call",
        "name": "Read",
        "arguments": json.dumps(CALL["arguments"]),
        "call_id": "t1",
    },
    {"type": "function_call_output", "call_id": "t1", "output": RESULT},
    message_of_codex("assistant", LAST),
]
CODEX = [
    of_codex({"id": "s1", "cwd": "/src", "cli_version": "0.65.0"}, "session_meta"),
    of_codex({"model": "gpt-oss-20b"}, "turn_context"),
    *map(of_codex, ITEMS[:1]),
    of_codex({"type": "user_message", "message": QUESTION}, "event_msg"),
    *map(of_codex, ITEMS[1:]),
]
OLD_CODEX = [{"id": "s1", "timestamp": "2025-07-01T00:00:00Z", "instructions": None}, *ITEMS]

OPENAI_CALL = {
    "id": "t1",
    "type": "function",
    "function": {"name": "Read", "arguments": json.dumps(CALL["arguments"])},
}
OPENAI_ANSWER = {
    "role": "assistant",
    "content": SAID,
    "reasoning_content": THOUGHT,
    "tool_calls": [OPENAI_CALL],
}


def of_openhands(number: int, source: str, **fields: Any) -> dict[str, Any]:
    return {"id": number, "timestamp": "2026-01-01T00:00:00", "source": source, **fields}


OPENHANDS = [
    of_openhands(0, "user", action="message", args={"content": QUESTION}),
    of_openhands(1, "environment", observation="agent_state_changed", content=""),
    of_openhands(
        2,
        "agent",
        action="read",
        args={"path": "half.py", "thought": SAID},
        tool_call_metadata={
            "tool_call_id": "t1",
            "model_response": {"id": "r1", "choices": [{"message": OPENAI_ANSWER}]},
        },
    ),
    of_openhands(
        3,
        "agent",
        observation="read",
        content=RESULT,
        extras={},
        tool_call_metadata={"tool_call_id": "t1"},
    ),
    of_openhands(4, "agent", action="message", args={"content": LAST}),
]
OPENHANDS_1 = [
    {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "x"},
    {
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
    },
    {
        "kind": "ActionEvent",
        "source": "agent",
        "thought": [{"type": "text", "text": SAID}],
        "reasoning_content": THOUGHT,
        "tool_name": "Read",
        "tool_call_id": "t1",
        "tool_call": {"id": "t1", "name": "Read", "arguments": json.dumps(CALL["arguments"])},
        "llm_response_id": "r1",
    },
    {
        "kind": "ObservationEvent",
        "source": "environment",
        "tool_call_id": "t1",
        "observation": {"content": [{"type": "text", "text": RESULT}]},
    },
    {
        "kind": "MessageEvent",
        "source": "agent",
        "llm_message": {"role": "assistant", "content": [{"type": "text", "text": LAST}]},
    },
]
SWE_AGENT = {
    "trajectory": [{"action": "open half.py", "observation": RESULT}],
    "history": [
        {"role": "assistant", "content": "A demonstration.", "is_demo": True},
        {"role": "user", "content": QUESTION},
        {**OPENAI_ANSWER, "thought": SAID},
        {"role": "tool", "content": RESULT, "tool_call_ids": ["t1"]},
        {"role": "assistant", "content": LAST},
    ],
}
CHAT_LOG = {
    "request": {
        "model": "m",
        "messages": [
            {"role": "user", "content": QUESTION},
            OPENAI_ANSWER,
            {"role": "tool", "tool_call_id": "t1", "content": RESULT},
        ],
    },
    "response": {"choices": [{"message": {"role": "assistant", "content": LAST}}]},
}
RESPONSES_LOG = {"input": ITEMS[:-1], "output": ITEMS[-1:], "model": "m"}
MESSAGES_LOG = {
    "request": {
        "system": [],
        "messages": [
            {"role": "user", "content": QUESTION},
            {
                "role": "assistant",
                "content": [record["message"]["content"][0] for record in CLAUDE_CODE[2:5]],
            },
            CLAUDE_CODE[5]["message"],
        ],
    },
    "response": {"role": "assistant", "content": [{"type": "text", "text": LAST}]},
}

SAMPLES: dict[str, tuple[str, str, bool]] = {}


def add_sample(name: str, reader: str, content: Any, ending: str = "jsonl") -> None:
    lines = isinstance(content, list) and ending == "jsonl"
    text = "".join(json.dumps(one) + "\n" for one in content) if lines else json.dumps(content)
    SAMPLES[f"{name}.{ending}"] = reader, text, lines


add_sample("claude", transcripts.CLAUDE_CODE, CLAUDE_CODE)
add_sample("rollout", transcripts.CODEX, CODEX)
add_sample("old-rollout", transcripts.CODEX, OLD_CODEX)
add_sample("openhands", transcripts.OPENHANDS, OPENHANDS, "json")
add_sample("openhands-lines", transcripts.OPENHANDS, OPENHANDS)
add_sample("openhands-output", transcripts.OPENHANDS, [{"instance_id": "s1", "history": OPENHANDS}])
add_sample("openhands-1", transcripts.OPENHANDS, OPENHANDS_1)
add_sample("run", "trajectory", SWE_AGENT, "traj")
add_sample("chat-log", transcripts.MESSAGE_LOG, [CHAT_LOG])
add_sample("responses-log", transcripts.MESSAGE_LOG, [RESPONSES_LOG])
add_sample("messages-log", transcripts.MESSAGE_LOG, [MESSAGES_LOG])


def spoken(document: Document) -> list[tuple[str, str]]:
    """Role and content of each message."""
    return [message[:2] for message in document.messages]


def further(document: Document, index: int) -> dict[str, Any]:
    return json.loads(document.messages[index][2])


# --- Each format ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize("name", SAMPLES)
def test_a_transcript_is_the_conversation_with_calls_results_and_reasoning(
    tmp_path, name, compression
):
    reader, text, _ = SAMPLES[name]
    files = {f"{name}{compression}": compressed(text.encode(), compression)}
    path = write_files(tmp_path, files) / f"{name}{compression}"
    corpus, (document,) = read_corpus(path)
    assert corpus.reader == reader
    assert read_corpus(tmp_path)[1] == [document]
    expected = [("user", QUESTION), ("assistant", SAID), ("tool", RESULT), ("assistant", LAST)]
    assert spoken(document) == expected
    answer = further(document, 1)
    assert answer["reasoning_content"] == THOUGHT
    (call,) = answer["tool_calls"]
    function = call["function"]
    arguments = function["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert {"name": function["name"], "arguments": arguments} == CALL
    assert further(document, 2)["tool_call_id"] == call["id"] == "t1"
    assert document.session


@pytest.mark.parametrize("name", SAMPLES)
def test_what_was_written_and_what_was_read_are_kept_apart(tmp_path, name):
    path = write_files(tmp_path, {name: SAMPLES[name][1]}) / name
    whole = read_corpus(path)[1][0]
    written = read_corpus(path, texts="written")[1]
    assert [(one.kind, one.order) for one in written] == [("written", 0), ("written", 1)]
    assert [spoken(one)[-1] for one in written] == [("assistant", SAID), ("assistant", LAST)]
    read = read_corpus(path, texts="read")[1]
    assert [(one.text, one.kind, one.order) for one in read] == [
        (QUESTION, "read", 0),
        (RESULT, "read", 1),
    ]
    assert {one.session for one in [*written, *read]} == {whole.session}


def test_an_answer_comes_with_the_question_and_what_was_read_right_before_it(tmp_path):
    turns = [
        {"role": "system", "content": "You fix bugs."},
        {"role": "user", "content": QUESTION},
    ]
    for number in range(20):
        call = {**OPENAI_CALL, "id": f"t{number}"}
        result = "x" * 9000 + str(number)
        turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
        turns.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    turns.append({"role": "assistant", "content": LAST})
    write_files(tmp_path, {"a.jsonl": json.dumps({"messages": turns}) + "\n"})
    last = read_corpus(tmp_path, texts="written")[1][-1]
    roles = [role for role, *_ in last.messages]
    assert roles[:3] == ["system", "user", "assistant"]
    assert roles[-2:] == ["tool", "assistant"]
    assert len(roles) < 12
    assert last.messages[-2][1].endswith("x19")
    assert max(len(content) for _, content, *_ in last.messages) == 4096
    assert last.order == 20


def test_records_of_agents_that_a_session_started_are_conversations_of_their_own(tmp_path):
    aside = [
        of_claude("user", "Search.", isSidechain=True, agentId="a1"),
        answer_of_claude({"type": "text", "text": "None."}, 7, isSidechain=True, agentId="a1"),
    ]
    records = [*CLAUDE_CODE[:5], *aside, *CLAUDE_CODE[5:]]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    main, other = read_corpus(path)[1]
    assert (main.session, other.session) == ("s1", "s1/a1")
    assert spoken(other) == [("user", "Search."), ("assistant", "None.")]
    assert len(main.messages) == 4


def test_what_a_program_keeps_for_itself_is_passed_over_and_unknown_records_are_named(tmp_path):
    strange = [{"type": "hologram", "sessionId": "s1"}, {"type": "a b\nc", "sessionId": "s1"}]
    redacted = answer_of_claude({"type": "redacted_thinking", "data": "x"}, 2)
    image = of_claude("user", [{"type": "image", "source": {"type": "base64", "data": "iVBOR"}}])
    records = [*CLAUDE_CODE, *strange, redacted, image]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    corpus, documents = read_corpus(path)
    assert len(documents) == 1
    assert corpus.counts.skipped == {
        "a record of unknown type 'hologram'": 1,
        "a record of unknown type '?'": 1,
    }
    assert corpus.counts.lost_records == 0
    expected = {"encrypted reasoning parts": 1, "parts of type 'image'": 1}
    assert corpus.counts.left_out == expected
    assert corpus.provenance()["left_out"] == expected


def test_codex_counts_summaries_of_reasoning_and_items_that_it_does_not_know(tmp_path):
    strange = of_codex({"type": "hologram"})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [*CODEX, strange]))
    counts = read_corpus(path)[0].counts
    assert counts.left_out == {"summaries of reasoning": 1, "encrypted reasoning parts": 1}
    assert counts.skipped == {"an item of unknown type 'hologram'": 1}


def test_commands_of_the_local_shell_and_tools_with_free_input_are_calls(tmp_path):
    shell = {
        "type": "local_shell_call",
        "call_id": "t1",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls", "-l"]},
    }
    patch = {"type": "custom_tool_call", "call_id": "t2", "name": "apply_patch", "input": "*** P"}
    output = {"type": "custom_tool_call_output", "call_id": "t2", "output": {"content": "Done"}}
    records = [CODEX[0], *map(of_codex, [ITEMS[0], shell, patch, output])]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (document,) = read_corpus(path)[1]
    calls = [call["function"] for call in further(document, 1)["tool_calls"]]
    assert calls == [
        {"name": "local_shell", "arguments": {"command": ["ls", "-l"]}},
        {"name": "apply_patch", "arguments": {"input": "*** P"}},
    ]
    assert spoken(document)[-1] == ("tool", "Done")


def test_several_calls_of_one_answer_of_openhands_are_one_turn(tmp_path):
    answer = {**OPENAI_ANSWER, "tool_calls": [OPENAI_CALL, {**OPENAI_CALL, "id": "t2"}]}
    response = {"id": "r1", "choices": [{"message": answer}]}
    events = [OPENHANDS[0]]
    for number, call in enumerate(("t1", "t2")):
        metadata = {"tool_call_id": call, "model_response": response}
        action = {"action": "read", "args": {}, "tool_call_metadata": metadata}
        events.append(of_openhands(2 * number + 1, "agent", **action))
        result = {"observation": "read", "content": call, "tool_call_metadata": metadata}
        events.append(of_openhands(2 * number + 2, "agent", **result))
    path = tmp_path / "a.json"
    path.write_text(json.dumps(events))
    (document,) = read_corpus(path)[1]
    assert [role for role, *_ in document.messages] == ["user", "assistant", "tool", "tool"]
    assert len(further(document, 1)["tool_calls"]) == 2


def test_a_command_of_openhands_without_its_answer_is_written_as_codeact_has_it(tmp_path):
    run = of_openhands(1, "agent", action="run", args={"command": "ls", "thought": SAID})
    strange = of_openhands(2, "agent", action="browse", args={})
    path = tmp_path / "a.json"
    path.write_text(json.dumps([OPENHANDS[0], run, strange]))
    corpus, (document,) = read_corpus(path)
    expected = f"{SAID}\n<execute_bash>\nls\n</execute_bash>"
    assert spoken(document)[-1] == ("assistant", expected)
    assert corpus.counts.skipped == {"an action without its answer of unknown type 'browse'": 1}


AIDER = f"""
# aider chat started at 2026-01-01 10:00:00

> Aider v0.86.1
> Model: x

#### {QUESTION}
#### And where?

{SAID}

```python
# not a header
return n / 2
```

> Applied edit to half.py

# aider chat started at 2026-01-02 11:00:00

#### /help
"""


def test_a_history_of_aider_is_its_sessions(tmp_path):
    path = write_files(tmp_path, {".aider.chat.history.md": AIDER}) / ".aider.chat.history.md"
    corpus, (first, second) = read_corpus(path)
    assert corpus.reader == transcripts.AIDER
    answer = f"{SAID}\n\n```python\n# not a header\nreturn n / 2\n```"
    assert spoken(first) == [("user", f"{QUESTION}\nAnd where?"), ("assistant", answer)]
    assert spoken(second) == [("user", "/help")]
    assert first.session != second.session
    assert first.session.endswith("2026-01-01 10:00:00")
    assert corpus.counts.left_out == {"lines that Aider printed": 3}


def test_answers_of_demonstrations_are_not_the_models(tmp_path):
    write_files(tmp_path, {"run.traj": SAMPLES["run.traj"][1]})
    corpus, _ = read_corpus(tmp_path)
    assert corpus.counts.left_out == {"answers of demonstrations": 1}


# --- Malformed, unfinished and large --------------------------------------------------------------

LINES = [name for name, (reader, _, _) in SAMPLES.items() if reader in ("claude-code", "codex")]


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "record is not JSON"),
        ("[1]", "record is a list, expected an object"),
        ('"\\ud800', "record is not JSON"),
    ],
)
def test_a_malformed_line_is_an_error_or_counted_in_a_directory(tmp_path, name, bad, message):
    lines = SAMPLES[name][1].splitlines(keepends=True)
    lines.insert(3, f"{bad}\n")
    path = write_files(tmp_path, {name: "".join(lines)}) / name
    with pytest.raises(CorpusFormatError, match=rf"{name}:4: {message}"):
        read_corpus(path)
    corpus, (document,) = read_corpus(tmp_path)
    assert len(document.messages) == 4
    assert corpus.counts.skipped == {"malformed record": 1}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_being_written_is_read_later(tmp_path, name):
    text = SAMPLES[name][1]
    path = tmp_path / name
    last = text.rstrip("\n").rindex("\n") + 1
    for end in (last + 1, len(text) - 2):
        path.write_text(text[:end])
        corpus, _ = read_corpus(path)
        assert corpus.counts.skipped == {transcripts.CUT_OFF: 1}
    path.write_text(text)
    assert not read_corpus(path)[0].counts.skipped


def test_a_line_that_is_too_large_is_an_error_or_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(transcripts, "_MAX_LINE", 2000)
    large = of_claude("user", "x" * 5000)
    lines = [json.dumps(record) + "\n" for record in [*CLAUDE_CODE[:2], large, *CLAUDE_CODE[2:]]]
    path = write_files(tmp_path, {"a.jsonl": "".join(lines)}) / "a.jsonl"
    with pytest.raises(CorpusError, match=r"a.jsonl:3"):
        read_corpus(path)
    corpus, (document,) = read_corpus(tmp_path)
    assert len(document.messages) == 4
    assert corpus.counts.skipped == {"too large": 1}


def test_a_long_session_goes_on_as_another_document_at_a_users_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_CONVERSATION", 100)
    records = CLAUDE_CODE * 3
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    documents = read_corpus(path)[1]
    assert [len(document.messages) for document in documents] == [4, 4, 4]
    assert {document.session for document in documents} == {"s1"}
    written = read_corpus(path, texts="written")[1]
    assert [document.order for document in written] == list(range(6))


WRONG: Sequence[Any] = (None, 7, "x", [], {}, [[]], [{}], [None], {"type": 3}, [{"type": "x"}])


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_values_of_other_types_are_counted_or_passed_over(tmp_path, value):
    """No value anywhere in a record ends a build of a directory."""
    for reader, sample in (
        ("claude-code", CLAUDE_CODE),
        ("codex", CODEX),
        ("openhands", OPENHANDS),
        ("openhands-1", OPENHANDS_1),
        ("log", [CHAT_LOG, RESPONSES_LOG, MESSAGES_LOG]),
    ):
        records = [sample[0]]
        for record in sample[1:]:
            records.append(record)
            records += [{**record, name: value} for name in record]
            for name, inner in record.items():
                if isinstance(inner, dict):
                    records += [{**record, name: {**inner, key: value}} for key in inner]
        write_files(
            tmp_path / reader, {"a.jsonl": "".join(json.dumps(one) + "\n" for one in records)}
        )
        for texts in ("all", "written", "read"):
            _, documents = read_corpus(tmp_path / reader, texts=texts)
            assert documents


def test_other_records_with_such_fields_are_read_as_before(tmp_path):
    records = {
        "type": {"type": "user", "text": "a"},
        "payload": {"type": "event", "payload": {}, "text": "a"},
        "log": {"input": "a", "output": "b", "text": "a"},
        "history": {"history": [1, 2], "text": "a"},
        "meta": {"id": 1, "timestamp": 2, "instructions": "c", "text": "a"},
    }
    for name, record in records.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(record) + "\n")
        corpus, documents = read_corpus(path)
        assert (corpus.reader, documents) == ("jsonl", [Document(text="a")])


def test_a_file_of_conversations_can_be_named_by_its_path(tmp_path):
    path = Path(tmp_path) / "a.jsonl"
    path.write_text(json.dumps(CHAT_LOG) + "\n")
    corpus, _ = read_corpus(path, field="request.messages")
    assert corpus.reader == "jsonl"
