"""An open datastore and its exact queries (REST, arXiv 2311.08252, sections 3.1 and 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore import locations
from rest_store.datastore.available_memory import available_bytes
from rest_store.datastore.manifest import FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.mapped_file import MappedFile
from rest_store.datastore.partition import Partition
from rest_store.datastore.render import counted
from rest_store.datastore.shard import Shard
from rest_store.datastore.store import Snapshot, Store
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.errors import DatastoreError

if TYPE_CHECKING:
    from rest_store.service.channel import Tls


@dataclass(frozen=True)
class DatastoreInfo:
    """A description of a datastore.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer that it was built with.
        token_count: tokens of all shards.
        document_count: documents of all shards.
        shard_count: number of shards.
        size: bytes of all shard files.
        built: when its manifest was written.
        manifest: the whole manifest, with provenance and build options.
        partition: whose tokens, documents, shards and bytes these are; None: those of the whole
            datastore.
    """

    path: Path
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime
    manifest: Manifest
    partition: Partition | None


class Datastore(Store):
    """The shards of one directory, mapped into memory. Open one with `Datastore.open`.

    Attributes:
        manifest: of the whole datastore.
        partition: the partition that was opened; None: the whole datastore.

    After a fork, both processes may use it.

    If a file is truncated while it is open, or its disk fails, queries raise
    DatastoreUnavailableError from then on. To notice this, opening installs a handler of SIGBUS,
    which passes other signals on to the handler of another package.

    Thread-safe; queries release the GIL.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        records: Sequence[ShardRecord],
        shards: list[Shard],
        partition: Partition | None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.partition = partition
        self.tokenizer = manifest.tokenizer
        self._records = records
        self._shards = shards
        self._size = sum(file.raw.size for file in self.files)
        self._snapshot = Snapshot.from_views([shard.view for shard in shards], self.vocabulary_size)
        self._built = datetime.fromtimestamp((path / FILE_NAME).stat().st_mtime, timezone.utc)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        tokenizer: object = None,
        partition: Partition | str | None = None,
        cache: str | Path | None = None,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> Datastore:
        """Open the datastore in a directory, or a copy of a remote one.

        This maps the files and validates their structure. Its time and memory do not depend on
        their size. If the datastore is larger than the available memory, only the pages that
        queries touch are read.

        Args:
            path: a directory that `rest-build` wrote, or a location: `HOST:PORT/NAME` or
                `unix:/path#NAME` in a service, or an address with `s3://`, `gs://`, `hf://` or
                `https://`. Of a location, a copy is opened, which is made once for each build.
            tokenizer: the tokenizer in use, with which the datastore must have been built: a
                tokenizer of `transformers` or `tokenizers`, a `tokenizer.json`, a `.gguf` file, a
                directory, a name on the Hugging Face hub, or a `TokenizerIdentity`. None: any.
            partition: such as "2/4" for the second of four partitions. Only the files of its shards
                have to be there. None: the whole datastore.
            cache: directory of copies; None: `rest-store` in `$XDG_CACHE_HOME` or `~/.cache`.
            token: bearer token of the service.
            tls: certificates of the service, as in `DatastoreClient`.

        Raises:
            FetchError: no copy of the location can be made.
            ServiceError: the service refuses; the subclass says why.
            DatastoreError: a file is not valid (FORMAT.md, section 6); the subclass says why.
            ArgumentError: there is no such partition, or there are more partitions than shards.
            TokenizerLoadError: there is no such `tokenizer`.
            TokenizerMismatchError: the datastore was built with another tokenizer.
            NativeKernelError: the kernel was not compiled.
        """
        if locations.is_remote(path):
            copies = locations.default_cache()
            if cache is not None:
                copies = locations.local_directory(cache)
            # Loads gRPC, which datastores on this machine do not need.
            from rest_store.service.client.service_files import fetched

            directory = fetched(str(path), copies, token=token, tls=tls)
        else:
            directory = locations.local_directory(path)
        if isinstance(partition, str):
            partition = Partition.parse(partition)
        manifest = Manifest.read(directory)
        if tokenizer is not None:
            manifest.tokenizer.require_same(identity_of(tokenizer), directory)
        records = manifest.shards
        if partition is not None:
            records = partition.select(records, directory)
        shards = []
        try:
            for record in records:
                shard = Shard.open(directory, record.name)
                record.require_same(ShardRecord.from_shard(record.name, shard), directory)
                shard.require_vocabulary(manifest.tokenizer.vocabulary_size)
                shards.append(shard)
        except DatastoreError:
            if Manifest.read(directory) == manifest:
                raise
            # A build has replaced the datastore meanwhile.
            return cls.open(directory, tokenizer=tokenizer, partition=partition)
        store = cls(directory, manifest, records, shards, partition)
        available = available_bytes()
        if available is not None and store._size > available:
            for shard in shards:
                shard.expect_scattered_reads()
        return store

    def close(self) -> None:
        """Close the datastore; every later query raises DatastoreClosedError. May be called again.

        The files are unmapped once no query and no session uses them.
        """
        self._snapshot = Snapshot.closed(self.path)
        self._shards = []

    @property
    def snapshot(self) -> Snapshot:
        """The shards that queries read."""
        return self._snapshot

    @property
    def shards(self) -> list[Shard]:
        """The shards, in the order of the manifest; empty after `close`."""
        return self._shards

    @property
    def files(self) -> list[MappedFile]:
        """The mapped files that queries read; empty after `close`."""
        files: list[MappedFile] = []
        for shard in self.shards:
            files += [shard.tokens, shard.suffixes]
        return files

    def info(self) -> DatastoreInfo:
        """Return a description of this datastore."""
        return DatastoreInfo(
            path=self.path,
            tokenizer=self.manifest.tokenizer,
            token_count=sum(record.token_count for record in self._records),
            document_count=sum(record.document_count for record in self._records),
            shard_count=len(self._records),
            size=self._size,
            built=self._built,
            manifest=self.manifest,
            partition=self.partition,
        )

    def __repr__(self) -> str:
        info = self.info()
        tokens = counted(info.token_count, "token")
        shards = counted(info.shard_count, "shard")
        partition = "" if self.partition is None else f", partition {self.partition}"
        return f"Datastore({str(self.path)!r}, {tokens}, {shards}{partition})"
