"""The tokenizer of a GGUF file has the pre-tokenizer of its name, and no tensor is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rest_store.datastore.tokenizer import identity_of
from rest_store.errors import TokenizerLoadError
from rest_store.generation.model import load_model
from rest_store.loading.gguf_tokenizer import PRE_TOKENIZERS
from rest_store.loading.loaded_tokenizer import load_tokenizer
from tests.shared.models import smollm2_gguf, write_gguf
from tests.shared.strategies import refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("gpt-2", ["It", "'s", " 1234", "\n\n ", " 5", " camelCase", "!", " #", "if", "\r\n"]),
        (
            "smollm",
            [
                "It",
                "'s",
                " ",
                "1",
                "2",
                "3",
                "4",
                "\n\n  ",
                "5",
                " camelCase",
                "!",
                " #",
                "if",
                "\r\n",
            ],
        ),
        (
            "llama-bpe",
            [
                "It",
                "'s",
                " ",
                "123",
                "4",
                "\n\n",
                " ",
                " ",
                "5",
                " camelCase",
                "!",
                " #",
                "if",
                "\r\n",
            ],
        ),
        (
            "qwen2",
            [
                "It",
                "'s",
                " ",
                *"1234",
                "\n\n",
                " ",
                " ",
                "5",
                " camelCase",
                "!",
                " #",
                "if",
                "\r\n",
            ],
        ),
        (
            "tekken",
            [
                "It",
                "'s",
                " ",
                *"1234",
                "\n\n",
                " ",
                " ",
                "5",
                " camel",
                "Case",
                "!",
                " #",
                "if",
                "\r\n",
            ],
        ),
        (
            "gpt-4o",
            [
                "It's",
                " ",
                "123",
                "4",
                "\n\n",
                " ",
                " ",
                "5",
                " camel",
                "Case",
                "!",
                " #",
                "if",
                "\r\n",
            ],
        ),
        (
            "deepseek-v3",
            ["It", "'s", " ", "123", "4", "\n\n", "  ", "5", " camelCase", "!", " #", "if", "\r\n"],
        ),
        (
            "falcon",
            [
                "It",
                "'",
                "s",
                " ",
                "123",
                "4",
                "\n\n ",
                " 5",
                " camelCase",
                "!",
                " ",
                "#",
                "if",
                "\r\n",
            ],
        ),
        (
            "default",
            [
                "It",
                "'",
                "s",
                " ",
                "123",
                "4",
                "\n\n ",
                " ",
                "5",
                " camelCase",
                "!",
                " ",
                "#",
                "if",
                "\r\n",
            ],
        ),
    ],
)
def test_text_is_split_as_the_kind_says(kind: str, pieces: list[str]) -> None:
    fields = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
    fields["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[kind]}
    text = "It's 1234\n\n  5 camelCase! #if\r\n"
    split = Tokenizer.from_str(json.dumps(fields)).pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in split] == pieces


def test_digits_are_split_as_the_model_was_trained() -> None:
    """llama.cpp splits them so; the conversion of transformers lacks this pre-tokenizer."""
    tokenizer = Tokenizer.from_str(load_tokenizer(smollm2_gguf()).json)
    assert tokenizer.encode("x\n\n12").tokens == ["x", "ĊĊ", "1", "2"]
    assert tokenizer.encode("a<|im_end|>").ids[-1] == 2


PAGE = (
    "1. In 2024, 3 of 44 prompts (6.8%) began with 12345:\n\n1\n2\n\n10\n  x = [1, 23, 0x1F]\n"
    "\tfor i in range(100): print(i * 2.5)\n\n\n2. Call 555-0199 at 10:30.\n"
)
IDS_OF_LLAMA_CPP = """
    33 30 533 216 34 32 34 36 28 216 35 282 216 36 36 19926 365 38 30 40 8402 2585 351 216 33 34 35 36 37 42
    1116 33 198 34 1116 33 32 3805 1792 446 933 33 28 216 34 35 28 216 32 104 33 54 77 198 197 1710 2056 281
    1845 24 33 32 32 727 1628 24 89 1672 216 34 30 37 25 16506 34 30 9472 216 37 37 37 29 32 33 41 41 418 216
    33 32 42 35 32 30 198
