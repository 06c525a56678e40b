"""What is added to a live datastore: documents are checked, tokenized if they are text, and encoded."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import numpy as np

from rest_store.datastore.durable import put
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.shard import encode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence, document_ids, document_tokens, label, limit
from rest_store.errors import DocumentError, StorageError, TokenizerLoadError, describe
from rest_store.live.directory import PART_NAME

if TYPE_CHECKING:
    from build_index.target_tokenizer import TargetTokenizer

_LARGEST = 1 << 24  # tokens of a document


class NewDocument(NamedTuple):
    """A document to be added.

    Attributes:
        id: of the document.
        symbols: its tokens as a tokens file has them.
        group: as in `Document`.
        epoch: as in `Document`.
    """

    id: str
    symbols: bytes
    group: str = ""
    epoch: int = 0


class Encoder:
    """Checks and encodes documents for one datastore. Thread-safe.

    Args:
        tokenizer: identity of the datastore's.
        directory: of the datastore.
    """

    def __init__(self, tokenizer: TokenizerIdentity, directory: Path) -> None:
        self._identity = tokenizer
        self._directory = directory

    def encode(
        self,
        documents: Sequence[IntSequence | str],
        ids: Sequence[str] | None,
        group: str,
        epoch: int,
        max_tokens: int | None,
    ) -> list[NewDocument]:
        """Return `documents` with their ids; raises what `LiveDatastore.add` says of invalid ones.

        Args:
            documents: as in `LiveDatastore.add`, as are `ids`, `group` and `epoch`.
            ids: of them.
            group: of all.
            epoch: of all.
            max_tokens: that are kept; a document is no larger.
        """
        is_sequence = isinstance(documents, Sequence | np.ndarray) and not isinstance(documents, str | bytes)
        if not is_sequence or getattr(documents, "ndim", 1) == 0:
            raise DocumentError(
                describe("add", "documents", f"a {type(documents).__name__}", "a sequence of documents")
            )
        names = [uuid4().hex for _ in documents] if ids is None else document_ids("add", ids)
        if len(names) != len(documents):
            raise DocumentError(describe("add", "ids", f"{len(names)} ids", f"{len(documents)}, one for each document"))
        texts = [document for document in documents if isinstance(document, str)]
        encoded = iter(self._tokenizer.encode_batch(texts) if texts else [])
        tokens = [next(encoded) if isinstance(document, str) else document for document in documents]
        labels = label("add", "a group", group), limit("epoch", epoch, 2**62, least=0, where="add")
        most = min(_LARGEST, max_tokens or _LARGEST)
        return [NewDocument(names[i], self._symbols(document, i, most), *labels) for i, document in enumerate(tokens)]

    @functools.cached_property
    def _tokenizer(self) -> TargetTokenizer:
        from build_index.tokenization import load_tokenizer

        path = self._directory / TOKENIZER_FILE_NAME
        if not path.is_file():
            raise TokenizerLoadError(
                describe(path, "tokenizer", "absent", "there to encode text; add token ids instead")
            )
        loaded = load_tokenizer(path)
        self._identity.require_same(loaded.identity, self._directory)
        return loaded

    def _symbols(self, document: IntSequence, index: int, most: int) -> bytes:
        """Return the tokens of document `index`, `most` at most, as a tokens file has them."""
        tokens = document_tokens(document, index, self._identity.vocabulary_size, expected="1-D integers or text")
        if tokens.size > most:
            what = f"the size of document {index}"
            raise DocumentError(describe("add", what, f"{tokens.size} tokens", f"at most {most}"))
        return encode_symbols(tokens, self._identity.vocabulary_size)


def store_tokenizer(tokenizer_json: str | None, directory: Path) -> None:
    """Store the serialization of a tokenizer in `directory`, for encoding text; None: there is none.

    Raises:
        StorageError: it cannot be written.
    """
    path, part = directory / TOKENIZER_FILE_NAME, directory / PART_NAME
    try:
        path.unlink(missing_ok=True)  # of a datastore that was being begun
        if tokenizer_json is not None:
            part.write_text(tokenizer_json, encoding="utf-8")
            put(part, path)
    except OSError as error:
        raise StorageError(f"{directory}: the tokenizer cannot be written ({error.strerror})") from error
