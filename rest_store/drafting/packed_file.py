"""Files of calibrations and of recycled logits: a first line, one line of JSON, then what zlib has compressed."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from rest_store.errors import RestStoreError, describe


@dataclass(frozen=True)
class PackedFile:
    """A kind of file.

    Attributes:
        name: of what it holds, also its first line.
        payload: name of what is compressed.
        version: written, and the only one that is read.
        fields: of the JSON, besides `version` and `sha256`.
        error: raised for a file that cannot be read or written, is damaged, or was written by another release.
    """

    name: str
    payload: str
    version: int
    fields: tuple[str, ...]
    error: type[RestStoreError]

    def write(self, path: Path, fields: Mapping[str, Any], payload: bytes) -> None:
        """Write a file; `path` holds the old file or the whole new one."""
        packed = zlib.compress(payload, 6)
        head = {**fields, "version": self.version, "sha256": hashlib.sha256(packed).hexdigest()}
        # Unique, since threads may write at the same time; without the name of `path`, which may be as long as can be.
        temporary = path.parent / f".{uuid4().hex}.tmp"
        try:
            temporary.write_bytes(self._first_line + json.dumps(head, sort_keys=True).encode() + b"\n" + packed)
            temporary.replace(path)
        except OSError as error:
            raise self.error(describe(path, self.name, error.strerror, "a writable place")) from error
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, path: Path) -> tuple[dict[str, Any], bytes]:
        """Return the JSON and the payload of a file."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self.error(describe(path, self.name, error.strerror, "a readable file")) from error
        return self.parse(content, path)

    def parse(self, content: bytes, where: object) -> tuple[dict[str, Any], bytes]:
        """Return the JSON and the payload of the content of a file.

        Args:
            content: of the file.
            where: its name, for messages.
        """
        if not content.startswith(self._first_line):
            raise self.error(describe(where, "content", "something else", self.name))
        head, _, packed = content[len(self._first_line) :].partition(b"\n")
        try:
            fields = json.loads(head)
            version, digest, _ = fields["version"], fields["sha256"], [fields[name] for name in self.fields]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.damaged_header(where) from error
        if version != self.version:
            raise self.error(describe(where, "version", version, self.version))
        if hashlib.sha256(packed).hexdigest() != digest:
            raise self.error(describe(where, f"checksum of the {self.payload}", "wrong", digest))
        try:
            return fields, zlib.decompress(packed)
        except zlib.error as error:
            raise self.error(describe(where, self.payload, f"damaged ({error})", "compressed by zlib")) from error

    def damaged_header(self, where: object) -> RestStoreError:
        """Return the error of a file whose JSON is none, or lacks something."""
        return self.error(describe(where, "header", "damaged", "one line of JSON"))

    @property
    def _first_line(self) -> bytes:
        return f"rest-store {self.name}\n".encode()
