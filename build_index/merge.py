"""One datastore of several: their shards are linked or copied, not sorted again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_index.build_plan import program
from build_index.errors import output_errors
from build_index.staging import Staging, final_place, shard_name
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.errors import BuildError, MixedBuildError, describe

_FILES = ("tokens", "suffixes")  # of a shard


def merge(datastores: Sequence[Path], out: Path) -> Manifest:
    """Put the shards of several datastores into one, which answers as if it had been built of all their documents.

    Documents that are in several of them count as often as they are there. Files are linked where that is possible: a
    linked file takes no further space, and what damages it damages both datastores.

    Args:
        datastores: directories of at least two, built with one tokenizer.
        out: directory of the new datastore; an old datastore there is replaced when the new one is complete.

    Returns:
        The manifest of the new datastore.

    Raises:
        DatastoreError: one of them cannot be opened; MixedBuildError: two have a shard in common.
        TokenizerMismatchError: they have different tokenizers.
        BuildError: there are fewer than two.
        OutputError: the new one cannot be written, or something else is at its place.
    """
    if len(datastores) < 2:
        raise BuildError(describe("merge", "the number of datastores", len(datastores), "at least 2"))
    final_place(out)
    manifests = [_checked(path) for path in datastores]
    for path, manifest in zip(datastores[1:], manifests[1:], strict=True):
        manifests[0].tokenizer.require_same(manifest.tokenizer, str(path))
    _require_distinct(datastores, manifests)
    with Staging(out) as staging:
        staging.start()
        records: list[ShardRecord] = []
        for path, manifest in zip(datastores, manifests, strict=True):
            for record in manifest.shards:
                name = shard_name(len(records))
                for kind in _FILES:
                    _place(path / f"{record.name}.{kind}", staging.datastore / f"{name}.{kind}")
                records.append(replace(record, name=name))
        digest = _copy_tokenizer(datastores, manifests, staging)
        corpora = tuple(corpus for manifest in manifests for corpus in manifest.corpora)
        options = {"merged": [build for manifest in manifests for build in _merged_options(manifest)]}
        merged = Manifest(program(), manifests[0].tokenizer, tuple(records), corpora, options, digest)
        staging.write(MANIFEST_NAME, merged.to_json())
        staging.put_in_place()
    return merged


def _checked(path: Path) -> Manifest:
    """Return the manifest of a datastore whose files are all there and fit it."""
    with Datastore.open(path) as store:
        return store.manifest


def _merged_options(manifest: Manifest) -> list[Any]:
    """Return the options of each build that is in a datastore: one level, however often it was merged."""
    merged = manifest.options.get("merged")
    return merged if isinstance(merged, list) else [manifest.options]


def _require_distinct(datastores: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    owners: dict[str, int] = {}
    for number, (path, manifest) in enumerate(zip(datastores, manifests, strict=True)):
        for record in manifest.shards:
            if (owner := owners.setdefault(record.tokens_sha256, number)) != number:
                found = f"also in {datastores[owner]}"
                raise MixedBuildError(describe(path, record.name, found, "in one of the datastores"))


def _copy_tokenizer(datastores: Sequence[Path], manifests: Sequence[Manifest], staging: Staging) -> str | None:
    """Copy the first `tokenizer.json` there is; return its SHA-256."""
    for path, manifest in zip(datastores, manifests, strict=True):
        if manifest.tokenizer_sha256 is not None and (path / TOKENIZER_FILE_NAME).is_file():
            _place(path / TOKENIZER_FILE_NAME, staging.datastore / TOKENIZER_FILE_NAME)
            return manifest.tokenizer_sha256
    return None


def _place(source: Path, target: Path) -> None:
    with output_errors(target):
        try:
            os.link(source, target)
        except OSError:  # another file system, or one without links
            with source.open("rb") as read, target.open("xb") as written:
                shutil.copyfileobj(read, written, 1 << 20)
                written.flush()
                os.fsync(written.fileno())
