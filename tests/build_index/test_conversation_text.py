"""Conversations are stored as the model wrote them, whatever the template does with history."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from build_index import slices, written_answers
from build_index.build_command import summary_text
from build_index.chat_template import ChatTemplate
from build_index.conversation_text import ConversationError, ConversationWriter
from build_index.documents import CorpusCounts, Document
from build_index.readers.conversations import parse_messages
from build_index.tokenization import load_tokenizer
from build_index.written_answers import CALLS, REASONING, TEXTS
from rest_store.datastore.manifest import Manifest
from rest_store.errors import CorpusError
from tests.shared.builds import build_quick, contents, run_build
from tests.shared.models import CHATML, decoded

CONTROLS = re.compile(r"<[a-z]+>")
ARGUMENTS = '{"city": "Paris", "unit": "C"}'
CALL = {
    "id": "abc123456",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
OTHER_CALL = {
    "id": "def123456",
    "type": "function",
    "function": {"name": "get_time", "arguments": "{}"},
}

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
# Templates that show a turn otherwise once another one follows.
NO_THOUGHTS_IN_HISTORY = """
{%- for m in messages %}
    {%- set thought, answer = '', m.content or '' %}
    {%- if m.role == 'assistant' and m.reasoning_content %}
        {%- set thought = m.reasoning_content %}
    {%- elif m.role == 'assistant' and '</think>' in answer %}
        {%- set thought = answer.split('</think>')[0].split('<think>')[-1].strip() %}
        {%- set answer = answer.split('</think>')[-1].lstrip() %}
    {%- endif %}
    {{- '<' + m.role + '>' }}
    {%- if loop.last and m.role == 'assistant' %}{{ '<think>' + thought + '</think>' }}{% endif %}
    {{- answer }}
    {%- for call in m.tool_calls or [] %}{{ '<call>' + call.function.name + call.function.arguments }}{% endfor %}
    {{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
CHANNELS = """
{%- set answered = messages | selectattr('role', 'equalto', 'assistant') | rejectattr('tool_calls') | list %}
{%- for m in messages %}
    {%- if m.role != 'assistant' %}
        {{- '<start>' + m.role + '<message>' + m.content + '<over>' }}
    {%- else %}
        {%- if m.thinking and (loop.last or (m.tool_calls and not answered)) %}
            {{- '<start>assistant<analysis>' + m.thinking + '<over>' }}
        {%- endif %}
        {%- if m.tool_calls %}
            {%- if m.thinking and m.content %}{{ raise_exception('thinking or content, not both') }}{% endif %}
            {%- set call = m.tool_calls[0].function %}
            {{- '<start>assistant<to>' + call.name + call.arguments + '<call>' }}
        {%- else %}
            {{- '<start>assistant<final>' + m.content + ('<return>' if loop.last else '<over>') }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start>assistant' }}{% endif %}"""
ALWAYS_A_HEADER = (
    "{% for m in messages %}<{{ m.role }}>{{ (m.content or '') | trim }}<end>{% endfor"
    " %}<assistant>"
)
OPENED = """
{%- for m in messages %}
    {{- '<' + m.role + '>' + m.content.split('</think>')[-1].strip() + '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant><think>\\n' }}{% endif %}"""
# Templates that want calls and reasoning in a form of theirs.
CALLS_AS_JSON = """
{%- for m in messages %}
    {{- '<' + m.role + '>' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}
        {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}' }}
    {%- endfor %}
    {{- '<end>' }}
{%- endfor %}"""
CALLS_AS_TEXT = """
{%- for m in messages %}
    {%- if m.content is none %}
        {%- for call in m.tool_calls %}{{ '<call>' + call.function.name + '\\n' + call.function.arguments }}{% endfor %}
    {%- else %}
        {{- '<' + m.role + '>' + m.content + '<end>' }}
    {%- endif %}
{%- endfor %}"""
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls|length > 1 %}{{ raise_exception('one call at once')"
    " }}{% endif %}"
)
ONE_CALL += "<{{ m.role }}>{{ m.content or m.tool_calls | tojson }}<end>{% endfor %}"
IDS = """
{%- for m in messages %}
    {{- '<' + m.role + '>' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}
    {%- if m.role == 'tool' %}{{ m.name + m.tool_call_id }}{% endif %}
    {{- '<end>' }}
{%- endfor %}"""
PARTS = """
{%- for m in messages %}
    {{- '<' + m.role + '>' }}
    {%- if m.content is string %}
        {{- m.content }}
    {%- else %}
        {%- for part in m.content %}
            {%- if part.type == 'text' %}{{ part.text }}{% endif %}
            {%- if part.type == 'thinking' %}{{ '<thought>' + part.thinking + '<answer>' }}{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<end>' }}
{%- endfor %}"""


def written(template: str, *turns: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """The text of a conversation of these turns, and the pieces that it lacks."""
    left_out: Counter[str] = Counter()
    writer = ConversationWriter(ChatTemplate(template, {}, "x"), CONTROLS, lambda text: text)
    return (
        writer.written(
            parse_messages(turns, "chats.jsonl:7", "messages", left_out), "chats.jsonl:7", left_out
        ),
        left_out,
    )


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "name": "get_weather", "tool_call_id": "abc123456"}


# --- Answers that history shows otherwise ---------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking", None])
def test_reasoning_of_each_turn_is_stored_where_history_leaves_it_out(field):
    def answer(number: int) -> dict[str, Any]:
        if field is None:
            return assistant(f"<think>\nThought {number}.\n</think>\n\nAnswer {number}.")
        return assistant(f"Answer {number}.", **{field: f"Thought {number}."})

    text, left_out = written(
        NO_THOUGHTS_IN_HISTORY, user("Q1"), answer(1), user("Q2"), answer(2), user("Q3")
    )
    first = "<user>Q1<end><assistant><think>Thought 1.</think>Answer 1.<end>"
    assert (
        text
        == first + "<user>Q2<end><assistant><think>Thought 2.</think>Answer 2.<end><user>Q3<end>"
    )
    assert not left_out


def test_the_last_turn_is_stored_with_its_own_end():
    text, left_out = written(
        CHANNELS, user("Q1"), assistant("Yes."), user("Q2"), assistant("Yes.", thinking="Hm.")
    )
    first = "<start>user<message>Q1<over><start>assistant<final>Yes.<return>"
    second = "<start>user<message>Q2<over><start>assistant<analysis>Hm.<over><start>assistant<final>Yes.<return>"
    assert text == first + second
    assert not left_out


def test_reasoning_that_history_drops_after_the_final_answer_is_stored_once():
    calls = [assistant(None, tool_calls=[CALL], reasoning=f"Call {number}.") for number in range(3)]
    turns = [turn for call in calls for turn in (call, tool("18 degrees"))]
    text, left_out = written(
        CHANNELS, user("Weather?"), *turns, assistant("It is 18 degrees.", reasoning="Done.")
    )
    steps = [
        "<start>assistant<analysis>Call"
        f" {number}.<over><start>assistant<to>get_weather{ARGUMENTS}<call><start>tool<message>18"
        " degrees<over>"
        for number in range(3)
    ]
    end = "<start>assistant<analysis>Done.<over><start>assistant<final>It is 18 degrees.<return>"
    assert text == "<start>user<message>Weather?<over>" + "".join(steps) + end
    assert not left_out


def test_a_header_that_a_template_always_writes_stands_between_no_turns():
    text, _ = written(ALWAYS_A_HEADER, user("Q1"), assistant("A1"), user("Q2"), assistant("A2"))
    assert text == "<user>Q1<end><assistant>A1<end><user>Q2<end><assistant>A2<end><assistant>"


@pytest.mark.parametrize(
    "answer",
    [
        lambda number: assistant(f"<think>\nThought {number}.\n</think>\n\nAnswer {number}."),
        lambda number: assistant(f"Thought {number}.\n</think>\n\nAnswer {number}."),
        lambda number: assistant(f"Answer {number}.", reasoning_content=f"Thought {number}."),
    ],
    ids=["in the content", "without its opening", "in a field"],
)
def test_reasoning_that_the_prompt_opens_and_the_template_drops_is_stored_after_the_prompt(answer):
    text, left_out = written(OPENED, user("Q1"), answer(1), user("Q2"), answer(2))
    first = "<user>Q1<end><assistant><think>\nThought 1.\n</think>\n\nAnswer 1.<end>"
    assert text == first + "<user>Q2<end><assistant><think>\nThought 2.\n</think>\n\nAnswer 2.<end>"
    assert not left_out


def test_one_newline_is_replaced_where_a_dropped_thought_follows():
    template = """
    {%- for m in messages %}
        {{- '<' + m.role + '>\\n' + m.content.split('</think>')[-1] + '<end>\\n' }}
        {%- if loop.last and m.role == 'assistant' %}{{ '\\n' }}{% endif %}
    {%- endfor %}
    {%- if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}"""
    answer = "<think>T</think>A2"
    text, left_out = written(template, user("Q1"), assistant("A1"), user("Q2"), assistant(answer))
    first = "<user>\nQ1<end>\n<assistant>\nA1<end>\n"
    assert text == f"{first}<user>\nQ2<end>\n<assistant>\n{answer}<end>\n\n"
    assert not left_out


def test_an_answer_to_which_history_adds_nothing_is_rendered_as_it_stands():
    turns = [user("Q1"), assistant("A1"), user("Q2"), assistant("A2"), user("Q3")]
    assert written(PLAIN, *turns)[0] == "".join(
        f"<{turn['role']}>{turn['content']}<end>" for turn in turns
    )


def test_reasoning_in_the_content_is_given_apart_where_the_template_writes_its_own():
    template = """
    {%- for m in messages %}
        {{- '<' + m.role + '>' }}
        {%- if m.role == 'assistant' %}{{ '<think>' + (m.reasoning_content or '') + '</think>' }}{% endif %}
        {{- m.content + '<end>' }}
    {%- endfor %}"""
    text, _ = written(template, user("Q"), assistant("<think>\nHm.\n</think>\n\nA."))
    assert text == "<user>Q<end><assistant><think>Hm.</think>A.<end>"


# --- Calls ----------------------------------------------------------------------------------------


def test_arguments_are_an_object_where_json_text_would_be_escaped_twice():
    text, left_out = written(
        CALLS_AS_JSON, user("Weather?"), assistant(None, tool_calls=[CALL, OTHER_CALL])
    )
    calls = (
        f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}{{"name": "get_time", "arguments":'
        " {}}"
    )
    assert text == f"<user>Weather?<end><assistant>{calls}<end>"
    assert not left_out


@pytest.mark.parametrize("arguments", [ARGUMENTS, json.loads(ARGUMENTS)], ids=["text", "object"])
@pytest.mark.parametrize("content", [None, ""], ids=["null", "empty"])
def test_a_template_that_asks_for_null_and_text_gets_these(arguments, content):
    call = {"function": {"name": "get_weather", "arguments": arguments}}
    text, left_out = written(CALLS_AS_TEXT, user("Weather?"), assistant(content, tool_calls=[call]))
    assert text == f"<user>Weather?<end><call>get_weather\n{ARGUMENTS}"
    assert not left_out


def test_names_and_ids_of_calls_reach_the_template():
    text, _ = written(IDS, user("Weather?"), assistant(None, tool_calls=[CALL]), tool("18"))
    call = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
    assert text == f"<user>Weather?<end><assistant>{call}<end><tool>18get_weatherabc123456<end>"


def test_a_call_of_the_older_layout_is_a_call():
    turn = assistant(None, function_call={"name": "get_weather", "arguments": ARGUMENTS})
    assert written(CALLS_AS_JSON, user("Weather?"), turn)[0].count(ARGUMENTS) == 1


def test_the_first_refusal_is_the_one_that_is_shown():
    with pytest.raises(
        ConversationError,
        match=r"^chats.jsonl:7: a conversation \(user, assistant\) is refused by .*once",
    ):
        written(ONE_CALL, user("Weather?"), assistant(None, tool_calls=[CALL, OTHER_CALL]))
    template = (
        "{{ raise_exception('null') if messages[1].content is none else raise_exception('empty') }}"
    )
    with pytest.raises(ConversationError, match=r"refused by the chat template \(null\)"):
        written(template, user("Weather?"), assistant(None, tool_calls=[CALL]))


def test_a_word_for_null_is_not_stored():
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ m.tool_calls }}<end>{%"
        " endfor %}"
    )
    text, _ = written(template, user("None?"), assistant(None, tool_calls=[CALL]))
    assert "None?" in text
    assert ">None" not in text.replace("None?", "")


def test_calls_that_a_template_leaves_out_are_counted_and_their_empty_turns_are_not_stored():
    turns = [
        user("Weather?"),
        assistant(None, tool_calls=[CALL, OTHER_CALL]),
        tool("18"),
        assistant("18 degrees."),
    ]
    for template, end in ((PLAIN, ""), (ALWAYS_A_HEADER, "<assistant>")):
        text, left_out = written(template, *turns)
        assert text == "<user>Weather?<end><tool>18<end><assistant>18 degrees.<end>" + end
        assert left_out == {CALLS: 2}


def test_a_text_beside_calls_that_a_template_leaves_out_is_counted():
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.tool_calls or m.content }}<end>{% endfor %}"
    )
    _, left_out = written(template, user("Weather?"), assistant("I look it up.", tool_calls=[CALL]))
    assert left_out == {TEXTS: 1}


