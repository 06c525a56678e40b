"""`manifest.json`: what a datastore is, from what it was built, and which files belong to it (FORMAT.md, section 5)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.datastore.header import FORMAT_VERSION, MAX_VOCABULARY
from rest_store.datastore.shard import Shard
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreNotFoundError, FormatVersionError, ManifestError, MixedBuildError, describe

FILE_NAME = "manifest.json"
TOKENIZER_FILE_NAME = "tokenizer.json"
_FORMAT = "rest-store"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # no directories, nothing hidden, nothing that a file system refuses


@dataclass(frozen=True)
class ShardRecord:
    """What the manifest says of one shard; sizes in bytes, checksums in hexadecimal digits of SHA-256."""

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
        """Return the record of an opened shard."""
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

    def require_same(self, found: ShardRecord, where: Path) -> None:
        """Raise MixedBuildError unless the shard opened at `where` is the one that this record describes."""
        for what, expected in vars(self).items():
            value = getattr(found, what)
            if value != expected:
                raise MixedBuildError(describe(where / self.name, what.replace("_", " "), value, expected))


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        created_by: program and version.
        tokenizer: identity of the tokenizer.
        shards: one record each, in the order of their names.
        corpora: provenance, one JSON object for each corpus.
        options: build options that shape the content, a JSON object.
    """

    created_by: str
    tokenizer: TokenizerIdentity
    shards: tuple[ShardRecord, ...]
    corpora: tuple[dict[str, Any], ...]
    options: dict[str, Any]

    @property
    def token_count(self) -> int:
        """Tokens of all shards."""
        return sum(shard.token_count for shard in self.shards)

    @property
    def document_count(self) -> int:
        """Documents of all shards."""
        return sum(shard.document_count for shard in self.shards)

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
        return json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of the datastore in `directory`.

        Raises:
            DatastoreNotFoundError: no directory, or no manifest in it.
            FormatVersionError: of a version that this release cannot read.
            ManifestError: not JSON, or a field is absent or of the wrong type.
        """
        where = directory / FILE_NAME
        try:
            text = where.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            what = "no manifest.json in it" if directory.is_dir() else "no such directory"
            raise DatastoreNotFoundError(describe(directory, "datastore", f"absent ({what})", "a built one")) from None
        except UnicodeDecodeError as error:
            raise ManifestError(describe(where, "encoding", f"not UTF-8 ({error})", "UTF-8")) from None
        except OSError as error:
            raise ManifestError(describe(where, "file", f"unreadable ({error.strerror})", "a readable file")) from None
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ManifestError(describe(where, "content", f"not JSON ({error})", "a JSON object")) from None
        return cls._from_fields(fields, where)

    @classmethod
    def _from_fields(cls, fields: object, where: Path) -> Manifest:
        if not isinstance(fields, dict) or fields.get("format") != _FORMAT:
            found = fields.get("format") if isinstance(fields, dict) else type(fields).__name__
            raise ManifestError(describe(where, "format", repr(found), repr(_FORMAT)))
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
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


def _shard(fields: object, where: Path) -> ShardRecord:
    if not isinstance(fields, dict):
        raise ManifestError(describe(where, "shard", type(fields).__name__, "an object"))
    kinds = {"name": str, "tokens_sha256": str, "suffixes_sha256": str}
    record = ShardRecord(
        **{what: _field(fields, what, kinds.get(what, int), where) for what in ShardRecord.__match_args__}
    )
    if _NAME.fullmatch(record.name) is None:
        expected = "a file name of letters, digits, '-', '_' and '.'"
        raise ManifestError(describe(where, "shard name", ascii(record.name), expected))
    return record


def _field(fields: dict[str, Any], name: str, kind: type, where: Path) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        found = "absent" if name not in fields else type(value).__name__
        raise ManifestError(describe(where, name, found, kind.__name__))
    return value
