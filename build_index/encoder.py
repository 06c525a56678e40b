"""Texts to token ids: by `tokenizers`, or many times as fast by `fastokens`, which `tokenizers` checks as it goes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from build_index.errors import build_packages, first_line
from rest_store.errors import TokenizerLoadError, describe

if TYPE_CHECKING:
    import fastokens
    from tokenizers import Tokenizer

Tokens: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids of one document: 1-D, 2 bytes each if the vocabulary has at most 65,535 tokens, otherwise 4."""

CHECKED_CHARACTERS = 1 << 20
"""The first texts of a build, all checked."""
_SAMPLE = 256  # of the others, one in so many texts
_SHOWN = 60  # characters of a text in a message


class EncoderError(Exception):
    """`fastokens` gave other tokens than `tokenizers`, or none; the message says for which text."""


class Encoder:
    """One tokenizer.

    Args:
        tokenizer_json: the text of a `tokenizer.json`.
        name: of the tokenizer, for messages.
        vocabulary_size: above all token ids.

    Raises:
        TokenizerLoadError: `tokenizer_json` is not a tokenizer.

    Thread-safe, except `accelerate` and `decelerate`. Encoding releases the GIL and uses all cores. Can be pickled;
    then it encodes by `tokenizers`.
    """

    def __init__(self, tokenizer_json: str, name: str, vocabulary_size: int) -> None:
        self._tokenizer = open_tokenizer(tokenizer_json, name)
        self._json = tokenizer_json
        self._name = name
        self._vocabulary_size = vocabulary_size
        self._dtype = np.dtype(np.uint16 if vocabulary_size <= 65535 else np.uint32)
        self._fast: fastokens.Tokenizer | None = None
        self._unchecked_after = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Encoder, (self._json, self._name, self._vocabulary_size)

    def accelerate(self) -> bool:
        """Encode by `fastokens` from now on; return False if it is not installed or refuses the tokenizer."""
        self._unchecked_after = CHECKED_CHARACTERS
        try:
            import fastokens

            self._fast = fastokens.Tokenizer.from_json_str(self._json)
        except Exception:  # it says what it does not know by a ValueError, or what its parser raises
            return False
        return True

    def decelerate(self) -> None:
        """Encode by `tokenizers` from now on."""
        self._fast = None

    @property
    def is_accelerated(self) -> bool:
        """Whether `fastokens` encodes."""
        return self._fast is not None

    @property
    def program(self) -> str:
        """Name and version of the package that encodes."""
        package = "fastokens" if self.is_accelerated else "tokenizers"
        return f"{package} {version(package)}"

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the token ids of each text, without special tokens at its ends.

        Raises:
            EncoderError: `fastokens` is in use, and failed or is wrong.
        """
        tokens = None if self._fast is None else self._encode_fast(self._fast, texts)
        if tokens is None:
            return self._encode(texts)
        places = [place for place, text in enumerate(texts) if self._is_checked(text)]
        for place, expected in zip(places, self._encode([texts[place] for place in places]), strict=True):
            if not np.array_equal(tokens[place], expected):
                raise EncoderError(f"other tokens than tokenizers for {_shown(texts[place])}")
        return tokens

    def _encode(self, texts: Sequence[str]) -> list[Tokens]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False) if texts else []
        return [np.array(encoding.ids, dtype=self._dtype) for encoding in encodings]

    def _encode_fast(self, fast: fastokens.Tokenizer, texts: Sequence[str]) -> list[Tokens] | None:
        """Return the token ids of each text; None: a text has a byte that the vocabulary lacks, and no token is it."""
        try:
            ids, ends = fast.encode_batch_flat(list(texts))
        except (KeyboardInterrupt, SystemExit):
            raise
        except ValueError:
            return None
        except BaseException as error:  # a panic is no Exception
            raise EncoderError(f"failed: {first_line(error)}") from error
        tokens = np.frombuffer(ids, np.uint32)
        if tokens.size and tokens.max() >= self._vocabulary_size:
            raise EncoderError(f"token id {tokens.max()} of a vocabulary of {self._vocabulary_size}")
        return np.split(tokens.astype(self._dtype), np.frombuffer(ends, np.uint64)[1:-1].astype(np.int64))

    def _is_checked(self, text: str) -> bool:
        """Whether `tokenizers` encodes this text, too: the first ones, then a sample by content."""
        if self._unchecked_after > 0:
            self._unchecked_after -= len(text)
            return True
        return zlib.crc32(text.encode("utf-8")) % _SAMPLE == 0


def open_tokenizer(tokenizer_json: str, name: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`.

    Raises:
        TokenizerLoadError: it is none.
    """
    with build_packages(name, TokenizerLoadError):
        import tokenizers
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # tokenizers raises Exception itself
        problem = f"refused by tokenizers ({first_line(error)})"
        raise TokenizerLoadError(describe(name, "tokenizer", problem, "a tokenizer.json")) from error


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
