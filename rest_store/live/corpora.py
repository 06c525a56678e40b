"""Corpora into a live datastore: read and tokenized as a build does, added in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from build_index.documents import Document, batches
from build_index.duplicates import content_digest
from build_index.target_tokenizer import TargetTokenizer
from rest_store.live.added import AddedDocuments
from rest_store.live.live_datastore import LiveDatastore


@dataclass(frozen=True)
class Added:
    """A batch that was read and added.

    Attributes:
        ids: of the documents that are in the datastore now, with those that were there already.
        tokens: their tokens.
        without_tokens: documents that were left out, since they have none.
    """

    ids: AddedDocuments
    tokens: int
    without_tokens: int


def add_corpora(
    live: LiveDatastore, corpora: Iterable[Iterable[Document]], tokenizer: TargetTokenizer
) -> Iterator[Added]:
    """Add the documents of corpora; yield each batch when it is durable.

    The id of a document is made of its content: one that is there already is not added again, and an interrupted call
    can be made again.

    Args:
        live: opened for writing.
        corpora: what to read.
        tokenizer: the datastore's.

    Raises:
        DocumentError: a document is too large.
        CorpusError: a corpus cannot be read, here and below after some batches were added.
        LiveDatastoreError: as `LiveDatastore.add`.
    """
    documents = (document for corpus in corpora for document in corpus)
    for batch in batches(documents):
        encoded = zip(batch, tokenizer.encode_documents(batch), strict=True)
        tokens = {i: some for i, (_, some) in enumerate(encoded) if len(some)}
        ids = live.add(list(tokens.values()), [content_digest(batch[i]).hex() for i in tokens])
        yield Added(ids, sum(map(len, tokens.values())), len(batch) - len(ids))
