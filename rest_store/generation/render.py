"""Generated text in a terminal, in colours that show where each token came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

# Colour of tokens by the name of their origin. "model" stands for tokens that no source drafted.
_COLOURS = {
    "model": None,
    "datastore": "green",
    "remembered": "bright_green",
    "prompt": "cyan",
    "recycled": "magenta",
    "several": "yellow",
    "drafted": "blue",
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
    colour = _COLOURS[name]
    return click.style(text, fg=colour) if colour else text


def legend(names: Iterable[str]) -> str:
    """Return a line that names origins in their colours, for a terminal.

    Args:
        names: of the sources; the model and several sources at once are added.
    """
    shown = dict.fromkeys(["model", *names, "several"])
    return "drafted by: " + ", ".join(coloured(_LABELS.get(name, name), name) for name in shown)