# --- Reasoning ------------------------------------------------------------------------------------


def test_parts_with_reasoning_reach_templates_that_read_parts_and_those_that_read_a_field():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "output_text", "text": "A."},
    ]
    text, left_out = written(PARTS, user("Q"), {"role": "assistant", "content": parts})
    assert text == "<user>Q<end><assistant><thought>Hm.<answer>A.<end>"
    assert not left_out
    text, left_out = written(
        NO_THOUGHTS_IN_HISTORY, user("Q"), {"role": "assistant", "content": parts}
    )
    assert text == "<user>Q<end><assistant><think>Hm.</think>A.<end>"
    assert not left_out


def test_reasoning_that_a_template_leaves_out_is_counted():
    answers = [assistant(f"A{number}", reasoning=f"Thought {number}.") for number in range(3)]
    turns = [turn for answer in answers for turn in (user("Q"), answer)]
    text, left_out = written(PLAIN, *turns)
    assert text == "".join(f"<user>Q<end><assistant>A{number}<end>" for number in range(3))
    assert left_out == {REASONING: 3}


def test_reasoning_that_a_template_refuses_beside_a_call_is_counted():
    turn = assistant("I look it up.", tool_calls=[CALL], reasoning="Hm.")
    text, left_out = written(CHANNELS, user("Weather?"), turn)
    assert ARGUMENTS in text
    assert left_out == {REASONING: 1, TEXTS: 1}


