"""Lines that look like keys, tokens and passwords, by the detectors of `detect-secrets`.

The detectors are its regular expressions for tokens of services and its list of names that secrets
have. A value behind such a name counts if it looks random. Public IP addresses, which it also
finds, are no secrets. Only lines with something long and mixed enough are given to the detectors:
they read a million characters a second.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from build_index.documents import CorpusCounts, Document, Message
from rest_store.extras import named_extras

LEFT_OUT = "lines with secrets"
_NOT_SECRET = ("IPPublicDetector",)
_BEGIN_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY")
_END_KEY = re.compile(r"-----END ")
_LONG_AND_MIXED = r"(?<![\w+/=.~-])(?=[A-Za-z_+/=.~-]*\d)[\w+/=.~-]{16}"
_SUSPECT = re.compile(rf"{_LONG_AND_MIXED}|://[^\s/]+:[^\s/]+@|PRIVATE KEY|PuTTY-User-Key")
_VALUE = r"[A-Za-z0-9+/_=.~-]{16,}"
_MIN_ENTROPY = 3.5  # bits of a character: random hexadecimal text of 20 characters has more
_MAX_LINE = 1 << 14  # characters; a longer line, such as minified code, is looked at in pieces


def without_secrets(document: Document, counts: CorpusCounts) -> Document:
    """Return a document without the lines that look like secrets; count them in `left_out`.

    A line of an argument of a call, or of reasoning, goes likewise.

    Raises:
        MissingExtraError: `detect-secrets` is not installed.
    """
    clean = _Cleaning()
    messages = tuple(_message_without(message, clean) for message in document.messages)
    text = clean.without(document.text)
    if not clean.lines:
        return document
    counts.left_out[LEFT_OUT] += clean.lines
    return replace(document, text=text, messages=messages)


def text_without_secrets(text: str) -> tuple[str, int]:
    """Return a text without the lines that look like secrets, and how many these are."""
    clean = _Cleaning()
    return clean.without(text), clean.lines


class _Cleaning:
    """Takes secrets out of texts.

    Attributes:
        lines: how many it took out.
    """

    def __init__(self) -> None:
        self.lines = 0

    def without(self, text: str) -> str:
        """Return a text without its lines that look like secrets."""
        # No match goes on past the end of a line, so the lines without one need no second look.
        suspects = [match.start() for match in _SUSPECT.finditer(text)]
        if not suspects:
            return text
        suspects.append(len(text))
        harmless: list[str] = []
        in_key = False
        end = place = 0
        for line in text.splitlines(keepends=True):
            end += len(line)
            is_suspect = suspects[place] < end
            while suspects[place] < end:
                place += 1
            in_key = in_key or (is_suspect and _BEGIN_KEY.search(line) is not None)
            if in_key or (is_suspect and is_secret(line)):
                self.lines += 1
            else:
                harmless.append(line)
            in_key = in_key and _END_KEY.search(line) is None
        return "".join(harmless)

    def value_without(self, value: Any) -> Any:
        """Return a JSON value with its texts without such lines."""
        if isinstance(value, str):
            return self.without(value)
        if isinstance(value, list):
            return [self.value_without(item) for item in value]
        if isinstance(value, dict):
            return {name: self.value_without(item) for name, item in value.items()}
        return value


def _message_without(message: Message, clean: _Cleaning) -> Message:
    role, content, *more = message
    content = clean.without(content)
    if not more or _SUSPECT.search(more[0]) is None:
        return (role, content, *more)
    before = clean.lines
    fields = json.loads(more[0])
    for call in fields.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            function["arguments"] = _arguments_without(function.get("arguments"), clean)
    fields["reasoning_content"] = clean.without(str(fields.get("reasoning_content", "")))
    if not fields["reasoning_content"]:
        del fields["reasoning_content"]
    if clean.lines == before:
        return (role, content, *more)
    return (role, content, json.dumps(fields, ensure_ascii=False))


def _arguments_without(arguments: Any, clean: _Cleaning) -> Any:
    """Return arguments of a call without secrets.

    If they are the JSON text of an object, as one.
    """
    if not isinstance(arguments, str):
        return clean.value_without(arguments)
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return clean.without(arguments)
    before = clean.lines
    cleaned = clean.value_without(value)
    return arguments if clean.lines == before else json.dumps(cleaned, ensure_ascii=False)


def is_secret(line: str) -> bool:
    """Return whether a line looks like one with a secret."""
    for begin in range(0, max(1, len(line)), _MAX_LINE):
        part = line[begin : begin + _MAX_LINE]
        if _SUSPECT.search(part) is None:
            continue
        if any(find(part) for find in _detectors()):
            return True
    return False


@cache
def _detectors() -> tuple[Callable[[str], bool], ...]:
    """Return functions that say whether a line has a secret."""
    with named_extras("secrets in transcripts"):
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins import keyword
        from detect_secrets.plugins.base import RegexBasedDetector
        from detect_secrets.plugins.high_entropy_strings import Base64HighEntropyString

    names = "|".join([*keyword.DENYLIST, "(?<![a-z])token(?![a-z])"])
    named_value = re.compile(
        rf"(?:{names})\w{{0,12}}[\"']?\s*(?:=>?|:=?)\s*[\"']?({_VALUE})", re.IGNORECASE
    )
    entropy = Base64HighEntropyString().calculate_shannon_entropy

    def is_named_secret(line: str) -> bool:
        return any(
            entropy(match[1]) >= _MIN_ENTROPY and re.search(r"\d", match[1]) is not None
            for match in named_value.finditer(line)
        )

    kinds: Iterable[Any] = get_mapping_from_secret_type_to_class().values()
    patterns: list[Any] = []
    for kind in kinds:
        if issubclass(kind, RegexBasedDetector) and kind.__name__ not in _NOT_SECRET:
            patterns += kind().denylist

    def has_token(line: str) -> bool:
        return any(pattern.search(line) for pattern in patterns)

    return is_named_secret, has_token
