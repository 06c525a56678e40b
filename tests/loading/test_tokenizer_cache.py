"""The cache of converted tokenizers: the same ids, never stale, and never in the way."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from build_index.tokenization import load_tokenizer
from rest_store.loading import tokenizer_cache
from rest_store.loading.tokenizer_cache import cache_directory, gguf_tokenizer
from tests.shared.models import conversation, write_gguf

TEXTS = ["def naïve(first):\n    return  first + 2024\n", " <|im_end|> 你好\t", "", "<tool_call> user\n"]
CHAT = [{"role": "user", "content": "What is a suffix array?"}]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def gguf(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    return shutil.copy(original, tmp_path / "model" / "tiny.gguf")


def loaded(path: Path) -> tuple[Any, bool]:
    """Return the tokenizer of a file, and whether it was converted now."""
    converted = False

    def load(place: str, **options: Any) -> Any:
        nonlocal converted
        converted |= "gguf_file" in options
        return AutoTokenizer.from_pretrained(place, **options)

    return gguf_tokenizer(path, load), converted


def entries() -> list[Path]:
    return sorted(path for path in (cache_directory() / "tokenizers").glob("*") if path.is_dir())


def test_a_tokenizer_from_the_cache_is_the_one_converted(gguf: Path) -> None:
    first, was_converted = loaded(gguf)
    again, converted_again = loaded(gguf)
    assert (was_converted, converted_again) == (True, False)
    assert type(again) is type(first)
    assert again.backend_tokenizer.to_str() == first.backend_tokenizer.to_str()
    for text in TEXTS:
        for special in (False, True):
            assert again.encode(text, add_special_tokens=special) == first.encode(text, add_special_tokens=special)
    ids = list(range(len(first)))
    assert again.decode(ids) == first.decode(ids)
    assert again.decode(ids, skip_special_tokens=True) == first.decode(ids, skip_special_tokens=True)
    assert again.apply_chat_template(CHAT, tokenize=False) == first.apply_chat_template(CHAT, tokenize=False)
    assert (again.bos_token, again.eos_token, again.pad_token) == (first.bos_token, first.eos_token, first.pad_token)
    assert again.name_or_path == first.name_or_path == str(gguf.parent)
    assert len(entries()) == 1


def test_the_builder_reads_the_same_from_the_cache(gguf: Path) -> None:
    first, again = load_tokenizer(gguf), load_tokenizer(gguf)
    assert len(entries()) == 1
    assert first.identity == again.identity
    assert first.to_json() == again.to_json()
    assert first.chat_template == again.chat_template
    chat = [conversation("Hi <|im_end|>", "Hello.")]
    assert first.encode_documents(chat)[0].tolist() == again.encode_documents(chat)[0].tolist()


def test_other_content_is_another_entry(gguf: Path) -> None:
    loaded(gguf)
    data = gguf.read_bytes()
    gguf.write_bytes(data.replace(b"<|im_start|>' + message", b"<|im_begin|>' + message"))
    assert loaded(gguf)[1], "another header, in as many bytes"
    gguf.write_bytes(data)
    assert not loaded(gguf)[1]
    (gguf.parent / "tokenizer_config.json").write_text("{}")
    assert loaded(gguf)[1], "another file beside it"
    (gguf.parent / "notes.md").write_text("none of a tokenizer")
    assert not loaded(gguf)[1]
    assert len(entries()) == 3


def test_other_weights_are_the_same_entry(gguf: Path) -> None:
    loaded(gguf)
    data = bytearray(gguf.read_bytes())
    data[-1] ^= 1
    gguf.write_bytes(data)
    assert not loaded(gguf)[1]


def test_another_release_of_a_package_is_another_entry(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(gguf)
    monkeypatch.setattr(tokenizer_cache, "version", lambda package: "99")
    assert loaded(gguf)[1]


@pytest.mark.parametrize("damage", ["change", "truncate", "remove", "add", "checksums", "empty"])
def test_a_damaged_entry_is_made_again(gguf: Path, damage: str) -> None:
    expected = loaded(gguf)[0].encode(TEXTS[0])
    (entry,) = entries()
    file = entry / "tokenizer.json"
    if damage == "change":
        file.write_bytes(file.read_bytes().replace(b'"return"', b'"eturnr"').replace(b'"in"', b'"ni"'))
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "remove":
        file.unlink()
    elif damage == "add":
        (entry / "chat_template.jinja").write_text("other")
    elif damage == "checksums":
        (entry / "checksums.json").write_text("[" * 100_000)
    else:
        shutil.rmtree(entry)
        entry.mkdir()
    again, converted = loaded(gguf)
    assert converted
    assert again.encode(TEXTS[0]) == expected
    assert not loaded(gguf)[1], "it was put right"


def test_a_cache_that_cannot_be_written_is_none(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / ("x" * 300)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        assert loaded(gguf)[0].encode(TEXTS[0])
        assert loaded(gguf)[1]


def test_what_is_not_loaded_as_it_was_converted_is_not_kept(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_cache, "_is_same", lambda one, other: False)
    assert loaded(gguf)[1]
    assert loaded(gguf)[1]
    assert list((cache_directory() / "tokenizers").iterdir()) == [], "nothing is left of it"


def test_a_file_that_is_no_model_raises_what_the_conversion_raises(gguf: Path) -> None:
    for data in (b"", b"GGUF", b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), gguf.read_bytes()[:200]):
        gguf.write_bytes(data)
        assert tokenizer_cache._entry_of(gguf) is None
        with pytest.raises(Exception, match=r".+"):
            loaded(gguf)


def test_the_cache_is_where_the_platform_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "rest-store"
    monkeypatch.setenv("HOME", "/home/somebody")
    for given in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        monkeypatch.setattr("sys.platform", "linux")
        assert cache_directory() == Path("/home/somebody/.cache/rest-store")
        monkeypatch.setattr("sys.platform", "darwin")
        assert cache_directory() == Path("/home/somebody/Library/Caches/rest-store")
