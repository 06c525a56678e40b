"""From documents of callers to records: texts are tokenized, tokens are validated and encoded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rest_store.datastore.durable_files import sync
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.shard import encode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence, document_tokens, epoch_number, label
from rest_store.errors import ArgumentError, DocumentError, StorageError, TokenizerLoadError
from rest_store.live.records import DocumentRecord, id_digest

if TYPE_CHECKING:
    from build_index.target_tokenizer import TargetTokenizer

_MAX_DOCUMENT_TOKENS = 1 << 24


class TextEncoder:
    """Tokenizes texts with the tokenizer that is stored beside the documents. Thread-safe.

    Args:
        identity: identity of the datastore's tokenizer.
        directory: the directory of the datastore.
    """

    def __init__(self, identity: TokenizerIdentity, directory: Path) -> None:
        self._identity = identity
        self._directory = directory

    def encode(self, documents: Sequence[IntSequence | str]) -> list[IntSequence]:
        """Return `documents` with tokens in place of texts.

        Raises:
            TokenizerLoadError: there is a text, and no tokenizer that can encode it.
            TokenizerMismatchError: the stored tokenizer is not the datastore's.
        """
        texts = [document for document in documents if isinstance(document, str)]
        encoded = iter(self._tokenizer.encode_batch(texts) if texts else ())
        tokens: list[IntSequence] = []
        for document in documents:
            tokens.append(next(encoded) if isinstance(document, str) else document)
        return tokens

    @functools.cached_property
    def _tokenizer(self) -> TargetTokenizer:
        from build_index.tokenization import load_tokenizer

        path = self._directory / TOKENIZER_FILE_NAME
        if not path.is_file():
            raise TokenizerLoadError(
                f"{path}: there is no tokenizer to encode text with; add token ids instead"
            )
        tokenizer = load_tokenizer(path)
        self._identity.require_same(tokenizer.identity, self._directory)
        return tokenizer


def require_document(
    document: IntSequence, index: int, vocabulary_size: int, max_tokens: int | None = None
) -> npt.NDArray[np.integer]:
    """Return the tokens of a document that is valid.

    Args:
        document: a token sequence.
        index: its place among the documents of the call, for messages.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        max_tokens: the most tokens that the namespace keeps; None: no limit.

    Raises:
        DocumentError, QueryError: as in `LiveDatastore.add`.
    """
    max_size = min(_MAX_DOCUMENT_TOKENS, max_tokens or _MAX_DOCUMENT_TOKENS)
    tokens = document_tokens(document, index, vocabulary_size, expected="1-D integers or text")
    if tokens.size > max_size:
        raise DocumentError(
            f"add: document {index} has {tokens.size} tokens, expected at most {max_size}"
        )
    return tokens


def encode_documents(
    documents: Sequence[IntSequence],
    ids: Sequence[str],
    *,
    namespace: str,
    group: str | Sequence[str],
    epoch: int | Sequence[int],
    vocabulary_size: int,
    max_tokens: int | None,
) -> list[DocumentRecord]:
    """Validate documents, and return their records without numbers and times.

    Args:
        documents: token sequences.
        ids: a valid id for each document.
        namespace: a valid namespace.
        group: as in `LiveDatastore.add`.
        epoch: as in `LiveDatastore.add`.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        max_tokens: the most tokens that the namespace keeps; None: no limit.

    Raises:
        DocumentError, QueryError, ArgumentError: as in `LiveDatastore.add`.
    """
    labels = document_labels(group, epoch, len(documents))
    records = []
    for index, document in enumerate(documents):
        id = ids[index]
        own_group, own_epoch = labels[index]
        tokens = require_document(document, index, vocabulary_size, max_tokens)
        records.append(
            DocumentRecord(
                number=0,
                namespace=namespace,
                digest=id_digest(id, namespace),
                added=0.0,
                group=own_group,
                epoch=own_epoch,
                symbols=encode_symbols(tokens, vocabulary_size),
            )
        )
    return records


def document_labels(
    group: str | Sequence[str], epoch: int | Sequence[int], count: int
) -> list[tuple[str, int]]:
    """Return the group and the epoch of each of `count` documents.

    Args:
        group: a group for all documents, or one for each.
        epoch: an epoch for all documents, or one for each.
        count: the number of documents.

    Raises:
        DocumentError: a group is invalid, or there is not one for each document.
        ArgumentError: an epoch is invalid, or there is not one for each document.
    """
    groups = group if isinstance(group, list | tuple) else [group] * count
    epochs = epoch if isinstance(epoch, list | tuple) else [epoch] * count
    if len(groups) != count:
        raise DocumentError(f"add: there are {len(groups)} groups, expected {count}")
    if len(epochs) != count:
        raise ArgumentError(f"add: there are {len(epochs)} epochs, expected {count}")
    return [
        (label("add", "a group", own_group), epoch_number(own_epoch))
        for own_group, own_epoch in zip(groups, epochs, strict=True)
    ]


def store_tokenizer(tokenizer_json: str | None, directory: Path) -> None:
    """Store the serialization of a tokenizer in `directory`, for encoding text.

    Args:
        tokenizer_json: the serialization; None: there is none.
        directory: the directory of the datastore.

    Raises:
        StorageError: it cannot be written.
    """
    path = directory / TOKENIZER_FILE_NAME
    try:
        path.unlink(missing_ok=True)  # an earlier creation may have been killed
        if tokenizer_json is not None:
            path.write_text(tokenizer_json, encoding="utf-8")
            sync(path)
            sync(directory)
    except OSError as error:
        raise StorageError(
            f"{directory}: the tokenizer cannot be written ({error.strerror})"
        ) from error
