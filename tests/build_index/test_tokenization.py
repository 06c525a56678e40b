"""Loading tokenizers, and the rule that only a template's control tokens are control tokens."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from build_index import target_tokenizer
from build_index.documents import Document
from build_index.tokenization import TargetTokenizer, load_tokenizer
from rest_store.datastore.tokenizer import identity_of
from rest_store.errors import TokenizerLoadError
from tests.shared.models import (
    CHATML,
    byte_level_bpe,
    decoded,
    installed_file,
    rendered,
    unigram,
    word_level,
    word_piece,
)

# --- Loading --------------------------------------------------------------------------------------


def test_a_tokenizer_json_is_loaded_without_transformers(byte_level_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    loaded = load_tokenizer(byte_level_file)
    assert loaded.identity == identity_of(byte_level_bpe())
    assert loaded.identity.name == str(byte_level_file)
    assert loaded.chat_template is None


def test_the_template_and_special_tokens_beside_a_tokenizer_json_are_used(tmp_path):
    byte_level_bpe().save(str(tmp_path / "tokenizer.json"))
    config = {
        "chat_template": [
            {
                "name": "default",
                "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
            }
        ]
    }
    config |= {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "pad_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert rendered(loaded, "hi") == "<|im_start|>hi<|im_end|>"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}")
    assert rendered(load_tokenizer(tmp_path / "tokenizer.json"), "hi") == "user"


@pytest.mark.parametrize(
    "templates",
    [
        [
            {"name": ["x"], "template": "x"},
            7,
            {"name": "default", "template": "{{ messages[0].role }}"},
        ],
        {"default": "{{ messages[0].role }}", "tool_use": "x"},
    ],
    ids=["a list with strange names", "a mapping"],
)
def test_of_several_templates_the_default_one_is_used(byte_level_file, tmp_path, templates):
    (tmp_path / "tokenizer.json").write_bytes(byte_level_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert rendered(load_tokenizer(tmp_path / "tokenizer.json"), "hi") == "user"


def test_a_template_that_is_not_utf8_is_refused(byte_level_file, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(byte_level_file.read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes("café".encode("latin-1"))
    with pytest.raises(
        TokenizerLoadError, match=r"chat_template\.jinja: chat template is not UTF-8"
    ):
        load_tokenizer(tmp_path)


def test_a_directory_is_loaded_by_transformers_and_renders_as_transformers_does(tmp_path, chat):
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token="<|im_end|>"
    )
    fast.chat_template = CHATML + "{{ eos_token }}"
    fast.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    turns = [
        ("system", " be brief "),
        ("user", "What is a suffix array?"),
        ("assistant", "Sorted\n\npositions."),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    expected = fast.apply_chat_template(messages, return_dict=False)
    assert loaded.encode_documents([Document(messages=tuple(turns))])[0].tolist() == expected
    assert identity_of(fast) == loaded.identity == chat.identity


@pytest.mark.slow
def test_mistrals_vocabulary_of_131072_tokens_is_loaded(tmp_path):
    path = installed_file("mistral_common", "data/tekken_240911.json")
    converter = pytest.importorskip("transformers.integrations.mistral.tokenizer")
    converter.convert_tekken_tokenizer(str(path)).backend_tokenizer.save(
        str(tmp_path / "tokenizer.json")
    )
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    text = "def naïve(): return '你好世界' </s>"
    tokens = loaded.encode(text)
    assert loaded.identity.vocabulary_size == 131072
    assert tokens.dtype == np.uint32
    assert tokens.max() > 65535
    assert decoded(loaded, tokens) == text
    assert not set(tokens.tolist()) & set(loaded.identity.special_tokens.values())


@pytest.mark.parametrize(
    ("size", "dtype"), [(65535, np.uint16), (65536, np.uint32), (70_000, np.uint32)]
)
def test_tokens_are_as_wide_as_the_vocabulary_needs(size, dtype):
    loaded = TargetTokenizer(word_level(size).to_str(), "words")
    tokens = loaded.encode(f"w1 w{size - 1} w{size}")
    assert tokens.tolist() == [1, size - 1, 0]
    assert tokens.dtype == dtype


# --- Texts ----------------------------------------------------------------------------------------


def with_bos_in_merges() -> Tokenizer:
    """BPE whose merges build the text of a control token, as conversions from SentencePiece can."""
    vocab = {"<s>": 0, "<": 1, "s": 2, ">": 3, "<s": 4, "a": 5}
    fields = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocab, "merges": ["< s", "<s >"], "unk_token": "<s>"},
    }
    tokenizer = Tokenizer.from_str(json.dumps(fields))
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    return tokenizer


CASES = {
    "BPE": (byte_level_bpe, "<|im_end|>", "a<|im_end|> b <|im_end|>"),
    "BPE with merges": (with_bos_in_merges, "<s>", "a<s>a<s>"),
    "WordPiece": (word_piece, "[SEP]", "def [SEP] add[SEP]"),
    "Unigram": (unigram, "</s>", "def </s> add</s>"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_of_a_control_token_in_a_document_is_text(case):
    make, control, text = CASES[case]
    original = make()
    id_ = original.token_to_id(control)
    assert id_ in original.encode(text, add_special_tokens=False).ids  # the error that would occur
    tokens = TargetTokenizer(original.to_str(), case).encode(text)
    assert id_ not in tokens.tolist()
    assert len(tokens) > 4


def test_the_text_of_an_added_token_that_is_no_control_token_is_that_token(chat):
    id_ = chat.identity.added_tokens["<tool_call>"]
    assert chat.encode("<tool_call>").tolist() == [id_]


def test_documents_are_tokenized_as_the_tokenizer_does(chat):
    texts = [
        "def add(first, second):\n    return first\n",
        "",
        "naïve café 你好",
        "  \n\n",
        "x" * 50,
    ]
    reference = byte_level_bpe()
    assert [tokens.tolist() for tokens in chat.encode_batch(texts)] == [
        reference.encode(text).ids for text in texts
    ]
    assert all(decoded(chat, chat.encode(text)) == text for text in texts)
    assert chat.encode("").dtype == np.uint16


def test_no_control_token_is_added_by_a_post_processor():
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level_bpe()
    without = tokenizer.encode("for i in range").ids
    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    assert TargetTokenizer(tokenizer.to_str(), "x").encode("for i in range").tolist() == without


def test_padding_truncation_and_dropout_have_no_effect():
    plain = byte_level_bpe()
    tokenizer = byte_level_bpe()
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(3)
    tokenizer.model.dropout = 0.9
    loaded = TargetTokenizer(tokenizer.to_str(), "x")
    text = "for i in range(10): print(i)"
    assert loaded.encode(text).tolist() == plain.encode(text).ids
    assert loaded.to_json() == TargetTokenizer(plain.to_str(), "y").to_json()
    assert Tokenizer.from_str(loaded.to_json()).encode(text).ids == plain.encode(text).ids


def test_lone_surrogates_are_replaced(chat):
    assert decoded(chat, chat.encode("a\ud800b")) == "a\ufffdb"
    assert decoded(chat, chat.encode("\ud83d\ude00")) == "\U0001f600"


def test_long_texts_are_encoded_in_pieces_at_line_ends_and_in_several_batches(chat, monkeypatch):
    lines = "".join(f"for i in range({number}):\n" for number in range(200))
    texts = [lines, "x" * 1000, "", "print(i)"]
    whole = [tokens.tolist() for tokens in chat.encode_batch(texts)]
    monkeypatch.setattr(target_tokenizer, "PIECE_CHARACTERS", 300)
    monkeypatch.setattr(target_tokenizer, "BATCH_CHARACTERS", 700)
    assert max(map(len, target_tokenizer.split_text(lines))) <= 300
    pieces = chat.encode_batch(texts)
    assert pieces[0].tolist() == whole[0]
    assert pieces[2].tolist() == []
    assert pieces[3].tolist() == whole[3]
    assert [decoded(chat, tokens) for tokens in pieces] == texts


# --- Showing tokens -------------------------------------------------------------------------------


def test_token_text_shows_what_a_token_adds_to_a_text(chat):
    text = "for i in range(10):\n    print('naïve')"
    assert "".join(chat.token_text(token) for token in chat.encode(text)[:6].tolist()) in text
    assert chat.token_text(chat.encode(" range").tolist()[0]).startswith(" ")
    assert chat.token_text(chat.identity.special_tokens["<|im_end|>"]) == "<|im_end|>"
    assert chat.token_text(chat.encode("你").tolist()[0]) == "\ufffd"


def test_token_text_keeps_the_space_that_decoders_drop_at_the_beginning():
    loaded = TargetTokenizer(unigram().to_str(), "x")
    tokens = loaded.encode("ab c").tolist()
    assert [loaded.token_text(token) for token in tokens[1:]] == ["a", "b", " ", "c"]


def test_an_id_without_token_is_shown_by_its_number():
    fields = json.loads(word_level(3).to_str())
    fields["model"]["vocab"]["w9"] = 9
    assert TargetTokenizer(json.dumps(fields), "x").token_text(5) == "<5>"
