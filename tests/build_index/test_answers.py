"""An answer becomes a document as its model wrote it, after the end of its prompt."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from build_index.chat_template import ChatTemplate
from build_index.conversation_text import ConversationWriter
from build_index.documents import WRITTEN, CorpusCounts, Document
from build_index.readers.conversations import parse_messages
from build_index.target_tokenizer import PROMPT_TOKENS, TargetTokenizer
from build_index.texts import select_texts
from build_index.written_answers import REASONING
from rest_store.drafting import output_document
from tests.build_index.test_conversation_text import (
    ALWAYS_A_HEADER,
    CALL,
    CALLS_AS_JSON,
    CHANNELS,
    CONTROLS,
    NO_THOUGHTS_IN_HISTORY,
    OPENED,
    PLAIN,
)
from tests.shared.models import CHATML, byte_level_bpe, decoded

USER = {"role": "user", "content": "Weather in Paris?"}
ASKED = {"role": "assistant", "content": None, "reasoning_content": "Look.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "rain", "tool_call_id": CALL["id"]}
LAST = {"role": "assistant", "content": "It rains.", "reasoning_content": "Rain it is."}


def answers(template: str, turns: list[dict]) -> list[tuple[str, str]]:
    """The prompt and the text of each answer."""
    left_out: Counter[str] = Counter()
    writer = ConversationWriter(ChatTemplate(template, {}, "t"), CONTROLS, lambda text: text)
    whole = Document(messages=parse_messages(turns, "a:1", "messages", left_out))
    documents = select_texts(whole, WRITTEN)
    return [writer.answer(document.messages, "a:1", left_out) for document in documents]


def test_as_many_tokens_of_a_prompt_are_kept_as_of_an_output_that_is_remembered():
    assert PROMPT_TOKENS == output_document.PROMPT_TOKENS


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            NO_THOUGHTS_IN_HISTORY,
            [
                '<think>Look.</think><call>get_weather{"city": "Paris", "unit": "C"}<end>',
                "<think>Rain it is.</think>It rains.<end>",
            ],
        ),
        (
            CHANNELS,
            [
                (
                    '<analysis>Look.<over><start>assistant<to>get_weather{"city": "Paris", "unit":'
                    ' "C"}<call>'
                ),
                "<analysis>Rain it is.<over><start>assistant<final>It rains.<return>",
            ],
        ),
    ],
    ids=["without thoughts in history", "channels"],
)
def test_calls_and_reasoning_are_as_the_template_has_them_in_the_last_turn(template, expected):
    shown = answers(template, [USER, ASKED, RESULT, LAST])
    assert [answer for _, answer in shown] == expected
    for prompt, _ in shown:
        assert prompt.endswith(("<assistant>", "<start>assistant"))


def test_a_template_without_a_prompt_shows_the_turn_with_its_header():
    ((prompt, answer),) = answers(PLAIN, [USER, {"role": "assistant", "content": "Rain."}])
    assert (prompt, answer) == ("<user>Weather in Paris?<end>", "<assistant>Rain.<end>")


def test_a_template_that_always_ends_with_a_header_ends_the_answer_there():
    ((prompt, answer),) = answers(
        ALWAYS_A_HEADER, [USER, {"role": "assistant", "content": "Rain."}]
    )
    assert prompt.endswith("<assistant>")
    assert answer.startswith("Rain.<end>")


def test_a_prompt_that_opens_the_reasoning_is_followed_by_it():
    ((prompt, answer),) = answers(OPENED, [USER, LAST])
    assert prompt.endswith("<assistant><think>\n")
    assert answer == "Rain it is.\n</think>\n\nIt rains.<end>"


def test_arguments_are_in_the_form_that_the_template_shows():
    ((_, answer),) = answers(CALLS_AS_JSON, [USER, {**ASKED, "reasoning_content": ""}])
    assert '"arguments": {"city": "Paris", "unit": "C"}' in answer


def test_what_the_template_never_shows_is_counted():
    left_out: Counter[str] = Counter()
    writer = ConversationWriter(ChatTemplate(PLAIN, {}, "t"), CONTROLS, lambda text: text)
    messages = parse_messages([USER, LAST], "a:1", "messages", left_out)
    writer.answer(messages, "a:1", left_out)
    assert left_out == {REASONING: 1}


@pytest.fixture(scope="module")
def tokenizer() -> TargetTokenizer:
    return TargetTokenizer(byte_level_bpe().to_str(), "t", ChatTemplate(CHATML, {}, "t"))


@pytest.mark.parametrize("filler", ["x", "naïve <|im_end|> " * 90, "<|im_start|>" * 200])
def test_the_tokens_are_those_that_generation_would_remember(tokenizer, filler):
    question = f"{filler} What is a suffix array?"
    turns = (("user", question), ("assistant", "It is sorted positions."))
    (stored,) = tokenizer.encode_documents([Document(messages=turns, kind=WRITTEN)])
    whole = tokenizer.encode_history(turns).tolist()
    output = tokenizer.encode("It is sorted positions.").tolist()
    end = whole[-2:]  # <|im_end|> and the line end
    begin = len(whole) - len(output) - len(end)
    assert whole[begin:] == [*output, *end]
    document = output_document.OutputDocument.from_output(whole[:begin], whole[begin:])
    assert document is not None
    assert stored.tolist() == document.tokens.tolist()
    assert decoded(tokenizer, stored.tolist()).endswith("sorted positions.<|im_end|>\n")


def test_a_refused_answer_is_counted_and_others_are_stored(tokenizer):
    template = "{% if messages|length > 2 %}{{ raise_exception('too many') }}{% endif %}" + CHATML
    strict = TargetTokenizer(byte_level_bpe().to_str(), "t", ChatTemplate(template, {}, "t"))
    turns = [
        USER,
        {"role": "assistant", "content": "One."},
        USER,
        {"role": "system", "content": "s"},
    ]
    turns.append({"role": "assistant", "content": "Two."})
    whole = Document(messages=parse_messages(turns, "a:1", "messages", Counter()))
    counts = CorpusCounts(documents=2, conversations=2)
    encoded = strict.encode_counted([*select_texts(whole, WRITTEN)], counts)
    assert [one is None for one in encoded] == [False, True]
    assert "too many" in counts.refusal


def test_an_answer_without_anything_before_it_is_stored(tokenizer):
    turns = ({"role": "assistant", "content": "Hello."},)
    whole = Document(messages=parse_messages(turns, "a:1", "messages", Counter()))
    (stored,) = tokenizer.encode_documents([*select_texts(whole, WRITTEN)])
    assert decoded(tokenizer, stored.tolist()).endswith("Hello.<|im_end|>\n")


def test_a_text_was_read():
    assert [*select_texts(Document(text="x"), WRITTEN)] == []
    (read,) = select_texts(Document(text="x"), "read")
    assert (read.text, read.kind) == ("x", "read")


def test_an_answer_of_calls_alone_is_one_and_an_empty_one_is_none():
    empty = {"role": "assistant", "content": " "}
    turns = [USER, empty, USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    whole = Document(messages=parse_messages(turns, "a:1", "messages", Counter()))
    (written,) = select_texts(whole, WRITTEN)
    assert json.loads(written.messages[-1][2])["tool_calls"] == [CALL]
    assert written.order == 1
