"""Loading a tokenizer from an object, a file, a directory, or a name on the Hugging Face hub.

A `tokenizer.json` and most `.gguf` files need only `tokenizers`. A directory of `transformers` and
a name on the hub are loaded by `transformers`, as generation will load them.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.errors import TokenizerLoadError, describe, first_line
from rest_store.extras import named_extras
from rest_store.loading.encoding_sample import tokenizer_digest
from rest_store.loading.gguf_tokenizer import gguf_tokenizer, is_gguf
from rest_store.loading.hub import hub_failure
from rest_store.loading.local_path import local_path

_EXPECTED = "a tokenizer.json, a .gguf file, a directory or a Hugging Face name"


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer.

    Attributes:
        name: the user's name or path of it.
        json: its serialization, as `tokenizers` writes it to a `tokenizer.json`.
        chat_template: the Jinja text that renders conversations; None: it has none.
        special_tokens: texts of its named special tokens, such as `eos_token`.
        encoding: a hash of its tokens of some texts (`sample_digest`); None: not known.
    """

    name: str
    json: str
    chat_template: str | None
    special_tokens: Mapping[str, str]
    encoding: str | None = None


@named_extras("tokenizer")
def load_tokenizer(tokenizer: object) -> LoadedTokenizer:
    """Load a tokenizer.

    Args:
        tokenizer: a `tokenizer.json` (the chat template and the special tokens are in
            `tokenizer_config.json` and `chat_template.jinja` beside it), a `.gguf` file, a
            directory with a tokenizer, or a name on the Hugging Face hub. Code that comes with a
            tokenizer is never run. Or a tokenizer of `transformers` or `tokenizers`; a
            `LoadedTokenizer` is returned as it is.

    Raises:
        TokenizerLoadError: there is no such tokenizer, or it has no `tokenizer.json` form, as those
            in pure Python.
        MissingExtraError: a package is not installed.
    """
    if isinstance(tokenizer, LoadedTokenizer):
        return tokenizer
    if not isinstance(tokenizer, str | os.PathLike):
        return _serialized(
            tokenizer, str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
        )
    name = os.fspath(tokenizer)
    if not name:  # which would be the working directory
        raise TokenizerLoadError(describe("tokenizer", "name", "empty", _EXPECTED))
    path = local_path(name)
    try:
        if path.is_file():
            return _from_gguf(path, name) if is_gguf(path) else _from_file(path, name)
        if path.is_dir():
            is_configured = (path / "tokenizer_config.json").is_file() or (
                path / "config.json"
            ).is_file()
            if (path / "tokenizer.json").is_file() and not is_configured:
                return _from_file(path / "tokenizer.json", name)
            _require_sentencepiece(path, name)
            return _from_transformers(name, str(path))
    except OSError as error:
        if isinstance(error, TokenizerLoadError):
            raise
        raise TokenizerLoadError(
            f"{name}: the tokenizer cannot be read ({error.strerror})"
        ) from error
    if _is_path(name):
        raise TokenizerLoadError(describe(name, "tokenizer", "absent", _EXPECTED))
    return _from_hub(name)


def _from_file(path: Path, name: str) -> LoadedTokenizer:
    import tokenizers

    expected = f"a tokenizer.json or a .gguf file, or else the directory '{path.parent}'"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        kind = "not GGUF" if path.suffix == ".gguf" else "not UTF-8"
        raise TokenizerLoadError(
            describe(name, "tokenizer", f"a file of another kind ({kind})", expected)
        ) from None
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises Exception itself
        problem = _other_kind(text, path) or f"refused by tokenizers ({first_line(error)})"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, expected)) from error
    config = _neighbouring_config(path)
    template = _default_template(config.get("chat_template"))
    if (jinja := path.with_name("chat_template.jinja")).is_file():
        try:
            template = jinja.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise TokenizerLoadError(
                describe(jinja, "chat template", "not UTF-8", "a UTF-8 text file")
            ) from None
    named = {key: _token_text(value) for key, value in config.items() if key.endswith("_token")}
    special = {key: token for key, token in named.items() if token is not None}
    serialized = str(backend.to_str())
    return LoadedTokenizer(
        name, serialized, template, special, tokenizer_digest(backend, serialized)
    )


def _from_gguf(path: Path, name: str) -> LoadedTokenizer:
    direct = gguf_tokenizer(path)
    if direct is None:
        import gguf  # noqa: F401 - transformers needs it

        return _from_transformers(name, str(path.parent), gguf_file=path.name)
    return LoadedTokenizer(name, direct.json, direct.chat_template, direct.special_tokens)


