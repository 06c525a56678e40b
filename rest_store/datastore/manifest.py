"""`manifest.json`: tokenizer, files, provenance and build options of a datastore (FORMAT.md, section 5)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from rest_store.datastore.header import FORMAT_VERSION, MAX_VOCABULARY
from rest_store.datastore.regular_file import open_regular
from rest_store.datastore.shard import Shard
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import (
    ChecksumError,
    DatastoreNotFoundError,
    FormatVersionError,
    ManifestError,
    MixedBuildError,
    describe,
)

FILE_NAME = "manifest.json"
TOKENIZER_FILE_NAME = "tokenizer.json"
DOCUMENTS_FILE_NAME = "documents.sqlite"  # of a live datastore, which has no manifest
MAX_SIZE = 1 << 25  # bytes: some 70,000 shards
MAX_DEPTH = 64  # of nested objects and lists
FIELDS_WITHOUT_CHECKSUM = {  # of manifests before they had a checksum of their own
    *("format", "format_version", "created_by", "tokenizer", "token_count", "document_count"),
    *("shards", "corpora", "options", "prepared"),
}
_FORMAT = "rest-store"
OWN_CHECKSUM = "manifest_sha256"
_SURROGATE = re.compile("[\ud800-\udfff]")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no directories, no hidden files, valid on every file system


@dataclass(frozen=True)
class ShardRecord:
    """The manifest's record of one shard; sizes in bytes, SHA-256 checksums in hexadecimal."""

    name: str
    position_count: int
    token_count: int
    document_count: int
    tokens_size: int
    tokens_sha256: str
    suffixes_size: int
    suffixes_sha256: str

    @classmethod
    def of(cls, name: str, shard: Shard) -> ShardRecord:
        """Return the record of an open shard."""
        header = shard.tokens.header
        return cls(
            name=name,
            position_count=header.position_count,
            token_count=header.token_count,
            document_count=header.document_count,
            tokens_size=shard.tokens.raw.size,
            tokens_sha256=header.sha256.hex(),
            suffixes_size=shard.suffixes.raw.size,
            suffixes_sha256=shard.suffixes.header.sha256.hex(),
        )

    def require_same(self, actual: ShardRecord, where: Path) -> None:
        """Raise MixedBuildError unless `actual`, the record of the shard in directory `where`, equals this one."""
        for what, expected in vars(self).items():
            value = getattr(actual, what)
            if value != expected:
                raise MixedBuildError(describe(where / self.name, what.replace("_", " "), value, str(expected)[:64]))


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        created_by: program and version.
        tokenizer: identity of the tokenizer.
        shards: one record each, in the order of their names.
        corpora: provenance, one JSON object for each corpus.
        options: build options that affect the content, a JSON object.
        tokenizer_sha256: SHA-256 of `tokenizer.json`, in hexadecimal; None if there is none, or the builder is older
            than this field.
    """

    created_by: str
    tokenizer: TokenizerIdentity
    shards: tuple[ShardRecord, ...]
    corpora: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    tokenizer_sha256: str | None = None

    @property
    def token_count(self) -> int:
        """Tokens of all shards."""
        return sum(shard.token_count for shard in self.shards)

    @property
    def document_count(self) -> int:
        """Documents of all shards."""
        return sum(shard.document_count for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """What tells this build from others: "sha256:" and the SHA-256 of the text of its file."""
        return "sha256:" + hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()

    def to_json(self) -> str:
        """Return the text of the file; equal for equal manifests."""
        fields = {
            "format": _FORMAT,
            "format_version": FORMAT_VERSION,
            "created_by": self.created_by,
            "tokenizer": self.tokenizer.to_manifest(),
            "token_count": self.token_count,
            "document_count": self.document_count,
            "shards": [vars(shard) for shard in self.shards],
            "corpora": list(self.corpora),
            "options": self.options,
        }
        if self.tokenizer_sha256 is not None:
            fields["tokenizer_sha256"] = self.tokenizer_sha256
        return sealed(fields)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of the datastore in `directory`.

        Raises:
            DatastoreNotFoundError: no directory, no manifest in it, or a live datastore.
            FormatVersionError: this release cannot read its version.
            ManifestError: it is not JSON, or a field is absent or of the wrong type.
            ChecksumError: it was changed since it was written.
        """
        return cls._from_fields(read_fields(directory), directory / FILE_NAME)

    @classmethod
    def _from_fields(cls, fields: object, where: Path) -> Manifest:
        if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
            found = fields.get("format") if isinstance(fields, dict) else type(fields).__name__
            raise ManifestError(describe(where, "format", _shortened(repr(found)), repr(_FORMAT)))
        version = _shortened(fields.get("format_version"))
        if fields.get("format_version") != FORMAT_VERSION:
            raise FormatVersionError(describe(where, "format version", version, FORMAT_VERSION))
        corpora = _field(fields, "corpora", list, where)
        if not all(isinstance(corpus, dict) for corpus in corpora):
            raise ManifestError(describe(where, "corpora", "not a list of objects", "a list of objects"))
        manifest = cls(
            created_by=_field(fields, "created_by", str, where),
            tokenizer=TokenizerIdentity.from_manifest(fields.get("tokenizer"), where),
            shards=tuple(_shard(shard, where) for shard in _field(fields, "shards", list, where)),
            corpora=tuple(corpora),
            options=_field(fields, "options", dict, where),
            tokenizer_sha256=_digest(fields, "tokenizer_sha256", where),
        )
        if not manifest.shards:
            raise ManifestError(describe(where, "number of shards", 0, "at least 1"))
        names = [shard.name for shard in manifest.shards]
        if len(set(names)) != len(names):
            found = f"{len(set(names))} for {len(names)} shards"
            raise ManifestError(describe(where, "number of distinct shard names", found, "one for each shard"))
        size = manifest.tokenizer.vocabulary_size
        if not 1 <= size <= MAX_VOCABULARY:
            raise ManifestError(describe(where, "vocabulary size", size, f"1..{MAX_VOCABULARY}"))
        for what in ("token_count", "document_count"):
            found, expected = _field(fields, what, int, where), getattr(manifest, what)
            if found != expected:
                raise ManifestError(describe(where, what.replace("_", " "), found, f"{expected}, the sum over shards"))
        return manifest


