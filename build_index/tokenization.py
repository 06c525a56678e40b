"""Load the target model's tokenizer.

A Hugging Face name or directory is loaded by `transformers`, as generation will load it. A `tokenizer.json` needs only
`tokenizers`; the chat template and special tokens come from `tokenizer_config.json` and `chat_template.jinja` beside
it. A `.gguf` file is read by `transformers` with `gguf`, and what was converted is kept in a cache.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from build_index.chat_template import ChatTemplate, read_template
from build_index.documents import well_formed
from build_index.errors import build_packages, first_line
from build_index.path import local_path
from build_index.target_tokenizer import TargetTokenizer
from rest_store.errors import TokenizerLoadError, describe
from rest_store.loading.hub import hub_failure
from rest_store.loading.tokenizer_cache import gguf_tokenizer

__all__ = ["TargetTokenizer", "load_tokenizer"]

_GGUF_MAGIC = b"GGUF"
_EXPECTED = "a tokenizer.json, a .gguf file, a directory or a Hugging Face name"


def load_tokenizer(tokenizer: Any, *, chat_template: str | None = None) -> TargetTokenizer:
    """Load a tokenizer.

    Args:
        tokenizer: a `tokenizer.json`, a `.gguf` file, a directory with a tokenizer, or a name on the Hugging Face Hub;
            also the `identity.name` of the result. Code that comes with a tokenizer is never run. Or a tokenizer of
            `transformers` or `tokenizers`.
        chat_template: a file with a Jinja template, or its text, instead of the tokenizer's own.

    Raises:
        TokenizerLoadError: there is no such tokenizer, it has no `tokenizer.json` form (as tokenizers in pure Python),
            a package is not installed, or the template cannot be read.
    """
    override = None if chat_template is None else read_template(chat_template)
    if not isinstance(tokenizer, str | os.PathLike):
        return _converted(tokenizer, getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__, override)
    name = os.fspath(tokenizer)
    path = local_path(name)
    try:
        if path.is_file():
            with path.open("rb") as file:
                is_gguf = file.read(len(_GGUF_MAGIC)) == _GGUF_MAGIC
            return _from_gguf(path, name, override) if is_gguf else _from_file(path, name, override)
        if path.is_dir():
            configured = (path / "tokenizer_config.json").is_file() or (path / "config.json").is_file()
            if (path / "tokenizer.json").is_file() and not configured:
                return _from_file(path / "tokenizer.json", name, override)
            return _from_transformers(name, override, lambda load: load(str(path)))
    except OSError as error:
        if isinstance(error, TokenizerLoadError):
            raise
        raise TokenizerLoadError(f"{name}: the tokenizer cannot be read ({error.strerror})") from error
    if _is_path(name):
        raise TokenizerLoadError(describe(name, "tokenizer", "absent", _EXPECTED))
    return _from_hub(name, override)


def _from_file(path: Path, name: str, override: str | None) -> TargetTokenizer:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        problem = "a file of another kind (not UTF-8)"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, "a tokenizer.json or a .gguf file")) from error
    config = _neighbouring_config(path)
    template = override
    if template is None:
        template = _default_template(config.get("chat_template"))
        if (jinja := path.with_name("chat_template.jinja")).is_file():
            template = read_template(os.fspath(jinja))
    special = {key: _token_text(value) for key, value in config.items() if key.endswith("_token")}
    return _assemble(text, name, template, {key: token for key, token in special.items() if token is not None})


def _from_gguf(path: Path, name: str, override: str | None) -> TargetTokenizer:
    with build_packages(name, TokenizerLoadError):
        import gguf  # noqa: F401 - transformers needs it
    return _from_transformers(name, override, lambda load: gguf_tokenizer(path, load))


def _from_hub(name: str, override: str | None) -> TargetTokenizer:
    with build_packages(name, TokenizerLoadError):
        import transformers  # noqa: F401 - it brings the hub's package
    failure = hub_failure(name)
    try:
        return _from_transformers(name, override, lambda load: load(name, local_files_only=failure is not None))
    except TokenizerLoadError as error:
        if failure is None:
            raise
        problem = f"absent here, and the Hugging Face hub cannot be reached ({failure})"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, _EXPECTED)) from error


def _from_transformers(name: str, override: str | None, loaded: Callable[[Callable[..., Any]], Any]) -> TargetTokenizer:
    """Return what `loaded` returns, which is called with `AutoTokenizer.from_pretrained`."""
    with build_packages(name, TokenizerLoadError):
        import transformers
    try:
        tokenizer = loaded(functools.partial(transformers.AutoTokenizer.from_pretrained, trust_remote_code=False))
    except Exception as error:  # errors of repositories, files and the network have no common base
        problem = f"refused by transformers ({first_line(error)})"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, _EXPECTED)) from error
    return _converted(tokenizer, name, override)


def _converted(tokenizer: Any, name: str, override: str | None) -> TargetTokenizer:
    """Return a tokenizer of `transformers` or `tokenizers` as ours."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        problem = f"a {type(tokenizer).__name__} without tokenizer.json"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, "a fast tokenizer"))
    template = _default_template(getattr(tokenizer, "chat_template", None)) if override is None else override
    named = getattr(tokenizer, "special_tokens_map", {})
    special = {key: str(token) for key, token in named.items() if isinstance(token, str)}
    return _assemble(backend.to_str(), name, template, special)


def _assemble(tokenizer_json: str, name: str, template: str | None, special: Mapping[str, str]) -> TargetTokenizer:
    compiled = None if template is None else ChatTemplate(template, special, name)
    return TargetTokenizer(tokenizer_json, well_formed(name), compiled)


def _neighbouring_config(path: Path) -> dict[str, Any]:
    """Return `tokenizer_config.json` beside a `tokenizer.json`; empty if there is none."""
    config_path = path.with_name("tokenizer_config.json")
    if not config_path.is_file():
        return {}
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerLoadError(describe(config_path, "content", f"not JSON ({error})", "a JSON object")) from error
    if not isinstance(config, dict):
        raise TokenizerLoadError(describe(config_path, "content", f"a {type(config).__name__}", "a JSON object"))
    return config


def _default_template(template: object) -> str | None:
    """Return the template itself, or the one named "default" of several (a mapping, or a list of name and template)."""
    if isinstance(template, list):
        named = (entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default")
        template = next(named, {}).get("template")
    elif isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _token_text(value: object) -> str | None:
    """Return the text of a token in `tokenizer_config.json`: a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _is_path(name: str) -> bool:
    """Whether this is a path, not a name on the Hub (`name` or `owner/name`)."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".json", ".gguf", ".model", "/"))
