"""The tokenizer of a GGUF file, from its metadata alone: no tensor is read (docs/gguf.md of ggml).

Two kinds are converted here, as llama.cpp's `llama-vocab.cpp` reads them. Of byte-level BPE
(`tokenizer.ggml.model` is `gpt2`) a GGUF file says which regular expressions split text only by a
name, `tokenizer.ggml.pre`. Of SentencePiece (`llama`) it has no merges: two neighbours are joined
if the vocabulary has both as one token, the one with the best score first.
`tokenizer.ggml.add_space_prefix` says whether a space is put before texts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

from rest_store.errors import TokenizerLoadError, describe

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # which have this layout
_STRING = 8
_ARRAY = 9
# By type.
_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
# Values of `tokenizer.ggml.token_type`.
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_SPACE = "\u2581"  # in place of spaces in a vocabulary of SentencePiece
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def _split(*patterns: str) -> list[dict[str, Any]]:
    """Return the pre-tokenizer that splits by each regular expression, and then encodes bytes."""
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return [
        *splits,
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]


_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of GPT-2
_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UNTIL_MARK = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(ending: str, numbers: str) -> list[dict[str, Any]]:
    """Return the pre-tokenizer that splits where small letters are followed by capital ones."""
    first = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ending}"
    second = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ending}"
    return _split(
        rf"{first}|{second}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_GPT2 = [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]
_FAMILIES: list[tuple[str, list[dict[str, Any]]]] = [
    (
        (
            "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 mellum modern-bert gigachat"
            " a.x-4.0"
        ),
        _GPT2,
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        [{"type": "Digits", "individual_digits": True}, *_GPT2],
    ),
    (
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe glm4"
            " chatglm-bpe"
        ),
        _split(rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        _split(rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"),
    ),
    (
        "qwen35",
        _split(
            rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    ("tekken", _cased("", r"\p{N}")),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _cased(f"{_ENDINGS}?", r"\p{N}{1,3}")),
    (
        "deepseek-v3 hunyuan-dense joyai-llm",
        _split(
            r"\p{N}{1,3}",
            r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
    ),
    (
        "deepseek-coder",
        _split(
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}",
        ),
    ),
    (
        "seed-coder",
        _split(
            rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        _split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
    ),
    ("bloom gpt3-finnish poro-chat", _split(_UNTIL_MARK)),
    ("viking", _split(_UNTIL_MARK, r"\p{N}")),
    ("falcon", _split(r"[\p{P}\$\+<=>\^~\|`]+", _WORDS, "[0-9][0-9][0-9]")),
    ("default", _split(r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", "[0-9][0-9][0-9]")),
]
PRE_TOKENIZERS = {kind: steps for kinds, steps in _FAMILIES for kind in kinds.split()}
_WITHOUT_MERGES = {
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "tekken",
}


class GgufTokenizer(NamedTuple):
    """A tokenizer as a GGUF file describes it.

    Attributes:
        json: a `tokenizer.json`.
        chat_template: Jinja text; None: it has none.
        special_tokens: texts of the named special tokens, such as `eos_token`.
    """

    json: str
    chat_template: str | None
    special_tokens: dict[str, str]


def is_gguf(path: Path) -> bool:
    """Return whether the file at `path` is a GGUF file; raises OSError."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def gguf_tokenizer(path: Path) -> GgufTokenizer | None:
    """Return the tokenizer of the GGUF file at `path`.

    None: it is neither byte-level BPE nor of SentencePiece.

    Raises:
        TokenizerLoadError: the file is damaged, or its pre-tokenizer is unknown.
        ImportError: `tokenizers` is not installed.
        OSError: the file cannot be read.
    """
    import tokenizers

    try:
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
            fields = _metadata(mapped)
    except (struct.error, ValueError, KeyError, OverflowError) as error:
        raise TokenizerLoadError(
            describe(path, "GGUF metadata", f"damaged ({error})", "intact")
        ) from None
    kind = fields.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        return None
    try:
        tokenizer = _byte_level(fields, path) if kind == "gpt2" else _sentencepiece(fields)
        text = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).to_str()
        tokens = fields["tokenizer.ggml.tokens"]
        special = {name: tokens[id_] for name, id_ in _named_ids(fields).items()}
    except TokenizerLoadError:
        raise
    except Exception as error:  # tokenizers raises Exception itself
        raise TokenizerLoadError(
            describe(path, "tokenizer", f"damaged ({error})", "vocabulary and merges")
        ) from error
    return GgufTokenizer(text, fields.get("tokenizer.chat_template"), special)


