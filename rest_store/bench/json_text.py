"""JSON of files that anybody may have written."""

from __future__ import annotations

import json
from typing import Any

_DEPTH = 50  # of objects and lists in each other, which callers walk through by recursion


def parsed_json(text: str) -> Any:
    """Return what `text` says.

    Raises:
        ValueError: `text` is not JSON, nests too deeply, or has half of a surrogate pair, which no UTF-8 can hold.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value]
    for _ in range(_DEPTH):
        level = [part for whole in level for part in _parts(whole) if isinstance(part, dict | list)]
    if level:
        raise ValueError("nested too deeply")
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
