"""A tokenizer is an object, a file, a directory or a name wherever one is asked for."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import PreTokenizer

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tokenizer import identity_of
from rest_store.drafting.session import DraftSession
from rest_store.errors import MissingExtraError, TokenizerLoadError, TokenizerMismatchError
from rest_store.live.live_datastore import LiveDatastore
from rest_store.loading import loaded_tokenizer
from rest_store.loading.loaded_tokenizer import load_tokenizer
from tests.shared.builds import build_quick, write_jsonl
from tests.shared.models import CHATML, byte_level_bpe, word_level, write_gguf
from tests.shared.strategies import refused


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """One tokenizer in all forms."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizers")
    (folder / "plain").mkdir()
    byte_level_bpe().save(str(folder / "plain" / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|im_end|>")
    fast.chat_template = CHATML
    fast.save_pretrained(folder / "directory")
    return {
        "an object of tokenizers": byte_level_bpe(),
        "an object of transformers": fast,
        "a file": folder / "plain" / "tokenizer.json",
        "a file as text": str(folder / "plain" / "tokenizer.json"),
        "a directory with a file alone": folder / "plain",
        "a directory of transformers": folder / "directory",
        "a GGUF file": write_gguf(folder / "model.gguf"),
        "what was loaded": load_tokenizer(folder / "plain"),
    }


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory, tokenizers: dict[str, object]) -> Path:
    folder = tmp_path_factory.mktemp("frozen")
    corpus = write_jsonl(
        folder / "texts.jsonl", ["def add(first, second):\n    return first + second\n"]
    )
    build_quick(corpus, tokenizers["a file"], folder / "ds")
    return folder / "ds"


def test_every_form_is_the_same_tokenizer_everywhere(
    tokenizers: dict[str, Any], frozen: Path, tmp_path: Path
) -> None:
    for form, argument in tokenizers.items():
        assert identity_of(argument) == identity_of(byte_level_bpe()), form
        store = Datastore.open(frozen, tokenizer=argument)
        with LiveDatastore.open(tmp_path / form, tokenizer=argument) as live:
            live.add(["return first + second"])
            assert live.info().token_count > 0, form
            with LiveDatastore.open(tmp_path / form, tokenizer=argument, read_only=True) as reader:
                assert reader.draft([1]) == live.draft([1]), form
            DraftSession([store, live], tokenizer=argument).close()


@pytest.mark.parametrize("wrong", [object(), "absent/tokenizer.json", Path("absent.gguf"), 5])
def test_what_is_no_tokenizer_is_refused_everywhere(
    frozen: Path, tmp_path: Path, wrong: Any
) -> None:
    refused(TokenizerLoadError, lambda: Datastore.open(frozen, tokenizer=wrong))
    refused(TokenizerLoadError, lambda: LiveDatastore.open(tmp_path / "live", tokenizer=wrong))
    refused(TokenizerLoadError, lambda: identity_of(wrong))
    assert not (tmp_path / "live").exists()


def test_another_tokenizer_is_refused_by_its_path(frozen: Path, tmp_path: Path) -> None:
    word_level(9).save(str(tmp_path / "tokenizer.json"))
    actual = f"tokenizer '{tmp_path / 'tokenizer.json'}' is one with a vocabulary of 9"
    refused(
        TokenizerMismatchError,
        lambda: Datastore.open(frozen, tokenizer=tmp_path / "tokenizer.json"),
        actual,
    )


# --- What cannot be loaded ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["absent/tokenizer.json", "./absent", "/absent/model", "a/b/c", "model.gguf", "~/absent/x"],
)
def test_an_absent_path_is_not_looked_up_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(
        TokenizerLoadError,
        lambda: load_tokenizer(name),
        f"{name}: tokenizer is absent, expected a tokenizer.json",
    )