# --- Long conversations ---------------------------------------------------------------------------


def agent(calls: int, **fields: Any) -> list[dict[str, Any]]:
    turns = [user("Go on.")]
    for number in range(calls):
        arguments = json.dumps({"step": number})
        call = {"function": {"name": "run", "arguments": arguments}}
        reasoning = {name: text.format(number) for name, text in fields.items()}
        turns += [assistant(None, tool_calls=[call], **reasoning), tool(f"result {number}")]
    return [*turns, assistant("Done.")]


def counted_renderings(monkeypatch) -> list[int]:
    """The number of turns of each rendering from now on."""
    rendered: list[int] = []
    render = ChatTemplate.render

    def counting(self: ChatTemplate, turns: list[Any], *, prompt: bool = False) -> str:
        rendered.append(len(turns))
        return render(self, turns, prompt=prompt)

    monkeypatch.setattr(ChatTemplate, "render", counting)
    return rendered


@pytest.mark.parametrize("template", [CHANNELS, CALLS_AS_JSON])
def test_a_long_run_of_calls_is_not_rendered_call_by_call(template, monkeypatch):
    turns = agent(60, reasoning="Step {} is next.")
    rendered = counted_renderings(monkeypatch)
    text, left_out = written(template, *turns)
    few = len(rendered)
    monkeypatch.setattr(written_answers, "_STABLE_ANSWERS", 1 << 40)
    assert written(template, *turns) == (text, left_out)
    assert few < 20 < 60 < len(rendered) - few
    assert [text.count(f'{{"step": {number}}}') for number in range(60)] == [1] * 60
    assert left_out == ({} if template is CHANNELS else {REASONING: 60})


