"""Rendering of generated text that shows where each token came from: in a terminal's colours, or as a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import click

# Name of an origin: colour in a terminal, colour in a page. "model" stands for tokens that no source drafted.
_LOOKS = {
    "model": (None, "#444444"),
    "datastore": ("green", "#1b7f3b"),
    "remembered": ("bright_green", "#0a8f8f"),
    "prompt": ("cyan", "#0b6e99"),
    "recycled": ("magenta", "#8a3fa0"),
    "several": ("yellow", "#a86a00"),
    "drafted": ("blue", "#2747c4"),
}


_LABELS = {
    "model": "the model alone",
    "prompt": "prompt lookup",
    "recycled": "recycled logits",
    "several": "several of them",
}  # of origins, where that is not their name


def origin_name(origin: int, sources: Sequence[str]) -> str:
    """Return the name of an origin.

    Args:
        origin: bit i set: source i drafted the token; 0: the model alone.
        sources: the name of each source.
    """
    names = {sources[bit] if bit < len(sources) else "drafted" for bit in range(8) if origin >> bit & 1}
    if not names:
        return "model"
    return names.pop() if len(names) == 1 else "several"


def coloured(text: str, name: str) -> str:
    """Return `text` in the colour of the origin `name`, for a terminal."""
    colour = _LOOKS[name][0]
    return click.style(text, fg=colour) if colour else text


def legend(names: Iterable[str]) -> str:
    """Return a line that names origins in their colours, for a terminal.

    Args:
        names: of the sources; the model and several sources at once are added.
    """
    shown = dict.fromkeys(["model", *names, "several"])
    return "drafted by: " + ", ".join(coloured(_LABELS.get(name, name), name) for name in shown)


def page(title: str, prompt: str, parts: Iterable[tuple[str, str]], summary: str) -> str:
    """Return an HTML page of generated text.

    Args:
        title: of the page.
        prompt: shown in front of the text.
        parts: text and the name of its origin.
        summary: shown below the text.
    """
    parts = list(parts)
    used = [name for name in _LOOKS if any(name == other for _, other in parts)]
    styles = "".join(f".{name}{{color:{_LOOKS[name][1]}}}" for name in used)
    legend = " ".join(f'<span class="{name}">{name}</span>' for name in used)
    body = "".join(f'<span class="{name}">{html.escape(text)}</span>' for text, name in parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>body{{max-width:60em;margin:2em auto;font-family:sans-serif}}pre{{white-space:pre-wrap}}"
        f".given{{color:#999999}}{styles}</style></head>\n"
        f'<body><h1>{html.escape(title)}</h1><p>{legend}</p>\n<pre><span class="given">{html.escape(prompt)}</span>'
        f"{body}</pre>\n<p>{html.escape(summary)}</p></body></html>\n"
    )
