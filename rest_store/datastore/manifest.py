"""`manifest.json`: tokenizer, files, provenance and build options (FORMAT.md, section 5)."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rest_store.datastore.header import FORMAT_VERSION
from rest_store.datastore.mapped_file import regular_file
from rest_store.datastore.shard import Shard
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreFormatError, DatastoreNotFoundError, describe

FILE_NAME = "manifest.json"
TOKENIZER_FILE_NAME = "tokenizer.json"
DOCUMENTS_FILE_NAME = "documents.sqlite"  # of a live datastore, which has no manifest
MAX_SIZE = 1 << 25  # bytes: some 70,000 shards
_FORMAT = "rest-store"
_OWN_CHECKSUM = "manifest_sha256"
# No directories, no hidden files, valid on every file system.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


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
    def from_shard(cls, name: str, shard: Shard) -> ShardRecord:
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
        """Raise DatastoreFormatError unless `actual`, of a shard in directory `where`, is equal."""
        for what, expected in vars(self).items():
            value = getattr(actual, what)
            if value != expected:
                raise DatastoreFormatError(
                    "mixed builds",
                    describe(where / self.name, what.replace("_", " "), value, str(expected)[:64]),
                )


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`.

    Attributes:
        created_by: program and version.
        tokenizer: identity of the tokenizer.
        shards: one record each, in the order of their names.
        corpora: provenance, one JSON object for each corpus.
        options: build options that affect the content, a JSON object.
        tokenizer_sha256: SHA-256 of `tokenizer.json`, in hexadecimal; None if there is none.
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
        """Identifier of this build: "sha256:" and the SHA-256 of the text of the file."""
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
        blank = "0" * 64
        fields[_OWN_CHECKSUM] = blank
        text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
        return text.replace(
            f'\n  "{_OWN_CHECKSUM}": "{blank}"', f'\n  "{_OWN_CHECKSUM}": "{digest}"'
        )

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read the manifest of the datastore in `directory`.

        Raises:
            DatastoreNotFoundError: no directory, no manifest in it, or a live datastore.
            DatastoreFormatError: this release cannot read its version; or it is not JSON, or a
                field is absent or of the wrong type; or it was changed since it was written.
        """
        return cls.parse(_content(directory), directory / FILE_NAME)

    @classmethod
    def parse(cls, content: bytes, where: object) -> Manifest:
        """Read a manifest from the content of its file.

        Args:
            content: of the file.
            where: the file, for messages.

        Raises:
            DatastoreFormatError: as `read`.
        """
        if len(content) > MAX_SIZE:
            raise DatastoreFormatError(
                "manifest",
                describe(where, "size", f"more than {MAX_SIZE} bytes", f"at most {MAX_SIZE}"),
            )
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DatastoreFormatError(
                "manifest", describe(where, "content", f"not JSON ({error})", "a JSON object")
            ) from None
        actual = fields.get("format") if isinstance(fields, dict) else type(fields).__name__
        if actual != _FORMAT:
            raise DatastoreFormatError(
                "manifest", describe(where, "format", reprlib.repr(actual), repr(_FORMAT))
            )
        version = fields.get("format_version")
        if version != FORMAT_VERSION:
            raise DatastoreFormatError(
                "version", describe(where, "format version", reprlib.repr(version), FORMAT_VERSION)
            )
        expected: str = _field(fields, _OWN_CHECKSUM, str, where)
        actual = hashlib.sha256(content.replace(expected.encode("ascii"), b"0" * 64)).hexdigest()
        if actual != expected:
            raise DatastoreFormatError(
                "checksum", describe(where, "SHA-256 of the content", actual, expected)
            )
        return cls._from_fields(fields, where)

    @classmethod
    def _from_fields(cls, fields: dict[str, Any], where: object) -> Manifest:
        tokenizer_sha256 = None
        if "tokenizer_sha256" in fields:
            tokenizer_sha256 = _field(fields, "tokenizer_sha256", str, where)
        manifest = cls(
            created_by=_field(fields, "created_by", str, where),
            tokenizer=TokenizerIdentity.from_manifest(fields.get("tokenizer"), where),
            shards=tuple(_shard(shard, where) for shard in _field(fields, "shards", list, where)),
            corpora=tuple(_field(fields, "corpora", list, where)),
            options=_field(fields, "options", dict, where),
            tokenizer_sha256=tokenizer_sha256,
        )
        if not manifest.shards:
            raise DatastoreFormatError(
                "manifest", describe(where, "number of shards", 0, "at least 1")
            )
        return manifest


def _content(directory: Path) -> bytes:
    """Return the bytes of the manifest in `directory`."""
    where = directory / FILE_NAME
    try:
        with regular_file(where) as file:
            return file.read(MAX_SIZE + 1)
    except (FileNotFoundError, NotADirectoryError):
        if (directory / DOCUMENTS_FILE_NAME).is_file():
            expected = (
                "a frozen one; open it with LiveDatastore or serve --live, or freeze it with"
                " rest-store live export"
            )
            raise DatastoreNotFoundError(
                describe(directory, "datastore", "a live one", expected)
            ) from None
        if directory.is_file():
            actual = "a file of one" if (directory.parent / FILE_NAME).is_file() else "a file"
            raise DatastoreNotFoundError(
                describe(directory, "datastore", actual, "its directory")
            ) from None
        what = "no manifest.json in it" if directory.is_dir() else "no such directory"
        raise DatastoreNotFoundError(
            describe(directory, "datastore", f"absent ({what})", "a built one")
        ) from None
    except OSError as error:
        raise DatastoreFormatError(
            "manifest", describe(where, "file", f"unreadable ({error.strerror})", "a readable file")
        ) from None


def _shard(fields: object, where: object) -> ShardRecord:
    if not isinstance(fields, dict):
        raise DatastoreFormatError(
            "manifest", describe(where, "shard", type(fields).__name__, "an object")
        )
    record = ShardRecord(
        name=_field(fields, "name", str, where),
        position_count=_field(fields, "position_count", int, where),
        token_count=_field(fields, "token_count", int, where),
        document_count=_field(fields, "document_count", int, where),
        tokens_size=_field(fields, "tokens_size", int, where),
        tokens_sha256=_field(fields, "tokens_sha256", str, where),
        suffixes_size=_field(fields, "suffixes_size", int, where),
        suffixes_sha256=_field(fields, "suffixes_sha256", str, where),
    )
    if _NAME.fullmatch(record.name) is None:
        expected = "a file name of letters, digits, '-', '_' and '.'"
        raise DatastoreFormatError(
            "manifest", describe(where, "shard name", reprlib.repr(record.name), expected)
        )
    return record


def _field(fields: dict[str, Any], name: str, kind: type, where: object) -> Any:
    value = fields.get(name)
    if not isinstance(value, kind):
        actual = "absent" if name not in fields else type(value).__name__
        raise DatastoreFormatError("manifest", describe(where, name, actual, kind.__name__))
    return value