"""


def test_a_page_with_digits_has_the_ids_of_llama_cpp() -> None:
    tokenizer = Tokenizer.from_str(load_tokenizer(smollm2_gguf()).json)
    assert tokenizer.encode(PAGE).ids == list(map(int, IDS_OF_LLAMA_CPP.split()))


def test_it_is_the_tokenizer_that_transformers_converts(path: Path) -> None:
    converted = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    loaded = load_tokenizer(path)
    assert identity_of(loaded) == identity_of(converted)
    assert loaded.chat_template == converted.chat_template
    assert loaded.special_tokens.items() <= converted.special_tokens_map.items()
    text = "def add(first):\n    return first  # <tool_call> <|im_end|>\n"
    assert Tokenizer.from_str(loaded.json).encode(text).ids == converted.encode(text)


def test_only_what_it_takes_is_loaded(path: Path) -> None:
    """No tensor, transformers or numpy is loaded, for which a small build would wait."""
    path.write_bytes(path.read_bytes()[:-1000])
    code = (
        "import sys; from rest_store.loading.loaded_tokenizer import load_tokenizer;"
        " load_tokenizer(sys.argv[1])"
    )
    code += "; print({'transformers', 'torch', 'numpy', 'gguf'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_generation_has_the_same_tokenizer(path: Path) -> None:
    _, tokenizer = load_model(str(path))
    loaded = load_tokenizer(path)
    assert identity_of(tokenizer) == identity_of(loaded)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template == loaded.chat_template


# --- SentencePiece --------------------------------------------------------------------------------

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SCORES = {
    "▁": -10.0, "a": -11.0, "b": -12.0, "c": -13.0, "ab": -3.0, "▁a": -4.0, "▁ab": -2.0, "▁▁": -5.0, "abc": -2.5,
    "▁abc": -1.5, "<": -20.0, "/": -21.0, "s": -22.0, ">": -23.0, "</": -1.0, "s>": -1.0,
}  # fmt: skip


def write_sentencepiece(path: Path, **settings: bool) -> Path:
    """Write a GGUF file with a vocabulary of SentencePiece; return `path`.

    Args:
        path: of the file.
        settings: keys of `tokenizer.ggml`.
    """
    import gguf

    tokens = ["<unk>", "<s>", "</s>", *BYTES, *SCORES, "<mine>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [*SCORES.values(), 0.0])
    kinds = gguf.TokenType
    special = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types(
        special + [kinds.BYTE] * 256 + [kinds.NORMAL] * len(SCORES) + [kinds.USER_DEFINED]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for name, value in settings.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("text", "with_space", "without"),
    [
        ("abc", ["▁abc"], ["abc"]),
        (" abc", ["▁", "▁abc"], ["▁abc"]),
        ("abc ab", ["▁abc", "▁ab"], ["abc", "▁ab"]),
        ("a<mine>b", ["▁a", "<mine>", "▁", "b"], ["a", "<mine>", "b"]),
        ("é", ["▁", "<0xC3>", "<0xA9>"], ["<0xC3>", "<0xA9>"]),
        ("\n", ["▁", "<0x0A>"], ["<0x0A>"]),
        ("", [], []),
    ],
)
def test_a_space_is_put_before_texts_if_the_file_says_so(
    text: str, with_space: list[str], without: list[str], tmp_path: Path
) -> None:
    """`llama-vocab.cpp` has the rule: a text's own first space is one more.

    Each part between tokens has one.
    """
    for settings, expected in (
        ({}, with_space), ({"add_space_prefix": True}, with_space), ({"add_space_prefix": False}, without)
    ):  # fmt: skip
        tokenizer = Tokenizer.from_str(
            load_tokenizer(write_sentencepiece(tmp_path / "m.gguf", **settings)).json
        )
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert encoded.tokens == expected
        if "<mine>" not in text:
            assert tokenizer.decode(encoded.ids) == text


def test_texts_begin_and_end_with_tokens_as_the_file_says(tmp_path: Path) -> None:
    def tokens(**settings: bool) -> list[str]:
        loaded = load_tokenizer(write_sentencepiece(tmp_path / "m.gguf", **settings))
        assert loaded.special_tokens == {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
        }
        return list(Tokenizer.from_str(loaded.json).encode("ab").tokens)

    assert tokens() == ["<s>", "▁ab"]
    assert tokens(add_bos_token=False) == ["▁ab"]
    assert tokens(add_eos_token=True) == ["<s>", "▁ab", "</s>"]


def test_text_that_looks_like_a_control_token_is_not_joined_to_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(load_tokenizer(write_sentencepiece(tmp_path / "m.gguf")).json)
    tokenizer.encode_special_tokens = True
    assert tokenizer.encode("</s>", add_special_tokens=False).tokens == ["▁", "</", "s>"]


def test_generation_reads_the_same_tokens(tmp_path: Path) -> None:
    loaded = load_tokenizer(write_sentencepiece(tmp_path / "m.gguf", add_space_prefix=False))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(loaded.json), **loaded.special_tokens
    )
    assert tokenizer.decode(tokenizer(" abc é")["input_ids"], skip_special_tokens=True) == " abc é"
    assert identity_of(tokenizer) == identity_of(loaded)


# --- Damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "actual"),
    [
        (
            lambda data: data.replace(b"gpt-2", b"gpt-9"),
            "tokenizer.ggml.pre is 'gpt-9', expected one of",
        ),
        (lambda data: data[:2000], "GGUF metadata is damaged (it is cut off)"),
        (lambda data: data[:4] + b"\1" + data[5:], "GGUF metadata is damaged (version 1)"),
        (lambda data: data[:16] + b"\xff" * 8 + data[24:], "GGUF metadata is damaged ("),
        (
            lambda data: data.replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"),
            "tokenizer is damaged (",
        ),
    ],
)
def test_a_file_that_is_damaged_or_of_an_unknown_kind_is_refused(
    path: Path, change, actual: str
) -> None:
    path.write_bytes(change(path.read_bytes()))
    message = refused(TokenizerLoadError, lambda: load_tokenizer(path), f"{path}: {actual}")
    assert len(message.splitlines()) == 1
