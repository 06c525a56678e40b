"""A live datastore as it is now, as a frozen one."""

from __future__ import annotations

from pathlib import Path

from build_index.build_plan import program, text_sha256
from build_index.staging import Staging, shard_name
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard
from rest_store.errors import CorpusError, describe
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.namespace import Namespace
from rest_store.live.segment import write_shard


def export(live: LiveDatastore | Namespace, out: Path) -> Datastore:
    """Write the documents that queries of `live` see now as a
    frozen datastore, each segment as a shard.

    Args:
        live: opened for reading or writing, or a namespace of it; others may go on adding to it.
        out: directory of the datastore; an old datastore there is replaced when the new one is
            complete.

    Returns:
        The datastore, opened.

    Raises:
        CorpusError: there are no documents.
        OutputError: something else is at `out`, or another process builds there.
        StorageError: a shard cannot be written.
        DatastoreFormatError: the files of a segment have been damaged since they were opened.
    """
    views = [view for view in live.snapshot.views if view.entry_count]
    if not views:
        raise CorpusError(describe(live.path, "live datastore", "empty", "one with documents"))
    with Staging(out) as staging:
        staging.start()
        records = []
        for number, view in enumerate(views):
            for file in view.files:  # new checksums would fit what is wrong
                file.require_tail()
                file.require_checksum()
            name = shard_name(number)
            write_shard(view, staging.datastore, name, live.vocabulary_size, durable=True)
            records.append(ShardRecord.from_shard(name, Shard.open(staging.datastore, name)))
        stored = live.path / TOKENIZER_FILE_NAME
        tokenizer = stored.read_text(encoding="utf-8") if stored.is_file() else None
        digest = None
        if tokenizer is not None:
            staging.write(TOKENIZER_FILE_NAME, tokenizer)
            digest = text_sha256(tokenizer)
        count = sum(record.document_count for record in records)
        corpus = {"corpus": str(live.path), "reader": "live", "documents": count}
        manifest = Manifest(program(), live.tokenizer, tuple(records), (corpus,), {}, digest)
        staging.write(MANIFEST_NAME, manifest.to_json())
        staging.put_in_place()
    return Datastore.open(out)
