"""Calls of tools in messages, and in the text that a chat template makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_CALLS = 64  # of a message, and arguments of a call, that are looked for in a text


def call_list(calls: Any) -> list[Any]:
    """Return the calls of a message, which some records hold as one object."""
    return calls if isinstance(calls, list) else [calls]


def _function(call: Any) -> Mapping[str, Any]:
    """Return the object with the name and the arguments of a call, wherever a record has them."""
    function = call.get("function", call) if isinstance(call, Mapping) else {}
    return function if isinstance(function, Mapping) else {}


def is_shown(call: Any, text: str, begin: int = 0) -> bool:
    """Return whether a text has the name of a call and of each argument, from a place on."""
    function = _function(call)
    arguments = _object(function.get("arguments"))
    names = [function.get("name"), *list(arguments or ())[:MAX_CALLS]]
    return all(text.find(name, begin) >= 0 for name in names if isinstance(name, str))


def is_mangled(call: Any, text: str) -> bool:
    """Return whether a text has a call's arguments as JSON text in JSON, or as a Python object."""
    arguments = _function(call).get("arguments")
    if isinstance(arguments, str):
        return json.dumps(arguments, ensure_ascii=False) in text
    return isinstance(arguments, Mapping) and bool(arguments) and str(arguments) in text


def _object(arguments: Any) -> Mapping[str, Any] | None:
    """Return arguments as an object; None: they are no object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, Mapping) else None


def with_converted_arguments(calls: Any) -> Any:
    """Return calls with JSON texts of arguments as objects, and objects as JSON texts."""
    converted = []
    for call in call_list(calls):
        function = _function(call)
        arguments = function.get("arguments")
        other: Any = None
        if isinstance(arguments, str):
            other = _object(arguments)
        elif isinstance(arguments, Mapping):
            other = json.dumps(arguments, ensure_ascii=False)
        if other is None:
            converted.append(call)
        elif function is call:
            converted.append({**call, "arguments": other})
        else:
            converted.append({**call, "function": {**function, "arguments": other}})
    return converted