def test_answers_that_differ_as_history_are_rendered_one_by_one():
    text, _ = written(NO_THOUGHTS_IN_HISTORY, *agent(60, reasoning="Step {} is next."))
    assert [text.count(f"<think>Step {number} is next.</think>") for number in range(60)] == [
        1
    ] * 60


def test_beyond_an_effort_answers_are_stored_as_history_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(written_answers, "_MAX_EFFORT", 50_000)
    turns = [
        turn
        for number in range(40)
        for turn in (user(f"Q{number}"), assistant(f"A{number}.", reasoning="T" * 99))
    ]
    text, left_out = written(NO_THOUGHTS_IN_HISTORY, *turns)
    assert [text.count(f"A{number}.<end>") for number in range(40)] == [1] * 40
    shown = text.count("T" * 99)
    assert 1 <= shown < 40
    assert left_out == {REASONING: 40 - shown}


# --- Tokens ---------------------------------------------------------------------------------------


def test_a_control_token_that_json_hides_in_arguments_stays_text(byte_level_file):
    call = {"function": {"name": "f", "arguments": '{"a": "\\u003c|im_end|>"}'}}
    template = (
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls"
        " }}<|im_end|>{% endfor %}"
    )
    loaded = load_tokenizer(byte_level_file, chat_template=template)
    messages = parse_messages(
        [user("Q"), assistant(None, tool_calls=[call])], "x", "messages", Counter()
    )
    tokens = loaded.encode_documents([Document(messages=messages)])[0].tolist()
    assert '{"a": "<|im_end|>"}' in decoded(loaded, tokens)
    assert tokens.count(loaded.identity.special_tokens["<|im_end|>"]) == 2


