"""Corpora into a live datastore: read and tokenized as a build does, added in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from build_index.documents import BATCH_CHARACTERS, BATCH_DOCUMENTS, Document, batches
from build_index.duplicates import content_digest
from build_index.encoder import Tokens
from build_index.target_tokenizer import TargetTokenizer
from rest_store.errors import DocumentError, describe
from rest_store.live.live_datastore import LiveDatastore


@dataclass
class Added:
    """What was read and added.

    Attributes:
        documents: documents that are in the datastore now, those that were there already included.
        tokens: their tokens.
        without_tokens: documents that were left out, since they have none.
    """

    documents: int = 0
    tokens: int = 0
    without_tokens: int = 0


def add_corpora(
    live: LiveDatastore,
    corpora: Sequence[Iterable[Document]],
    tokenizer: TargetTokenizer,
    ids: Sequence[str] = (),
    progress: Callable[[Added, Sequence[str]], None] = lambda added, batch_ids: None,
) -> Added:
    """Add the documents of corpora; each batch is durable when the next is read.

    Args:
        live: opened for writing.
        corpora: what to read.
        tokenizer: the datastore's.
        ids: one for each document, in order. Empty: an id made of the content, so that a document that is there already
            is not added again, and an interrupted call can be made again.
        progress: called after each batch, with what was added so far and the ids of the batch, one for each document.

    Raises:
        DocumentError: another number of ids than of documents, and nothing was added; or a document is too large.
        CorpusError: a corpus cannot be read, here and below after some batches were added.
        LiveDatastoreError: as `LiveDatastore.add`.
    """
    documents: Iterable[Document] = chain.from_iterable(corpora)
    if ids:
        documents = list(documents)
        if len(documents) != len(ids):
            raise DocumentError(describe("add", "number of ids", len(ids), f"{len(documents)}, one for each document"))
    added = Added()
    names = iter(ids)
    for batch in batches(documents, BATCH_CHARACTERS, BATCH_DOCUMENTS):
        encoded = tokenizer.encode_documents(batch)
        keys = [next(names) for _ in batch] if ids else [content_digest(document).hex() for document in batch]
        entries: list[tuple[str, Tokens]] = [
            (id, tokens) for id, tokens in zip(keys, encoded, strict=True) if len(tokens)
        ]
        batch_ids = live.add([tokens for _, tokens in entries], [id for id, _ in entries])
        added.documents += len(entries)
        added.tokens += sum(len(tokens) for _, tokens in entries)
        added.without_tokens += len(batch) - len(entries)
        progress(added, batch_ids)
    return added
