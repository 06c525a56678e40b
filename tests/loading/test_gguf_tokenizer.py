"""The tokenizer of a GGUF file: its pre-tokenizer is the one that the file names, and no tensor is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from rest_store.datastore.tokenizer import identity_of
from rest_store.errors import TokenizerLoadError
from rest_store.generation.model import load_model
from rest_store.loading.gguf_tokenizer import PRE_TOKENIZERS
from rest_store.loading.tokenizer import load_tokenizer
from tests.shared.models import smollm2_gguf, write_gguf
from tests.shared.strategies import refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("gpt-2", ["It", "'s", " 1234", "\n\n ", " 5", " camelCase", "!", " #", "if", "\r\n"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "\n\n  ", "5", " camelCase", "!", " #", "if", "\r\n"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", "\n\n", " ", " ", "5", " camelCase", "!", " #", "if", "\r\n"]),
        ("qwen2", ["It", "'s", " ", *"1234", "\n\n", " ", " ", "5", " camelCase", "!", " #", "if", "\r\n"]),
        ("tekken", ["It", "'s", " ", *"1234", "\n\n", " ", " ", "5", " camel", "Case", "!", " #", "if", "\r\n"]),
        ("gpt-4o", ["It's", " ", "123", "4", "\n\n", " ", " ", "5", " camel", "Case", "!", " #", "if", "\r\n"]),
        ("deepseek-v3", ["It", "'s", " ", "123", "4", "\n\n", "  ", "5", " camelCase", "!", " #", "if", "\r\n"]),
        ("falcon", ["It", "'", "s", " ", "123", "4", "\n\n ", " 5", " camelCase", "!", " ", "#", "if", "\r\n"]),
        ("default", ["It", "'", "s", " ", "123", "4", "\n\n ", " ", "5", " camelCase", "!", " ", "#", "if", "\r\n"]),
    ],
)
def test_text_is_split_as_the_kind_says(kind: str, pieces: list[str]) -> None:
    fields = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
    fields["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[kind]}
    text = "It's 1234\n\n  5 camelCase! #if\r\n"
    split = Tokenizer.from_str(json.dumps(fields)).pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:stop] for _, (start, stop) in split] == pieces


def test_digits_are_split_as_the_model_was_trained() -> None:
    """As llama.cpp does; the conversion of transformers leaves this pre-tokenizer out."""
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
    """Neither a tensor nor transformers nor numpy: a small build would wait for them."""
    path.write_bytes(path.read_bytes()[:-1000])
    code = "import sys; from rest_store.loading.tokenizer import load_tokenizer; load_tokenizer(sys.argv[1])"
    code += "; print({'transformers', 'torch', 'numpy', 'gguf'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_generation_has_the_same_tokenizer(path: Path) -> None:
    _, tokenizer = load_model(str(path))
    loaded = load_tokenizer(path)
    assert identity_of(tokenizer) == identity_of(loaded)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template == loaded.chat_template


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda data: data.replace(b"gpt-2", b"gpt-9"), "tokenizer.ggml.pre is 'gpt-9', expected one of"),
        (lambda data: data[:2000], "GGUF metadata is damaged (it is cut off)"),
        (lambda data: data[:4] + b"\1" + data[5:], "GGUF metadata is damaged (version 1)"),
        (lambda data: data[:16] + b"\xff" * 8 + data[24:], "GGUF metadata is damaged ("),
        (lambda data: data.replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.mergez"), "tokenizer is damaged ("),
    ],
)
def test_a_file_that_is_damaged_or_of_an_unknown_kind_is_refused(path: Path, change, found: str) -> None:
    path.write_bytes(change(path.read_bytes()))
    message = refused(TokenizerLoadError, lambda: load_tokenizer(path), f"{path}: {found}")
    assert len(message.splitlines()) == 1
