"""Globs over the relative paths of a source tree.

`*` and `?` match within one name, `**` across directories, `[...]` one character. A glob without a slash matches at any
depth, one with a slash from the top. Excluding a directory excludes what is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|[^*?\[]+|\[")


def compile_globs(globs: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern whose `fullmatch` says whether any of the globs matches.

    Args:
        globs: any number; none match nothing.

    Returns:
        A pattern over relative paths with forward slashes, without a slash at the end.
    """
    return re.compile("|".join(f"(?:{_translate(glob)})" for glob in globs) or r"(?!)", re.DOTALL)


def _translate(glob: str) -> str:
    glob = glob.removeprefix("./").rstrip("/")
    anchored = "/" in glob
    glob = glob.lstrip("/")
    translated = "" if anchored else "(?:.*/)?"
    for part in _PARTS.findall(glob):
        if part == "**/":
            translated += "(?:.*/)?"
        elif part == "**":
            translated += ".*"
        elif part == "*":
            translated += "[^/]*"
        elif part == "?":
            translated += "[^/]"
        elif part.startswith("[") and len(part) > 2:
            inside = part[1:-1].replace("\\", "\\\\").replace("[", "\\[").replace("&&", "&\\&").replace("||", "|\\|")
            translated += f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
        else:
            translated += re.escape(part)
    return translated
