"""Conversations: the template's control tokens are control tokens, and nothing in a message is."""

from __future__ import annotations

import pytest
from tokenizers import normalizers

from build_index.chat_template import ChatTemplate
from build_index.control_marks import CONTROL_MARK, TEXT_MARK
from build_index.documents import Document
from build_index.tokenization import TargetTokenizer, load_tokenizer
from rest_store.errors import CorpusError, TokenizerLoadError
from tests.shared.models import CHATML, byte_level_bpe, conversation, decoded, word_piece


def test_control_tokens_of_the_template_are_control_tokens(chat):
    tokens = chat.encode_documents([conversation("What is it?", "Sorted.")])[0]
    rendered = "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\nSorted.<|im_end|>\n"
    assert tokens.tolist() == byte_level_bpe().encode(rendered).ids
    assert decoded(chat, tokens) == rendered


def test_the_text_of_a_control_token_in_a_message_is_text(chat):
    content = "write <|im_end|> twice: <|im_end|><|endoftext|>"
    tokens = chat.encode_documents([conversation(content, "No.")])[0].tolist()
    end = chat.identity.special_tokens["<|im_end|>"]
    assert tokens.count(end) == 2
    assert chat.identity.special_tokens["<|endoftext|>"] not in tokens
    first = tokens.index(end)
    assert tokens[1:first] == chat.encode("user\n" + content).tolist()
    assert (
        decoded(chat, tokens)
        == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n"
    )


def test_a_role_cannot_smuggle_in_a_control_token(chat):
    tokens = chat.encode_documents([Document(messages=(("user<|im_end|>", "x"),))])[0].tolist()
    assert tokens.count(chat.identity.special_tokens["<|im_end|>"]) == 1


def test_a_message_cannot_forge_the_marks_that_stand_for_control_tokens(chat):
    marks = [f"{CONTROL_MARK}{place}{CONTROL_MARK}" for place in range(3)]
    mark = TEXT_MARK
    content = "".join(marks) + f"{mark}0{mark} <|im_end|>"
    tokens = chat.encode_documents([conversation(content)])[0].tolist()
    assert tokens.count(chat.identity.special_tokens["<|im_end|>"]) == 1
    assert tokens.count(chat.identity.special_tokens["<|im_start|>"]) == 1
    replaced = content.replace(CONTROL_MARK, "\ufffd").replace(mark, "\ufffd")
    assert decoded(chat, tokens) == f"<|im_start|>user\n{replaced}<|im_end|>\n"
    in_text = chat.encode("".join(marks)).tolist()
    assert not set(in_text) & set(chat.identity.special_tokens.values())


def test_the_longest_control_token_is_found_where_several_begin_alike():
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(["<|im_end|>!"])
    loaded = TargetTokenizer(
        tokenizer.to_str(), "x", ChatTemplate("{{ messages[0].content }}<|im_end|>!", {}, "x")
    )
    special = loaded.identity.special_tokens
    tokens = loaded.encode_documents([conversation("a")])[0].tolist()
    assert tokens == [*loaded.encode("a").tolist(), special["<|im_end|>!"]]


def test_a_normalizer_that_drops_noncharacters_leaves_control_tokens_alone():
    tokenizer = word_piece()
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=True)
    loaded = TargetTokenizer(
        tokenizer.to_str(), "x", ChatTemplate("{{ messages[0].content }} [SEP]", {}, "x")
    )
    sep = loaded.identity.special_tokens["[SEP]"]
    tokens = loaded.encode_documents([conversation("def [SEP]")])[0].tolist()
    assert tokens.count(sep) == 1
    assert tokens[-1] == sep


def test_texts_and_conversations_keep_their_order(chat):
    documents = [Document(text="a"), conversation("b"), Document(text="c"), conversation("d", "e")]
    expected = [
        chat.encode("a"),
        chat.encode_documents([documents[1]])[0],
        chat.encode("c"),
        chat.encode_documents([documents[3]])[0],
    ]
    assert [t.tolist() for t in chat.encode_documents(documents)] == [t.tolist() for t in expected]
    assert chat.encode_documents([]) == []


def test_the_template_can_be_a_file_and_a_bad_one_is_refused(byte_level_file, tmp_path):
    path = tmp_path / "chat.jinja"
    path.write_text(CHATML)
    assert load_tokenizer(byte_level_file, chat_template=str(path)).chat_template == CHATML
    path.write_bytes(b"\xff")
    bad = {
        "absent.jinja": "not readable",
        "{% for %}": r"not valid \(line 1: ",
        str(path): "not UTF-8",
    }
    for template, problem in bad.items():
        with pytest.raises(TokenizerLoadError, match=f"chat template is {problem}"):
            load_tokenizer(byte_level_file, chat_template=template)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[9].content }}", "{{ 1 // 0 }}"],
)
def test_a_conversation_that_the_template_refuses_is_named(byte_level_file, template):
    loaded = load_tokenizer(byte_level_file, chat_template=template)
    with pytest.raises(
        CorpusError,
        match=r"^chats.jsonl:7: a conversation \(user, assistant\) is refused by the chat",
    ):
        loaded.encode_documents([conversation("a", "b")])


def test_templates_see_what_transformers_gives_them():
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{{ m.tool_calls }}{% endgeneration %}{% endfor %}"
        "{{ {'b': '<é>', 'a': 1} | tojson }}{{ tools is none }}{{ add_generation_prompt }}"
        "{{ strftime_now('%d %b %Y') }}",
        {},
        "x",
    )
    turns = [
        {"role": "user", "content": "hi ", "tool_calls": [{"n": 1}]},
        {"role": "tool", "content": "no"},
    ]
    assert template.render(turns) == 'hi [{\'n\': 1}]{"b": "<é>", "a": 1}TrueFalse26 Jul 2024'
    assert template.render(turns, prompt=True).endswith("TrueTrue26 Jul 2024")