def _byte_level(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the object of a `tokenizer.json`."""
    kind = fields.get("tokenizer.ggml.pre", "default")
    if kind not in PRE_TOKENIZERS:
        expected = f"one of {', '.join(sorted(PRE_TOKENIZERS))}"
        raise TokenizerLoadError(describe(path, "tokenizer.ggml.pre", repr(kind), expected))
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    return {
        "added_tokens": _added_tokens(fields),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[kind]},
        "post_processor": _around_texts(fields, adds_bos=kind in _WITHOUT_MERGES),
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "ignore_merges": kind in _WITHOUT_MERGES,
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _sentencepiece(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the object of a `tokenizer.json`."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    unknown = fields.get("tokenizer.ggml.unknown_token_id")
    adds_space = fields.get("tokenizer.ggml.add_space_prefix", True)
    escaping = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoding: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_space:
        decoding.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "added_tokens": _added_tokens(fields),
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                *([{"type": "Prepend", "prepend": _SPACE}] if adds_space else []),
                escaping,
            ],
        },
        "post_processor": _around_texts(fields, adds_bos=True),
        "decoder": {"type": "Sequence", "decoders": decoding},
        "model": {
            "type": "BPE",
            "unk_token": None if unknown is None else tokens[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": _merges_by_score(fields),
        },
    }


def _merges_by_score(fields: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of tokens that make a token, the token with the best score first.

    Tokens that are no text, such as control tokens, are neither made nor parts: text that looks
    like one is text.
    """
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    scores: Sequence[float] = fields.get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    kinds: Sequence[int] = fields.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    normal = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind == _NORMAL
    }
    merges: list[tuple[str, str]] = []
    for token in sorted(normal, key=lambda token: -normal[token]):
        pairs = ((token[:index], token[index:]) for index in range(1, len(token)))
        merges += [
            (first, second) for first, second in pairs if first in normal and second in normal
        ]
    return merges


def _named_ids(fields: dict[str, Any]) -> dict[str, int]:
    """Return the ids of named tokens, such as `eos_token`."""
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in _NAMED.items()}
    return {name: id_ for name, id_ in ids.items() if id_ is not None}


def _added_tokens(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens that are found in a text before it is tokenized."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: Sequence[int] = fields.get("tokenizer.ggml.token_type", ())
    special = {id_ for id_, kind in enumerate(kinds) if kind in (_CONTROL, _UNKNOWN)}
    special |= set(_named_ids(fields).values())
    added = special | {id_ for id_, kind in enumerate(kinds) if kind == _USER_DEFINED}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": id_, "content": tokens[id_], **flags, "special": id_ in special}
        for id_ in sorted(added)
    ]


def _around_texts(fields: dict[str, Any], *, adds_bos: bool) -> dict[str, Any] | None:
    """Return the post-processor that the file asks for.

    Args:
        fields: its metadata.
        adds_bos: whether a text begins with a token of its own where the file does not say so.
    """
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    is_added = {
        "bos": fields.get("tokenizer.ggml.add_bos_token", adds_bos),
        "eos": fields.get("tokenizer.ggml.add_eos_token"),
    }
    ids = [
        fields.get(f"tokenizer.ggml.{name}_token_id") if is_added[name] else None
        for name in ("bos", "eos")
    ]
    return _template([(tokens[id_], id_) if id_ is not None else None for id_ in ids])


def _template(around: Iterable[tuple[str, int] | None]) -> dict[str, Any] | None:
    """Return the post-processor that writes a token before and one after each text.

    None: it writes none.
    """
    before, after = ([] if token is None else [token] for token in around)
    if not before and not after:
        return None

    def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [
            {"SpecialToken": {"id": text, "type_id": type_id}} for text, _ in before
        ]
        parts.append({"Sequence": {"id": name, "type_id": type_id}})
        return [*parts, *({"SpecialToken": {"id": text, "type_id": type_id}} for text, _ in after)]

    special = {
        text: {"id": text, "ids": [id_], "tokens": [text]} for text, id_ in [*before, *after]
    }
    pair = [*sequence("A", 0), *sequence("B", 1)]
    return {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": pair,
        "special_tokens": special,
    }


def _metadata(file: mmap) -> dict[str, Any]:
    """Return the keys and values of a GGUF file.

    Raises:
        ValueError, KeyError, OverflowError, struct.error: it is none, or cut off.
    """

    def take(size: int) -> bytes:
        data = file.read(size)
        if len(data) < size:
            raise ValueError("it is cut off")
        return data

    def numbers(format: str, count: int = 1) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{format}")
        return layout.unpack(take(layout.size))

    def string() -> str:
        (size,) = numbers("Q")
        return take(size).decode("utf-8", "replace")

    def value(kind: int) -> Any:
        if kind == _STRING:
            return string()
        if kind != _ARRAY:
            return numbers(_FORMATS[kind])[0]
        (kind,), (count,) = numbers("I"), numbers("Q")
        return (
            [value(kind) for _ in range(count)]
            if kind in (_STRING, _ARRAY)
            else numbers(_FORMATS[kind], count)
        )

    magic, (version,), (_, count) = take(len(_MAGIC)), numbers("I"), numbers("Q", 2)
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError(f"version {version}")
    return {string(): value(numbers("I")[0]) for _ in range(count)}
