"""JSON of files that anybody may have written."""

from __future__ import annotations

import json
from typing import Any


def parsed_json(text: str) -> Any:
    """Return what `text` says.

    Raises:
        ValueError: `text` is not JSON, nests too deeply, or has half of a surrogate pair, which no UTF-8 can hold.
    """
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value