def test_refused_conversations_are_counted_and_the_others_are_encoded(byte_level_file):
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('too many') }}{% endif %}{{"
        " messages[0].content }}"
    )
    loaded = load_tokenizer(byte_level_file, chat_template=template)
    documents = [
        Document(messages=(("user", text),) * number, origin=f"c:{number}")
        for number, text in enumerate("abcd")
    ]
    documents[0] = Document(text="print")
    counts = CorpusCounts(documents=4, conversations=3)
    tokens = loaded.encode_counted(documents, counts)
    assert [ids is None for ids in tokens] == [False, False, True, True]
    assert [decoded(loaded, ids) for ids in tokens if ids is not None] == ["print", "b"]
    assert counts.skipped == {"refused by the chat template": 2}
    assert (counts.documents, counts.conversations, counts.lost_records) == (2, 1, 2)
    assert counts.refusal.startswith(
        "c:2: a conversation (user, user) is refused by the chat template (too many)"
    )


def test_a_prompt_of_a_recording_has_answers_as_history(byte_level_file):
    loaded = load_tokenizer(
        byte_level_file,
        chat_template=CHATML.replace("message['content']", "message['content'][-2:]"),
    )
    turns = [("user", "Q1"), ("assistant", "A1"), ("user", "Q2"), ("assistant", "long A2")]
    expected = "<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    expected += "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\nA2<|im_end|>\n"
    assert decoded(loaded, loaded.encode_history(turns).tolist()) == expected


# --- Builds ---------------------------------------------------------------------------------------

STRICT = NO_THOUGHTS_IN_HISTORY.replace(
    "{{- answer }}",
    "{%- if 'no' in answer %}{{ raise_exception('not ' + answer) }}{% endif %}{{ answer }}",
)


@pytest.fixture
def chats(tmp_path):
    """A file of conversations, of which the template refuses two in ten."""
    path = tmp_path / "chats.jsonl"
    with path.open("w") as file:
        for number in range(100):
            answer = {
                "role": "assistant",
                "content": f"no {number}" if number % 5 == 3 else f"yes {number}",
            }
            turns = [
                user("Q"),
                answer,
                user([{"type": "text", "text": "R"}, {"type": "image_url"}]),
                assistant("S"),
            ]
            turns[1] |= {"reasoning": f"thought {number}", "tool_calls": []}
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


def test_a_build_counts_what_its_template_refuses_and_leaves_out(chats, byte_level_file, tmp_path):
    for template, left_out in (
        (STRICT, {}),
        (STRICT.replace("thought + ", ""), {"reasoning texts": 80}),
    ):
        summary = build_quick(chats, byte_level_file, tmp_path / "ds", chat_template=template)
        assert summary.documents == 80
        assert summary.skipped == {"refused by the chat template": 20}
        assert summary.left_out == {"parts of type 'image_url'": 100, **left_out}
        expected = (
            f"{chats}:4: a conversation (user, assistant, user, assistant) is refused by the chat"
            " template (not no 3)"
        )
        assert summary.refusal.startswith(expected)
        (entry,) = Manifest.read(tmp_path / "ds").corpora
        assert entry["left_out"] == summary.left_out
        assert entry["documents"] == entry["conversations"] == 80
        text = summary_text(summary)
        assert "20 refused by the chat template" in text
        assert f"refused    {expected}" in text
        assert "not stored 100 parts of type 'image_url'" in text


@pytest.mark.parametrize("size", ["small", "large"])
def test_counts_and_bytes_of_a_build_do_not_depend_on_how_it_is_cut(
    chats, byte_level_file, tmp_path, monkeypatch, size
):
    first = build_quick(chats, byte_level_file, tmp_path / "first", chat_template=STRICT)
    monkeypatch.setattr(slices, "SLICE_BYTES", 1000)
    monkeypatch.setattr(slices, "SLICE_CHARACTERS", 100 if size == "small" else 3000)
    second = build_quick(chats, byte_level_file, tmp_path / "second", chat_template=STRICT)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    for name in ("documents", "skipped", "left_out", "refusal"):
        assert getattr(first, name) == getattr(second, name)


def test_a_corpus_of_refused_conversations_says_why(chats, byte_level_file, tmp_path):
    with pytest.raises(
        CorpusError, match=r"100 refused by the chat template; .*chats.jsonl:1: .*\(never\)"
    ):
        build_quick(
            chats, byte_level_file, tmp_path / "ds", chat_template="{{ raise_exception('never') }}"
        )


def test_a_build_of_which_more_than_half_is_refused_ends_with_status_3(
    chats, byte_level_file, tmp_path
):
    template = STRICT.replace(
        "'no' in answer", "'1' in answer or '2' in answer or 'no' in answer or '5' in answer"
    )
    inputs = ("--corpus", chats, "--tokenizer", byte_level_file, "--chat-template", template)
    result = run_build(*inputs, "--out", tmp_path / "ds")
    assert result.returncode == 3
    assert "chats.jsonl: 65% was left out (65 refused by the chat template)" in result.stderr
    assert "is refused by the chat template (not " in result.stdout
