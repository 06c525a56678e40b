"""The tokenizers that were converted from GGUF files, kept in the user's cache directory.

To convert one takes many seconds. An entry is a directory of `save_pretrained`, named for the file, its size and its
time, those of the tokenizer's files beside it, and the releases of the packages that convert. It is made only if what
is loaded from it is equal to what was converted. An entry that cannot be loaded, or a directory that cannot be written,
is passed over. All of it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("transformers", "tokenizers", "gguf", "sentencepiece", "tiktoken", "mistral-common", "protobuf")
_BESIDE = {".json", ".jinja", ".model", ".txt"}  # what transformers reads beside a GGUF file
_PROPERTIES = (
    *("chat_template", "special_tokens_map", "all_special_ids", "padding_side", "truncation_side", "model_max_length"),
    *("model_input_names", "clean_up_tokenization_spaces", "add_bos_token", "add_eos_token"),
)


def cache_directory() -> Path:
    """Return the directory in which rest-store keeps what can be made again.

    Raises:
        RuntimeError: the user has no home directory.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given.is_absolute():
        return given / "rest-store"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "rest-store"


def gguf_tokenizer(path: Path, load: Callable[..., Any]) -> Any:
    """Return the tokenizer of a GGUF file, from the cache if it is there.

    Args:
        path: the file.
        load: `AutoTokenizer.from_pretrained` of transformers.

    Raises:
        Exception: of `load`, for a file that it cannot convert.
    """
    entry = _entry_of(path)
    with suppress(Exception):  # whatever is wrong with it, it can be made again
        if entry is not None and entry.exists():
            tokenizer = load(str(entry))
            tokenizer.name_or_path = str(path.parent)  # as where it is converted, for messages
            return tokenizer
    tokenizer = load(str(path.parent), gguf_file=path.name)
    if entry is not None:
        with suppress(Exception):
            _keep(tokenizer, entry, load)
    return tokenizer


def _entry_of(path: Path) -> Path | None:
    """Return the place of the entry, or None where there can be none."""
    try:
        beside = [other for other in sorted(path.parent.iterdir()) if other.suffix in _BESIDE and other.is_file()]
        stats = [(str(file.resolve()), file.stat()) for file in (path, *beside)]
        key = [(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats]
        digest = hashlib.sha256(repr((key, list(_releases()))).encode("utf-8", "surrogateescape"))
        return cache_directory() / "tokenizers" / digest.hexdigest()
    except (OSError, RuntimeError):
        return None


def _releases() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield package, version(package)


def _keep(tokenizer: Any, entry: Path, load: Callable[..., Any]) -> None:
    """Make an entry, in one rename, if what is loaded from it is the same tokenizer."""
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=entry.parent, prefix="."))
    try:
        tokenizer.save_pretrained(str(folder))
        if not _is_same(load(str(folder)), tokenizer):
            return
        shutil.rmtree(entry, ignore_errors=True)
        folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_same(first: Any, other: Any) -> bool:
    """Whether two tokenizers of transformers encode, decode and render alike."""
    texts = (json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (first, other))
    properties = ([getattr(tokenizer, name, None) for name in _PROPERTIES] for tokenizer in (first, other))
    return type(first) is type(other) and next(texts) == next(texts) and next(properties) == next(properties)