def sealed(fields: dict[str, Any]) -> str:
    """Return the text of a manifest with `fields` and its own checksum (FORMAT.md, section 5)."""
    blank = "0" * 64
    text = json.dumps({**fields, OWN_CHECKSUM: blank}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return text.replace(f'\n  "{OWN_CHECKSUM}": "{blank}"', f'\n  "{OWN_CHECKSUM}": "{digest}"')


def read_fields(directory: Path) -> object:
    """Read the JSON of the manifest in `directory` and verify its own checksum, if it has one.

    Raises:
        DatastoreNotFoundError: no directory, no manifest in it, or a live datastore.
        ManifestError: it is not JSON: not UTF-8, too large, too deep, a key twice, or a number that is not finite.
        ChecksumError: it was changed since it was written.
    """
    where = directory / FILE_NAME
    try:
        with open_regular(where) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_SIZE:
                raise ManifestError(describe(where, "size", f"{size} bytes", f"at most {MAX_SIZE}"))
            content = file.read(size)
    except (FileNotFoundError, NotADirectoryError):
        if (directory / DOCUMENTS_FILE_NAME).is_file():
            expected = "a frozen one; open it with LiveDatastore, or freeze it with rest-store live export"
            raise DatastoreNotFoundError(describe(directory, "datastore", "a live one", expected)) from None
        what = "no manifest.json in it" if directory.is_dir() else "no such directory"
        raise DatastoreNotFoundError(describe(directory, "datastore", f"absent ({what})", "a built one")) from None
    except OSError as error:
        raise ManifestError(describe(where, "file", f"unreadable ({error.strerror})", "a readable file")) from None
    try:
        fields = json.loads(
            content.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_not_finite, parse_float=_finite
        )
    except UnicodeDecodeError as error:
        raise ManifestError(describe(where, "encoding", f"not UTF-8 ({error})", "UTF-8")) from None
    except (ValueError, RecursionError) as error:
        raise ManifestError(describe(where, "content", f"not JSON ({error})", "a JSON object")) from None
    _require_writable(fields, where)
    digest = _digest(fields, OWN_CHECKSUM, where) if isinstance(fields, dict) else None
    if digest is not None:
        found = hashlib.sha256(content.replace(digest.encode("ascii"), b"0" * 64)).hexdigest()
        if found != digest:
            raise ChecksumError(describe(where, "SHA-256 of the content", found, digest))
    return fields


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {_shortened(ascii(twice))} is given twice")
    return fields


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{_shortened(text)} is not a finite number")


def _finite(text: str) -> float:
    return number if math.isfinite(number := float(text)) else _not_finite(text)


def _require_writable(fields: object, where: Path) -> None:
    """Refuse what could not be written again: text that is not Unicode, and deep nesting."""
    level = [fields]
    for _ in range(MAX_DEPTH + 1):
        objects = [value for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        for text in [*level, *(key for value in objects for key in value)]:
            if isinstance(text, str) and _SURROGATE.search(text):
                raise ManifestError(describe(where, "a text", _shortened(ascii(text)), "Unicode characters"))
        level = [inner for value in objects for inner in value.values()] + [inner for value in lists for inner in value]
        if not level:
            return
    raise ManifestError(describe(where, "nesting", f"deeper than {MAX_DEPTH}", "at most that"))


def _shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _digest(fields: dict[str, Any], name: str, where: Path) -> str | None:
    """Return an optional field that holds a SHA-256 in hexadecimal."""
    if name not in fields:
        return None
    value: str = _field(fields, name, str, where)
    if _DIGEST.fullmatch(value) is None:
        raise ManifestError(describe(where, name, _shortened(ascii(value)), "64 hexadecimal digits"))
    return value


def _shard(fields: object, where: Path) -> ShardRecord:
    if not isinstance(fields, dict):
        raise ManifestError(describe(where, "shard", type(fields).__name__, "an object"))
    kinds = {"name": str, "tokens_sha256": str, "suffixes_sha256": str}
    record = ShardRecord(
        **{what: _field(fields, what, kinds.get(what, int), where) for what in ShardRecord.__match_args__}
    )
    if _NAME.fullmatch(record.name) is None:
        expected = "a file name of letters, digits, '-', '_' and '.'"
        raise ManifestError(describe(where, "shard name", _shortened(ascii(record.name)), expected))
    return record


def _field(fields: dict[str, Any], name: str, kind: type, where: Path) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        found = "absent" if name not in fields else type(value).__name__
        raise ManifestError(describe(where, name, found, kind.__name__))
    if isinstance(value, int) and not 0 <= value < 1 << 63:
        raise ManifestError(describe(where, name, _shortened(value), "0..2^63 - 1"))
    return value
