"""The tokenizers that were converted from GGUF files, kept in the user's cache directory.

To convert one takes many seconds, and its result depends on nothing but the key: the header of the file, the files of
tokenizers beside it, and the releases of the packages that convert. An entry is a directory of `save_pretrained` with
the checksums of its files. It is made only if what is loaded from it is equal to what was converted. An entry that is
damaged, or a directory that cannot be written, is passed over. All of it may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_CHECKSUMS = "checksums.json"
_PACKAGES = ("transformers", "tokenizers", "gguf", "sentencepiece", "tiktoken", "mistral-common", "protobuf")
_BESIDE = {".json", ".jinja", ".model", ".txt"}  # what transformers reads beside a GGUF file
_LARGEST = 64 << 20  # bytes of a header and of a file beside it
_RELEASES = (2, 3)  # of the GGUF format, which have this layout
_STRING, _ARRAY = 8, 9  # types of values in a GGUF header
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value by its type
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
    if entry is not None and _is_intact(entry):
        with suppress(Exception):  # whatever is wrong with it, it can be made again
            return _named(load(str(entry)), path)
    tokenizer = load(str(path.parent), gguf_file=path.name)
    if entry is not None:
        with suppress(Exception):
            _keep(tokenizer, entry, load)
    return tokenizer


def _entry_of(path: Path) -> Path | None:
    """Return the place of the entry, or None where there can be none."""
    digest = hashlib.sha256()
    try:
        for part in _key(path):
            digest.update(len(part).to_bytes(8, "little") + part)
        return cache_directory() / "tokenizers" / digest.hexdigest()
    except (OSError, RuntimeError, ValueError, KeyError, struct.error):  # RecursionError is a RuntimeError
        return None


def _key(path: Path) -> Iterator[bytes]:
    """Yield all that the conversion depends on."""
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            yield f"{package} {version(package)}".encode()
    with path.open("rb") as file:
        start = file.read(_LARGEST)
    yield start[: _header_size(start)]
    for other in sorted(path.parent.iterdir()):
        if other.suffix in _BESIDE and other.is_file():
            if other.stat().st_size > _LARGEST:
                raise ValueError(f"{other} is too large to be a file of a tokenizer")
            yield other.name.encode("utf-8", "surrogateescape")
            yield other.read_bytes()


def _header_size(data: bytes) -> int:
    """Return the bytes of a GGUF header, tensor names included (gguf-py, docs/gguf.md of ggml).

    Raises:
        ValueError, KeyError, struct.error, RecursionError: it is not one, or longer than `data`.
    """
    magic, release, tensors, entries = struct.unpack_from("<4sIQQ", data)
    if magic != b"GGUF" or release not in _RELEASES:
        raise ValueError("not a GGUF file of these releases")
    place = 24

    def after_string(place: int) -> int:
        return place + 8 + int(struct.unpack_from("<Q", data, place)[0])

    def after_value(place: int, kind: int) -> int:
        if kind == _STRING:
            return after_string(place)
        if kind != _ARRAY:
            return place + _SIZES[kind]
        kind, count = struct.unpack_from("<IQ", data, place)
        place += 12
        if kind in _SIZES:
            return int(place + count * _SIZES[kind])
        for _ in range(count):
            place = after_value(place, kind)
        return place

    for _ in range(entries):
        place = after_string(place)
        place = after_value(place + 4, struct.unpack_from("<I", data, place)[0])
    for _ in range(tensors):
        place = after_string(place)
        place += 4 + 8 * int(struct.unpack_from("<I", data, place)[0]) + 12
    if place > len(data):
        raise ValueError("the header is cut off")
    return place


def _is_intact(entry: Path) -> bool:
    """Whether the files of an entry are those that were written."""
    try:
        recorded = json.loads((entry / _CHECKSUMS).read_bytes())
        return bool(recorded == _checksums(entry))
    except (OSError, ValueError, RecursionError):
        return False


def _checksums(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _CHECKSUMS)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _keep(tokenizer: Any, entry: Path, load: Callable[..., Any]) -> None:
    """Make an entry, in one rename, if what is loaded from it is the same tokenizer."""
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=entry.parent, prefix="."))
    try:
        tokenizer.save_pretrained(str(folder))
        if not _is_same(load(str(folder)), tokenizer):
            return
        (folder / _CHECKSUMS).write_text(json.dumps(_checksums(folder)), encoding="utf-8")
        if not _is_intact(entry):
            shutil.rmtree(entry, ignore_errors=True)
            folder.rename(entry)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_same(first: Any, other: Any) -> bool:
    """Whether two tokenizers of transformers encode, decode and render alike."""
    texts = (json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in (first, other))
    properties = ([getattr(tokenizer, name, None) for name in _PROPERTIES] for tokenizer in (first, other))
    return type(first) is type(other) and next(texts) == next(texts) and next(properties) == next(properties)


def _named(tokenizer: Any, path: Path) -> Any:
    """Return the tokenizer with the name that it has where it is converted, for messages."""
    tokenizer.name_or_path = str(path.parent)
    return tokenizer
