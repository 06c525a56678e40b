"""Prompts: text, and chats that grow and forget."""

from __future__ import annotations

import torch

from rest_store.errors import ArgumentError
from rest_store.generation.conversation import Conversation, tokenized
from rest_store.generation.generator import Generator
from tests.shared.strategies import refused
from tests.shared.tiny import text_tokenizer, tiny_model


def test_a_chat_begins_with_one_token_of_its_own() -> None:
    words = text_tokenizer()
    text = Conversation(words).ask("hi")
    turns = [{"role": "user", "content": "hi"}]
    expected = words.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert tokenized(words, text, special=False)["input_ids"].tolist() == [expected]
    assert text.startswith("<|im_start|><|im_start|>user"), (
        "the template's own first token, and a turn's"
    )
    assert (
        expected[:3]
        == [words.bos_token_id] * 2 + words("user", add_special_tokens=False)["input_ids"][:1]
    )
    assert torch.equal(
        tokenized(words, "hi")["input_ids"], words("hi", return_tensors="pt")["input_ids"]
    )


def test_a_chat_has_a_history() -> None:
    words = text_tokenizer()
    chat = Conversation(words)
    chat.ask("never answered")
    chat.ask("one")
    chat.add("one", "two")
    turns = [("user", "one"), ("assistant", "two"), ("user", "three")]
    messages = [{"role": role, "content": content} for role, content in turns]
    assert chat.ask("three") == words.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )


def test_a_prompt_has_a_token() -> None:
    bare = text_tokenizer()
    bare._tokenizer.post_processor = None
    refused(ArgumentError, lambda: tokenized(bare, ""), "the prompt is empty")


def test_a_prompt_is_unicode() -> None:
    """Words of a command line that are not UTF-8 arrive as halves of surrogate pairs."""
    tokenizer = text_tokenizer()
    refused(
        ArgumentError,
        lambda: tokenized(tokenizer, "caf\udce9"),
        "the prompt is not Unicode ('\\udce9' at 3)",
    )
    generator = Generator(tiny_model("llama"), tokenizer)
    refused(
        ArgumentError,
        lambda: generator.generate("caf\udce9", max_new_tokens=1),
        "the prompt is not Unicode",
    )
