"""Tokens become text one by one: whole characters, each once, at the same cost for each token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rest_store.generation.detokenizer import Detokenizer
from tests.shared.tiny import text_tokenizer


def of_bytes() -> Any:
    """A byte-level tokenizer whose tokens are single bytes."""
    alphabet = {
        letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    backend = Tokenizer(models.BPE(alphabet, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def with_byte_fallback() -> Any:
    """A tokenizer like Llama 2's: bytes for missing characters, and a space before texts."""
    tokens = [
        "<unk>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "▁ab",
        "ab",
        "漢",
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = [("a", "b"), ("▁", "a"), ("▁a", "b")]
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"bytes": of_bytes, "byte fallback": with_byte_fallback, "BPE": text_tokenizer}


def words_of(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    first = [word for token in tokens[:-1] for word in detokenizer.words([token])]
    return first + detokenizer.words(tokens[-1:], last=True)


def test_tokens_become_text_when_their_characters_are_whole() -> None:
    tokenizer = text_tokenizer()
    text = "naïve café 漢字 ok"
    detokenizer = Detokenizer(tokenizer)
    added = [word for token in tokenizer(text)["input_ids"] for word in detokenizer.words([token])]
    assert "".join(added) == text
    assert "" in added
    assert not any("\ufffd" in part for part in added)
    assert Detokenizer(tokenizer).words(tokenizer("漢")["input_ids"][:2], last=True) == [
        "",
        "\ufffd",
    ]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_are_the_text_wherever_special_tokens_and_unknown_ids_stand(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chance.choices("ab é漢字😀\n ", k=chance.randrange(1, 12)))
        tokens = [
            one
            for token in tokenizer.encode(text)
            for one in (token, *[tokenizer.eos_token_id, len(tokenizer) + 3] * chance.randrange(2))
        ]
        words = words_of(tokenizer, tokens)
        assert "".join(words) == tokenizer.decode(tokens, skip_special_tokens=True)
        assert not any("\ufffd" in word for word in words)


def test_bytes_that_are_no_text_become_what_they_are_decoded_to() -> None:
    tokenizer = of_bytes()
    chance = random.Random(2)
    for _ in range(300):
        tokens = [chance.randrange(len(tokenizer)) for _ in range(chance.randrange(1, 16))]
        assert "".join(words_of(tokenizer, tokens)) == tokenizer.decode(
            tokens, skip_special_tokens=True
        )


class Counting:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens = 0

    def decode(self, tokens: list[int], **options: Any) -> str:
        self.tokens += len(tokens)
        return str(self.tokenizer.decode(tokens, **options))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_token_costs_the_same_at_the_end_of_a_long_run_of_its_kind(name: str) -> None:
    """Special tokens, ids without a token and parts of characters form long runs."""
    tokenizer = TOKENIZERS[name]()
    half, *rest = tokenizer.encode("字")[-3:]
    runs = [
        [tokenizer.eos_token_id],
        [len(tokenizer) + 3],
        [half],
        rest[-1:],
        [*rest, half],
        tokenizer.encode("ab"),
    ]
    for run in runs:
        counting = Counting(tokenizer)
        detokenizer = Detokenizer(counting)
        shown = [detokenizer.words([run[place % len(run)]])[0] for place in range(400)]
        assert counting.tokens < 20 * 400
        assert any(shown[-4:]) == bool(tokenizer.decode(run, skip_special_tokens=True)), (
            "and text is not held back"
        )
