"""fastokens gives the tokens of tokenizers, and a build does without it where it does not."""

from __future__ import annotations

import json
import random
import sys
import warnings
from importlib.metadata import version

import numpy as np
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from build_index import builder, fast_encoder
from build_index.build_command import summary_text
from build_index.chat_template import ChatTemplate
from build_index.fast_encoder import EncoderError
from build_index.tokenization import TargetTokenizer, load_tokenizer
from rest_store.datastore.manifest import Manifest
from rest_store.errors import OutputError
from tests.shared.builds import build_quick, contents, documents, stored_documents
from tests.shared.models import CHATML, byte_level_bpe, conversation, unigram

fastokens = pytest.importorskip("fastokens")

TEXTS = documents(60)
SAMPLES = [
    "",
    " ",
    "\n\n\t  x",
    "def f(x):\n    return x**2  # squared\r\n",
    "<|im_start|>user<|im_end|> <tool_call> <|im_start",
    "naïve café ﬁ Å A\u030a \u200d \u2028 \ufeff",
    "漢字かな交じり文 한국어 العربية עברית हिन्दी",
    "👩\u200d👩\u200d👧 🇩🇪 \U0010ffff1\U0010ffff \U0010fffe",
    "\0\x01\x7f\x85\xa0",
    "x" * 3000 + " " * 3000 + "1234567890" * 30,
    "don't I'LL we've 's 'S \u02bcs",
    "▁ ▁▁ a▁b",
]
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_byte_level(pattern: str, *normalizer: normalizers.Normalizer) -> Tokenizer:
    """As Llama 3 and Qwen have it: split by a pattern, then bytes; Qwen normalizes first."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=not normalizer))
    for each in normalizer:
        tokenizer.normalizer = each
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=alphabet,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SAMPLES, *documents(80)], trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A tokenizer like Llama 2's: SentencePiece's BPE, with bytes for other characters."""
    source = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    source.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    source.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", "<|im_start|>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    source.train_from_iterator(documents(80), trainer)
    return source


def metaspace(scheme: str) -> Tokenizer:
    """As `transformers` 5 loads Llama 2's family."""
    fields = json.loads(byte_fallback().to_str())
    pre_tokenizer = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": scheme,
        "split": False,
    }
    return Tokenizer.from_str(
        json.dumps({**fields, "normalizer": None, "pre_tokenizer": pre_tokenizer})
    )


KINDS = {
    "GPT-2": byte_level_bpe,
    "Llama 3": lambda: split_byte_level(GPT4),
    "Qwen": lambda: split_byte_level(GPT4, normalizers.NFC()),
    "byte fallback": byte_fallback,
    "a mark before each section": lambda: metaspace("always"),
    "a mark before the first section": lambda: metaspace("first"),
    "no mark": lambda: metaspace("never"),
}


def target(tokenizer: Tokenizer) -> TargetTokenizer:
    return TargetTokenizer(tokenizer.to_str(), "tiny", ChatTemplate(CHATML, {}, "tiny"))


# --- The same tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_tokenizers(kind, monkeypatch):
    monkeypatch.setattr(fast_encoder, "_SAMPLE", 1 << 40)  # nothing is compared but here
    monkeypatch.setattr(fast_encoder, "CHECKED_CHARACTERS", 0)
    plain = target(KINDS[kind]())
    fast = target(KINDS[kind]())
    fast.accelerate()
    assert fast.is_accelerated
    rng = random.Random(0)
    characters = [
        *"ab<|>_ \n\t'sS1\u0301é漢👩",
        "\u200d",
        "im_",
        "start|>",
        "<tool_call>",
        "return ",
    ]
    texts = [*SAMPLES, *("".join(rng.choices(characters, k=rng.randrange(60))) for _ in range(300))]
    chats = [conversation(*texts[place : place + 3]) for place in range(0, len(texts), 3)]
    for encode, inputs in (
        (TargetTokenizer.encode_batch, texts),
        (TargetTokenizer.encode_documents, chats),
    ):
        expected = encode(plain, inputs)
        tokens = encode(fast, inputs)
        assert [ids.dtype for ids in tokens] == [ids.dtype for ids in expected]
        assert all(np.array_equal(*pair) for pair in zip(tokens, expected, strict=True))


def test_a_tokenizer_that_fastokens_refuses_is_encoded_by_tokenizers():
    tokenizer = target(unigram())
    tokenizer.accelerate()
    assert tokenizer.encoder.startswith("tokenizers ")
    assert tokenizer.encode("def add").tolist() == target(unigram()).encode("def add").tolist()


def test_what_fastokens_refuses_is_said_and_what_it_takes_is_not(
    corpus, byte_level_file, out, tmp_path
):
    assert build_quick(corpus, byte_level_file, out).slow_reason == ""
    unigram().save(str(tmp_path / "unigram.json"))
    summary = build_quick(corpus, tmp_path / "unigram.json", out)
    assert summary.slow_reason.startswith("fastokens refuses the tokenizer (")
    assert f"(by tokenizers {version('tokenizers')}; slower, as fastokens refuses" in summary_text(
        summary
    )


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_sections_that_only_tokenizers_finds_are_left_to_it(flag):
    tokenizer = metaspace("always")
    tokenizer.add_tokens([AddedToken("<tool>", **{"normalized": False, flag: True})])
    loaded = target(tokenizer)
    loaded.accelerate()
    assert not loaded.is_accelerated
    assert "Metaspace" in loaded.slow_reason


