"""A page of HTML in one file, with style, script and data inside."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib import resources
from typing import Any


def document(title: str, body: str, *, style: str = "", script: str = "", data: Any = None) -> str:
    """Return a whole page.

    A policy in its head lets a browser load nothing and run no script but `script`, even if `body`
    held another one.

    Args:
        title: the title of the page, as text.
        body: HTML.
        style: CSS beside the style of all pages.
        script: JavaScript, run once `body` is there.
        data: a value of JSON, which the script reads by
            `JSON.parse(document.getElementById("data").textContent)`.
    """
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    embedded = ""
    if data is not None:
        embedded = f'<script type="application/json" id="data">{_embedded(data)}</script>\n'
    run = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>\n{packaged(__package__, 'base.css')}{style}</style>\n</head>\n"
        f"<body>\n{body}{embedded}{run}</body>\n</html>\n"
    )


def packaged(package: str, name: str) -> str:
    """Return the text of a file that comes with `package`."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def _embedded(data: Any) -> str:
    """Return `data` as JSON without the character that could end the element around it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