def _from_hub(name: str) -> LoadedTokenizer:
    failure = hub_failure(name)
    try:
        return _from_transformers(name, name, local_files_only=failure is not None)
    except TokenizerLoadError as error:
        if failure is None:
            raise
        problem = f"absent here, and the Hugging Face hub cannot be reached ({failure})"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, _EXPECTED)) from error


def _from_transformers(name: str, location: str, **options: Any) -> LoadedTokenizer:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=False, **options)
    except Exception as error:  # errors of repositories, files and the network have no common base
        problem = f"refused by transformers ({first_line(error)})"
        file = Path(location) / "tokenizer.json"
        expected = f"{_EXPECTED}; '{file}' can be given alone" if file.is_file() else _EXPECTED
        raise TokenizerLoadError(describe(name, "tokenizer", problem, expected)) from error
    return _serialized(tokenizer, name)


def _require_sentencepiece(directory: Path, name: str) -> None:
    """Raise TokenizerLoadError if a directory needs the package SentencePiece, which is absent."""
    if (directory / "tokenizer.json").is_file() or importlib.util.find_spec(
        "sentencepiece"
    ) is not None:
        return
    for path in sorted(directory.glob("*.model")):
        with path.open("rb") as file:
            # Its first field; files of tiktoken are lines of base64.
            is_sentencepiece = file.read(1) == b"\n"
        if is_sentencepiece:
            problem = f"a file of SentencePiece alone ('{path.name}')"
            expected = (
                "a tokenizer.json, or the packages that read it: pip install sentencepiece protobuf"
            )
            raise TokenizerLoadError(describe(name, "tokenizer", problem, expected))


def _other_kind(text: str, path: Path) -> str:
    """Return the kind of a file that is no tokenizer.json; empty if it may be one."""
    if path.suffix == ".gguf":
        return "a file of another kind (not GGUF)"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "a file of another kind (not JSON)"
    return (
        ""
        if isinstance(value, dict) and "model" in value
        else "JSON of another kind (without a 'model')"
    )


def _serialized(tokenizer: object, name: str) -> LoadedTokenizer:
    """Return a tokenizer object of `transformers` or `tokenizers`."""
    kind = type(tokenizer).__name__
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    serialize = getattr(backend, "to_str", None) or getattr(backend, "to_json", None)
    if not callable(serialize):
        raise TokenizerLoadError(
            describe(name, "tokenizer", f"a {kind}", "a fast tokenizer (with a tokenizer.json)")
        )
    try:
        text = str(serialize())
    except (
        Exception
    ) as error:  # of `tokenizers`, which has no class of its own: a part is written in Python
        actual = f"a {kind} without a tokenizer.json ({error})"
        raise TokenizerLoadError(
            describe(name, "tokenizer", actual, "one that can be serialized")
        ) from error
    named = getattr(tokenizer, "special_tokens_map", {})
    special = {key: str(token) for key, token in named.items() if isinstance(token, str)}
    template = _default_template(getattr(tokenizer, "chat_template", None))
    return LoadedTokenizer(name, text, template, special, tokenizer_digest(backend, text))


def _neighbouring_config(path: Path) -> dict[str, Any]:
    """Return `tokenizer_config.json` beside a `tokenizer.json`; empty if there is none."""
    config_path = path.with_name("tokenizer_config.json")
    if not config_path.is_file():
        return {}
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerLoadError(
            describe(config_path, "content", f"not JSON ({error})", "a JSON object")
        ) from error
    if not isinstance(config, dict):
        raise TokenizerLoadError(
            describe(config_path, "content", f"a {type(config).__name__}", "a JSON object")
        )
    return config


def _default_template(template: object) -> str | None:
    """Return a template; of several (a mapping, or a list of names), the one named "default"."""
    if isinstance(template, list):
        named = (
            entry
            for entry in template
            if isinstance(entry, dict) and entry.get("name") == "default"
        )
        template = next(named, {}).get("template")
    elif isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _token_text(value: object) -> str | None:
    """Return a token's text in `tokenizer_config.json`: a string, or an object's `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _is_path(name: str) -> bool:
    """Return whether this is a path, not a name on the hub (`name` or `owner/name`)."""
    return (
        name.startswith((".", "/", "~"))
        or name.count("/") > 1
        or name.endswith((".json", ".gguf", ".model", "/"))
    )
