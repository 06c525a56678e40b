"""Freezing a live datastore: `export`."""

from __future__ import annotations

from pathlib import Path

from build_index.build_plan import program, text_sha256
from build_index.staging import Staging, shard_name
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard, ShardView
from rest_store.errors import CorpusError
from rest_store.live.namespace import Namespace
from rest_store.live.segment import sorted_view, write_shard


def export(live: Namespace, out: Path) -> Datastore:
    """Write the documents that queries of `live` see now as a frozen datastore.

    Each segment becomes a shard, and is sorted for it: where documents were deleted, the suffixes
    of a segment are not in the order of FORMAT.md.

    Args:
        live: a live datastore, or a namespace of one. Other threads and processes may go on adding
            to it.
        out: the directory of the frozen datastore. An old datastore there is replaced when the new
            one is complete.

    Returns:
        The datastore, opened.

    Raises:
        CorpusError: there are no documents.
        OutputError: something else is at `out`, or another process builds there.
        StorageError: a shard cannot be written.
        DatastoreFormatError: files of a segment have been damaged since they were opened.
        MemoryError: there is not enough memory to sort a segment, about 12 to 18 bytes a token.
    """
    views = [view for view in live.snapshot.views if view.entry_count]
    if not views:
        raise CorpusError(f"{live.path}: the live datastore has no documents to export")
    with Staging(out) as staging:
        staging.start()
        shards = []
        for number, view in enumerate(views):
            _require_undamaged(view)
            name = shard_name(number)
            write_shard(
                sorted_view(view), staging.datastore, name, live.vocabulary_size, durable=True
            )
            shards.append(ShardRecord.from_shard(name, Shard.open(staging.datastore, name)))
        tokenizer_sha256 = None
        tokenizer_path = live.path / TOKENIZER_FILE_NAME
        if tokenizer_path.is_file():
            tokenizer_json = tokenizer_path.read_text(encoding="utf-8")
            staging.write(TOKENIZER_FILE_NAME, tokenizer_json)
            tokenizer_sha256 = text_sha256(tokenizer_json)
        corpus = {
            "corpus": str(live.path),
            "reader": "live",
            "documents": sum(shard.document_count for shard in shards),
        }
        manifest = Manifest(
            program(), live.tokenizer, tuple(shards), (corpus,), {}, tokenizer_sha256
        )
        staging.write(MANIFEST_NAME, manifest.to_json())
        staging.put_in_place()
    return Datastore.open(out)


def _require_undamaged(view: ShardView) -> None:
    """Raise DatastoreFormatError if the files of a segment have been damaged since.

    The new files get new checksums, which would fit the damage.
    """
    for file in view.files:
        file.require_tail()
        file.require_checksum()
