"""What is added to a live datastore: documents are checked, tokenized if they are text, and encoded."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.shard import encode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence, document_ids, document_tokens
from rest_store.errors import DocumentError, StorageError, TokenizerLoadError, describe
from rest_store.live.additions import NewDocument
from rest_store.live.segments import Bounds

if TYPE_CHECKING:
    from build_index.target_tokenizer import TargetTokenizer

_LARGEST = 1 << 24  # tokens of a document


class Encoder:
    """Checks and encodes documents for one datastore. Thread-safe.

    Args:
        tokenizer: identity of the datastore's.
        directory: of the datastore.
        bounds: a document is no larger than what may be kept.
    """

    def __init__(self, tokenizer: TokenizerIdentity, directory: Path, bounds: Bounds) -> None:
        self._identity = tokenizer
        self._directory = directory
        self._most = min(_LARGEST, bounds.max_tokens or _LARGEST)

    def encode(self, documents: Sequence[IntSequence | str], ids: Sequence[str] | None) -> list[NewDocument]:
        """Return `documents` with their ids; raises what `LiveDatastore.add` says of invalid ones."""
        is_sequence = isinstance(documents, Sequence | np.ndarray) and not isinstance(documents, str | bytes)
        if not is_sequence or getattr(documents, "ndim", 1) == 0:
            raise DocumentError(
                describe("add", "documents", f"a {type(documents).__name__}", "a sequence of documents")
            )
        names = _new_ids(len(documents)) if ids is None else document_ids("add", ids)
        if len(names) != len(documents):
            raise DocumentError(describe("add", "ids", f"{len(names)} ids", f"{len(documents)}, one for each document"))
        texts = [document for document in documents if isinstance(document, str)]
        encoded = iter(self._tokenizer.encode_batch(texts) if texts else [])
        tokens = [next(encoded) if isinstance(document, str) else document for document in documents]
        return [
            NewDocument(names[place], self._symbols(document, place), is_new=ids is None)
            for place, document in enumerate(tokens)
        ]

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

    def _symbols(self, document: IntSequence, place: int) -> bytes:
        """Return the tokens of the document at `place` as a tokens file has them."""
        tokens = document_tokens(document, place, self._identity.vocabulary_size, expected="1-D integers or text")
        if tokens.size > self._most:
            what = f"the size of document {place}"
            raise DocumentError(describe("add", what, f"{tokens.size} tokens", f"at most {self._most}"))
        return encode_symbols(tokens, self._identity.vocabulary_size)


def _new_ids(count: int) -> list[str]:
    """Return random ids; in one call of the system, since each passes the GIL on and has to wait for it again."""
    digits = os.urandom(16 * count).hex()
    return [digits[start : start + 32] for start in range(0, len(digits), 32)]


def store_tokenizer(tokenizer: object, directory: Path) -> None:
    """Write the serialization of `tokenizer` into `directory`, for encoding text; an identity alone has none.

    Raises:
        StorageError: it cannot be written.
    """
    source = getattr(tokenizer, "backend_tokenizer", tokenizer)
    serialize = getattr(source, "to_str", None) or getattr(source, "to_json", None)
    try:
        (directory / TOKENIZER_FILE_NAME).unlink(missing_ok=True)  # of a datastore that was being begun
        if serialize is None or isinstance(tokenizer, TokenizerIdentity):
            return
        (directory / TOKENIZER_FILE_NAME).write_text(str(serialize()), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{directory}: the tokenizer cannot be written ({error.strerror})") from error