# --- Other tokens ---------------------------------------------------------------------------------


class Wrong:
    """fastokens, except for texts that hold a marker."""

    marker = "31 "
    original = fastokens.Tokenizer

    def __init__(self, tokenizer_json: str) -> None:
        self._inner = self.original.from_json_str(tokenizer_json)

    @classmethod
    def from_json_str(cls, tokenizer_json: str) -> Wrong:
        return cls(tokenizer_json)

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        return self._inner.encode_batch_flat(self.changed(texts))

    def changed(self, texts: list[str]) -> list[str]:
        return [text.upper() if self.marker in text else text for text in texts]


class Failing(Wrong):
    def changed(self, texts: list[str]) -> list[str]:
        if any(self.marker in text for text in texts):
            raise BaseException("panicked\nat a place")  # as a panic in Rust arrives
        return texts


class Outside(Wrong):
    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        ids, ends = super().encode_batch_flat(texts)
        if any(self.marker in text for text in texts):
            ids = np.full(len(ids) // 4, 65_536 + 7, np.uint32).tobytes()  # 7 in two bytes
        return ids, ends


WRONG = [
    (Wrong, r"other tokens than tokenizers for '31 "),
    (Failing, "failed: panicked"),
    (Outside, "token id 65543 of a vocabulary of"),
]


def test_a_text_with_a_byte_that_the_vocabulary_lacks_is_left_to_tokenizers(tmp_path):
    content = json.loads(byte_level_bpe(300).to_str())
    byte_4 = "\u0104"
    others = [token for token in content["model"]["vocab"] if token != byte_4]
    content["model"]["vocab"] = {token: number for number, token in enumerate(others)}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    slow = load_tokenizer(path)
    fast = load_tokenizer(path)
    fast.accelerate()
    texts = ["one", "a\x04b", "two"]
    expected = [tokens.tolist() for tokens in slow.encode_batch(texts)]
    assert [tokens.tolist() for tokens in fast.encode_batch(texts)] == expected
    assert len(expected[1]) == 2
    assert fast.encoder.startswith("fastokens")


def test_after_the_first_texts_a_sample_by_content_is_checked(byte_level_file, monkeypatch):
    monkeypatch.setattr(fastokens, "Tokenizer", Wrong)
    monkeypatch.setattr(fast_encoder, "CHECKED_CHARACTERS", 1000)
    texts = [f"{number} is not 31 " for number in range(4000)]

    def first_difference() -> int:
        tokenizer = load_tokenizer(byte_level_file)
        tokenizer.accelerate()
        tokenizer.encode_batch(["right " * 200])
        for number, text in enumerate(texts):
            try:
                tokenizer.encode_batch([text])
            except EncoderError:
                return number
        raise AssertionError("no text was checked")

    first = first_difference()
    assert 0 < first == first_difference()


# --- Builds ---------------------------------------------------------------------------------------


@pytest.fixture
def expected(corpus, byte_level_file, tmp_path):
    """The bytes of a build without fastokens."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "fastokens", None)
        build_quick(corpus, byte_level_file, tmp_path / "plain", shard_tokens=500)
    return contents(tmp_path / "plain")


def test_a_build_uses_fastokens_and_says_so(corpus, byte_level_file, out, expected):
    summary = build_quick(corpus, byte_level_file, out, shard_tokens=500)
    built = contents(out)
    assert len(built) > 6
    assert {name for name in built.keys() | expected if built[name] != expected[name]} == {
        "manifest.json"
    }
    assert (
        [summary.encoder]
        == Manifest.read(out).options["encoders"]
        == [f"fastokens {version('fastokens')}"]
    )


@pytest.mark.parametrize(("broken", "message"), WRONG)
def test_a_difference_begins_the_build_again(
    corpus, byte_level_file, out, expected, monkeypatch, broken, message
):
    monkeypatch.setattr(fastokens, "Tokenizer", broken)
    with pytest.warns(
        UserWarning, match=rf"ds: fastokens [\d.]+: {message}.*; tokenized by tokenizers"
    ):
        summary = build_quick(corpus, byte_level_file, out, shard_tokens=500)
    assert contents(out) == expected
    assert summary.encoder.startswith("tokenizers ")
    assert len(stored_documents(out)) == summary.documents == 60


def test_a_resumed_build_does_not_return_to_fastokens(corpus, byte_level_file, out, monkeypatch):
    def refuse(*arguments):
        raise OutputError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(builder, "_manifest", refuse)
        patched.setattr(fastokens, "Tokenizer", Wrong)
        with pytest.warns(UserWarning, match="tokenized by tokenizers"), pytest.raises(OutputError):
            build_quick(corpus, byte_level_file, out, shard_tokens=500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = build_quick(corpus, byte_level_file, out, shard_tokens=500, resume=True)
    assert summary.encoder.startswith("tokenizers ")
