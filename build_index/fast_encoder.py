"""Encoding by `fastokens`, many times as fast as by `tokenizers`, which checks it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_index.space_marks import SpaceMarks, without_metaspace
from rest_store.errors import first_line

CHECKED_CHARACTERS = 1 << 18
"""The first texts of a build, all checked."""
_SAMPLE = 256  # of the others, one in so many texts


class EncoderError(Exception):
    """`fastokens` cannot be used, or gave other tokens than `tokenizers`, or none.

    The message gives the reason, or names the text.
    """


class FastEncoder:
    """Encodes by `fastokens`.

    Args:
        tokenizer_json: the text of a `tokenizer.json` whose control tokens are marked.
        vocabulary_size: greater than each token id.
        dtype: of the token ids.

    Raises:
        EncoderError: `fastokens` is not installed, or refuses the tokenizer.
    """

    def __init__(
        self, tokenizer_json: str, vocabulary_size: int, dtype: np.dtype[np.unsignedinteger[Any]]
    ) -> None:
        fields = json.loads(tokenizer_json)
        self._space_marks: SpaceMarks | None = None
        if (replacement := without_metaspace(fields)) is not None:
            fields, self._space_marks = replacement
        self._tokenizer = _open(json.dumps(fields))
        self._vocabulary_size = vocabulary_size
        self._dtype = dtype
        self._characters_to_check = CHECKED_CHARACTERS

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.unsignedinteger[Any]]] | None:
        """Return the token ids of each text.

        None: a text has a byte that the vocabulary lacks, and there is no unknown token.

        Raises:
            EncoderError: `fastokens` fails, or its tokens are not those of a vocabulary.
        """
        if self._space_marks is not None:
            texts = [self._space_marks.before_sections(text) for text in texts]
        try:
            ids, ends = self._tokenizer.encode_batch_flat(list(texts))
        except (KeyboardInterrupt, SystemExit):
            raise
        except ValueError:
            return None
        except BaseException as error:  # a panic is no Exception
            raise EncoderError(f"failed: {first_line(error)}") from error
        tokens = np.frombuffer(ids, np.uint32)
        size = self._vocabulary_size
        if tokens.size and tokens.max() >= size:
            raise EncoderError(f"token id {tokens.max()} of a vocabulary of {size}")
        inner_ends = np.frombuffer(ends, np.uint64)[1:-1].astype(np.int64)
        return np.split(tokens.astype(self._dtype), inner_ends)

    def is_checked(self, text: str) -> bool:
        """Return whether `tokenizers` encodes a text, too.

        It does so for the first texts, and then for a sample of the others by their content.
        """
        if self._characters_to_check > 0:
            self._characters_to_check -= len(text)
            return True
        return zlib.crc32(text.encode("utf-8")) % _SAMPLE == 0


def _open(tokenizer_json: str) -> Any:
    try:
        import fastokens

        return fastokens.Tokenizer.from_json_str(tokenizer_json)
    except ImportError as error:
        raise EncoderError("fastokens is not installed") from error
    except Exception as error:  # a ValueError, or an error of its parser
        raise EncoderError(f"fastokens refuses the tokenizer ({first_line(error)})") from error
