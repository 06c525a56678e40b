"""What is added to a live datastore: documents are checked,
tokenized if they are text, and encoded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore.durable_files import sync
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.shard import encode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import (
    IntSequence,
    document_tokens,
    epoch_number,
    label,
    new_ids,
)
from rest_store.errors import DocumentError, StorageError, TokenizerLoadError, describe
from rest_store.live.upstream import DocumentRecord, digest_of

if TYPE_CHECKING:
    from build_index.target_tokenizer import TargetTokenizer

_MAX_DOCUMENT_TOKENS = 1 << 24  # tokens of a document


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
        *,
        namespace: str,
        group: str | Sequence[str],
        epoch: int | Sequence[int],
        max_tokens: int | None,
    ) -> tuple[list[str], list[DocumentRecord]]:
        """Return the ids of `documents`, and these as they are stored but for numbers and times.

        Raises what `LiveDatastore.add` says, whose arguments these are; none is larger than
        `max_tokens`.
        """
        names = new_ids(documents, ids)
        texts = [document for document in documents if isinstance(document, str)]
        encoded = iter(self._tokenizer.encode_batch(texts) if texts else [])
        tokens = [
            next(encoded) if isinstance(document, str) else document for document in documents
        ]
        groups: Sequence[str] = [group] * len(names) if isinstance(group, str) else group
        if not isinstance(groups, Sequence):
            groups = [groups] * len(names)  # of another type, which is refused
        epochs = epoch if isinstance(epoch, Sequence) else [epoch] * len(names)
        labels = [
            (label("add", "a group", one), epoch_number(other))
            for one, other in zip(groups, epochs, strict=True)
        ]
        most = min(_MAX_DOCUMENT_TOKENS, max_tokens or _MAX_DOCUMENT_TOKENS)
        symbols = [self._symbols(document, index, most) for index, document in enumerate(tokens)]
        new = [
            DocumentRecord(0, namespace, digest_of(name, namespace), 0.0, *own, some)
            for name, own, some in zip(names, labels, symbols, strict=True)
        ]
        return names, new

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
        tokens = document_tokens(
            document, index, self._identity.vocabulary_size, expected="1-D integers or text"
        )
        if tokens.size > most:
            what = f"the size of document {index}"
            raise DocumentError(describe("add", what, f"{tokens.size} tokens", f"at most {most}"))
        return encode_symbols(tokens, self._identity.vocabulary_size)


def store_tokenizer(tokenizer_json: str | None, directory: Path) -> None:
    """Store the serialization of a tokenizer in `directory`, for encoding text.

    None: there is none.

    Raises:
        StorageError: it cannot be written.
    """
    path = directory / TOKENIZER_FILE_NAME
    try:
        path.unlink(missing_ok=True)  # of a datastore that was being begun
        if tokenizer_json is not None:
            path.write_text(tokenizer_json, encoding="utf-8")
            sync(path)
            sync(directory)
    except OSError as error:
        raise StorageError(
            f"{directory}: the tokenizer cannot be written ({error.strerror})"
        ) from error
