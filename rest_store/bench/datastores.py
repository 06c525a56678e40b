"""Datastores for measuring: opened by name, and smaller ones made of the documents of others."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id
from rest_store.datastore.manifest import FILE_NAME, TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard, TokensFile, TokensWriter, write_suffixes
from rest_store.errors import RecordingError, describe
from rest_store.live.opening import open_store

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore

Document = npt.NDArray[np.integer]


def open_datastores(paths: Sequence[Path]) -> dict[str, Datastore | LiveDatastore]:
    """Return datastores, frozen or live, by the names of their folders; by their paths where several have one name.

    Raises:
        RecordingError: a datastore is named twice.
        TokenizerMismatchError: they were built with different tokenizers.
    """
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RecordingError(describe("--datastore", "datastore", f"{path} twice", "each one once"))
    names = [path.name for path in resolved]
    stores = {
        name if names.count(name) == 1 else str(path): open_store(path) for name, path in zip(names, paths, strict=True)
    }
    opened = list(stores.values())
    for store in opened[1:]:
        opened[0].tokenizer.require_same(store.tokenizer, store.path)
    return stores


def thinned(source: Path, out: Path, share: float) -> Path:
    """Write a datastore of `share` (0..1) of the tokens of `source`: whole documents, evenly spread, in one shard."""
    store = Datastore.open(source)

    def documents() -> Iterator[Document]:
        seen = kept = 0
        for document in documents_of(store, store.manifest.token_count):
            if kept <= share * seen:
                kept += document.size
                yield document
            seen += document.size

    return write_datastore(store, out, documents())


def documents_of(store: Datastore, tokens: int) -> Iterator[Document]:
    """Yield documents in order until they hold `tokens` tokens; the last may be cut."""
    separator = separator_id(store.vocabulary_size)
    for shard in store.shards:
        symbols = shard.tokens.symbols()
        start = 0
        for end in np.flatnonzero(symbols == separator).tolist():
            document = symbols[start : min(end, start + tokens)]
            start = end + 1
            tokens -= document.size
            if document.size:
                yield document
            if tokens <= 0:
                return


def write_datastore(like: Datastore, out: Path, documents: Iterable[Document], shard_tokens: int = 1 << 29) -> Path:
    """Write `documents` as a datastore with the tokenizer of `like`; whatever lies at `out` is replaced.

    Args:
        like: the datastore whose tokenizer and provenance are taken over.
        out: the directory.
        documents: token ids of each document.
        shard_tokens: a shard ends with the document that reaches so many tokens.

    Returns:
        `out`.
    """
    from build_index.suffix_array import suffix_array

    building = out.with_name(out.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    records: list[ShardRecord] = []
    writer: TokensWriter | None = None

    def finish_shard(writer: TokensWriter) -> None:
        name = writer.path.stem
        writer.close()
        tokens = TokensFile.open(writer.path)
        order = suffix_array(tokens.payload.reshape(-1, tokens.header.width), vocabulary_size=like.vocabulary_size)
        write_suffixes(building / f"{name}.suffixes", tokens, order)
        records.append(ShardRecord.of(name, Shard.open(building, name)))

    for document in documents:
        if writer is None:
            writer = TokensWriter(building / f"shard-{len(records):05d}.tokens", like.vocabulary_size)
        writer.append(document)
        if writer.position_count - writer.document_count >= shard_tokens:
            finish_shard(writer)
            writer = None
    if writer is not None:
        finish_shard(writer)
    of = like.manifest
    manifest = Manifest("rest-store bench", of.tokenizer, tuple(records), of.corpora, {}, of.tokenizer_sha256)
    kept_tokenizer = like.path / TOKENIZER_FILE_NAME
    if kept_tokenizer.exists():
        shutil.copy(kept_tokenizer, building)
    (building / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    building.rename(out)
    return out