@pytest.mark.parametrize(
    ("content", "actual"),
    [
        (b"{", "tokenizer is a file of another kind (not JSON)"),
        (b"IQ== 0\nIg== 1\n", "tokenizer is a file of another kind (not JSON)"),
        (b"[]", "tokenizer is JSON of another kind (without a 'model')"),
        (
            b'{"config": {"pattern": ""}, "vocab": []}',
            "tokenizer is JSON of another kind (without a 'model')",
        ),
        (b'{"model": {"vocab": {}}}', "tokenizer is refused by tokenizers"),
        (b"\xff\xfe\x00", "tokenizer is a file of another kind"),
        (b"GGUF\x00\x00", "GGUF metadata is damaged"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(
    tmp_path: Path, content: bytes, actual: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    message = refused(TokenizerLoadError, lambda: load_tokenizer(path), f"{path}: {actual}")
    assert "\n" not in message
    assert actual.startswith("GGUF") or f"or else the directory '{tmp_path}'" in message


@pytest.mark.parametrize("content", [b"junk", b"\xff\xfe junk", b"{}"])
def test_a_file_that_is_named_as_gguf_and_is_none_is_said_to_be_none(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refused(
        TokenizerLoadError,
        lambda: load_tokenizer(path),
        "tokenizer is a file of another kind (not GGUF), expected",
    )


def test_a_directory_with_a_file_of_sentencepiece_alone_names_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str, package: str | None = None) -> Any:
        return None if name == "sentencepiece" else find_spec(name, package)

    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", absent)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    actual = (
        "a file of SentencePiece alone ('tokenizer.model'), expected a tokenizer.json, or the"
        " packages that read it: "
    )
    refused(
        TokenizerLoadError,
        lambda: load_tokenizer(tmp_path),
        actual + "pip install sentencepiece protobuf",
    )
    assert capfd.readouterr().err == ""


def test_a_directory_that_needs_its_code_names_the_file_that_does_not(tmp_path: Path) -> None:
    config = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('run')\n")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": config["auto_map"]})
    )
    byte_level_bpe().save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "tokenizer.json"
    refused(TokenizerLoadError, lambda: load_tokenizer(tmp_path), f"; '{file}' can be given alone")
    assert load_tokenizer(file).encoding == identity_of(byte_level_bpe()).encoding


def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(
        TokenizerLoadError, match=r"the tokenizer cannot be read \(Permission denied\)"
    ):
        load_tokenizer(path)


def test_a_directory_that_holds_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    message = refused(
        TokenizerLoadError, lambda: load_tokenizer(tmp_path), "tokenizer is refused by transformers"
    )
    assert "\n" not in message
    assert ": )" not in message, "a line that announces the next one comes with it"


@pytest.mark.parametrize(("content", "actual"), [("{", "not JSON"), ("[]", "a list")])
def test_a_damaged_configuration_is_named(tmp_path: Path, content: str, actual: str) -> None:
    byte_level_bpe().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(content)
    expected = f"tokenizer_config.json: content is {actual}"
    refused(TokenizerLoadError, lambda: load_tokenizer(tmp_path / "tokenizer.json"), expected)


def from_pretrained(monkeypatch: pytest.MonkeyPatch, function: Callable[..., object]) -> None:
    """Have the hub answer what `function` returns."""
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", function)
    monkeypatch.setattr(loaded_tokenizer, "hub_failure", lambda name: None)


def test_a_name_that_the_hub_does_not_know_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, **options: object) -> None:
        assert options == {"trust_remote_code": False, "local_files_only": False}
        raise OSError(f"{name} is not a local folder\nand not a model identifier")

    from_pretrained(monkeypatch, refuse)
    message = refused(
        TokenizerLoadError,
        lambda: load_tokenizer("nobody/nothing"),
        "(nobody/nothing is not a local",
    )
    assert "\n" not in message


def test_a_tokenizer_in_pure_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowTokenizer:
        chat_template = None

    from_pretrained(monkeypatch, lambda name, **_: SlowTokenizer())
    refused(
        TokenizerLoadError,
        lambda: load_tokenizer("owner/slow"),
        "a SlowTokenizer, expected a fast tokenizer",
    )


@pytest.mark.parametrize(
    ("package", "form"), [("tokenizers", "a file"), ("transformers", "owner/name")]
)
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    tokenizers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, package: str, form: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = (
        rf"tokenizer: the package '{package}' is missing, .* pip install 'rest-store\[build\]'"
    )
    with pytest.raises(MissingExtraError, match=message):
        load_tokenizer(tokenizers.get(form, form))


def test_a_tokenizer_that_cannot_be_serialized_is_refused() -> None:
    custom = byte_level_bpe()
    custom.pre_tokenizer = PreTokenizer.custom(object())
    refused(
        TokenizerLoadError,
        lambda: load_tokenizer(custom),
        "tokenizer is a Tokenizer without a tokenizer.json (",
    )
