"""Documents for a live datastore as messages, split into requests that a service takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar
from uuid import uuid4

import numpy as np

from rest_store.datastore.validation import IntSequence, document_ids, document_tokens
from rest_store.errors import DocumentError, MessageSizeError, describe
from rest_store.v1 import datastore_pb2 as pb

_REST_BYTES = 4 << 10  # of a request without its documents: name and fingerprint
_HEAD_BYTES = 16  # of a document in a request

T = TypeVar("T")


def new_documents(
    documents: Sequence[IntSequence], ids: Sequence[str] | None, vocabulary_size: int
) -> list[pb.Document]:
    """Return documents as messages, each with an id, so that none is added twice.

    Raises:
        DocumentError: a document is not 1-D integers, or ids are invalid or not one for each.
        TokenRangeError: a token is outside the vocabulary.
    """
    if isinstance(documents, str | bytes) or not isinstance(documents, Sequence | np.ndarray):
        raise DocumentError(describe("add", "documents", f"a {type(documents).__name__}", "a sequence of documents"))
    names = [uuid4().hex for _ in documents] if ids is None else document_ids("add", ids)
    if len(names) != len(documents):
        raise DocumentError(describe("add", "number of ids", len(names), f"{len(documents)}, one for each document"))
    checked = [document_tokens(tokens, place, vocabulary_size) for place, tokens in enumerate(documents)]
    return [
        pb.Document(id=id, tokens=tokens.astype("<i4").tobytes()) for id, tokens in zip(names, checked, strict=True)
    ]


def batches_of(items: Sequence[T], sizes: Sequence[int], most_bytes: int, most: int) -> Iterator[Sequence[T]]:
    """Yield `items` in runs that one request takes.

    Args:
        items: documents or ids.
        sizes: bytes of each.
        most_bytes: largest size of a request.
        most: most items of a request.

    Raises:
        MessageSizeError: one item is larger than a request may be; nothing has been yielded then.
    """
    room = most_bytes - _REST_BYTES
    taken = [size + _HEAD_BYTES for size in sizes]
    for place, size in enumerate(taken):
        if size > room:
            raise MessageSizeError(describe("request", f"size of item {place}", f"{size} bytes", f"at most {room}"))
    start = total = 0
    for place, size in enumerate(taken):
        if place - start == most or total + size > room:
            yield items[start:place]
            start, total = place, 0
        total += size
    if items:
        yield items[start:]
