"""The decoding of JSON text."""

from __future__ import annotations

import json
from typing import Any

_MAX_DIGITS = 4300  # of `int`; more raise ValueError


def _parse_number(digits: str) -> int | float:
    return int(digits) if len(digits) < _MAX_DIGITS else float(digits)


DECODER = json.JSONDecoder(parse_int=_parse_number)


def decoded_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
