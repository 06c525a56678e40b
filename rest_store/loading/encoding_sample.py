"""A digest of the tokens of a few texts, which tells tokenizers apart.

Tokenizers with the same vocabulary may write one text with other tokens. The parts that decide it,
normalizer and pre-tokenizer, can be written in many ways that mean the same, and `transformers`
writes them otherwise than the file that it loads. So the tokens are compared, not the parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

SAMPLE = (
    "Hello world, how are you?",
    "def add(first, second):\n    return first + second  # 12345 + 2024.50\n",
    "don't I'LL we've it's",
    "Two  spaces\n\n\n\tand\ttabs \r\n",
    "snake_case camelCase UPPER http://example.org/a?b=1&c=[2]",
    "na\u00efve caf\u00e9 \u00dcbung \u2014 \u201cquoted\u201d \u2026",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u05e9\u05dc\u05d5\u05dd \U0001f44d\U0001f3fd",
)
"""The texts of the format (FORMAT.md, section 5), which do not change.

None begins with a space: tokenizers of Llama 2's family differ there, by the way they were loaded.
"""


def sample_digest(encode: Callable[[str], Sequence[int]]) -> str:
    """Return `"sha256:"` and the hash of the token ids of all texts (FORMAT.md, section 5).

    Args:
        encode: returns the token ids of a text, without any that are added around it.
    """
    ids = [list(map(int, encode(text))) for text in SAMPLE]
    return (
        "sha256:"
        + hashlib.sha256(json.dumps(ids, separators=(",", ":")).encode("ascii")).hexdigest()
    )


def tokenizer_digest(backend: Any, tokenizer_json: str) -> str | None:
    """Return the digest of a tokenizer of `tokenizers`, which is not changed.

    None: it cannot encode.

    Args:
        backend: the tokenizer.
        tokenizer_json: its serialization.
    """
    try:
        if backend.truncation or backend.padding or getattr(backend.model, "dropout", None):
            import tokenizers

            fields = json.loads(tokenizer_json)
            fields["model"] = (
                {**fields["model"], "dropout": None}
                if "dropout" in fields["model"]
                else fields["model"]
            )
            backend = tokenizers.Tokenizer.from_str(
                json.dumps({**fields, "truncation": None, "padding": None})
            )
        return sample_digest(lambda text: backend.encode(text, add_special_tokens=False).ids)
    except Exception:  # of `tokenizers`, or of an object that only looks like one of it
        return None
