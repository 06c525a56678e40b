"""JSON text, decoded."""

from __future__ import annotations

import json
from typing import Any

# `int` refuses 4,301 digits.
DECODER = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) < 4300 else float(digits)
)


def decoded_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
