"""A page of HTML for one generation: its text by source, and the tree of each pass."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import Any

from rest_store.datastore.render import counted
from rest_store.generation.comparison import Comparison
from rest_store.generation.output import Piece, Statistics
from rest_store.pages.document import document, packaged

_MAX_SOURCES = 8  # of a draft session


def page(
    passes: Sequence[Piece],
    statistics: Statistics,
    tokenizer: Any,
    *,
    title: str,
    prompt: str,
    labels: Sequence[str],
    comparison: Comparison | None = None,
    remarks: Sequence[str] = (),
) -> str:
    """Return the page of the first row of a generation.

    Args:
        passes: all forward passes of the generation with their words, the prompt's first.
        statistics: of the same.
        tokenizer: of the model.
        title: of the page, such as the model's name.
        prompt: that was continued.
        labels: of the sources, in the order of the bits of an origin.
        comparison: with plain decoding, if it was asked for.
        remarks: further notes on this generation, one sentence each.
    """
    unnamed = (f"source {bit + 1}" for bit in range(len(labels), _MAX_SOURCES))
    labels = [*labels, *unnamed][:_MAX_SOURCES]
    counts: Counter[int] = Counter()
    for piece in passes:
        counts.update(piece.origins[0])
    paragraphs = "".join(f"<p>{escape(remark)}</p>\n" for remark in remarks)
    body = (
        f'<header>\n<p class="overline">rest-store generate</p>\n<h1>{escape(title)}</h1>\n'
        f'<p class="verdict">{_verdict(statistics, comparison)}</p>\n{paragraphs}</header>\n'
        f"{_summary(statistics, counts, labels)}"
        '<div class="columns">\n<main>\n<h2>The text, pass by pass</h2>\n'
        '<p class="soft hint">A bar | stands where a forward pass begins. '
        "Choose one to see its draft tree; ← and → go on.</p>\n"
        '<details class="prompt"><summary>The prompt</summary>'
        f'<div class="text">{escape(prompt)}</div></details>\n'
        f"{_text(passes, tokenizer, labels)}</main>\n"
        '<aside id="pass" aria-label="Draft tree of a forward pass">\n'
        "<noscript><p>Draft trees are drawn by a script, "
        "which is off in this browser.</p></noscript>\n</aside>\n</div>\n"
    )
    data = {"labels": list(labels), "passes": _data(passes, tokenizer)}
    style, script = (packaged(__package__, f"page.{ending}") for ending in ("css", "js"))
    return document(f"{title}: how it was drafted", body, style=style, script=script, data=data)


def source_class(origins: int) -> str:
    """Return the CSS class of a token: that of the model, of its one source, or of several."""
    if not origins:
        return "model"
    is_one = origins & (origins - 1) == 0
    return f"source-{origins.bit_length() - 1}" if is_one else "several"


def letters(origin: int) -> str:
    """Return a letter for each source of an origin."""
    return "".join(chr(ord("A") + bit) for bit in range(_MAX_SOURCES) if origin >> bit & 1) or "·"


def _names(origin: int, labels: Sequence[str]) -> str:
    return (
        " + ".join(label for bit, label in enumerate(labels) if origin >> bit & 1)
        or "the model alone"
    )


def _verdict(statistics: Statistics, comparison: Comparison | None) -> str:
    passes = counted(statistics.forward_passes, "forward pass", "forward passes")
    lead = f"{counted(statistics.tokens, 'token')} in {passes}: M {statistics.mean_tokens:.2f}."
    rate = f"{statistics.tokens_per_second:.1f} tokens a second"
    compared = "" if comparison is None else f", {comparison}"
    return f"<strong>{lead}</strong> {rate}{compared}."


# --- sources --------------------------------------------------------------------------------------


def _summary(statistics: Statistics, counts: Counter[int], labels: Sequence[str]) -> str:
    """Return M, the bar of sources with its legend, and where the time went."""
    total = max(1, counts.total())
    # The model last.
    order = sorted(counts, key=lambda origin: (origin == 0, -counts[origin], origin))
    segments = "".join(_segment(origin, counts[origin], total, labels) for origin in order)
    legend = []
    for bit in range(_MAX_SOURCES):
        among = sum(count for origin, count in counts.items() if origin >> bit & 1)
        if among:
            alone = counts[1 << bit]
            tokens = f"{counted(among, 'token')}, {alone or 'none'} by it alone"
            legend.append(_entry(1 << bit, labels[bit], among / total, tokens))
    legend.append(_entry(0, "the model alone", counts[0] / total, counted(counts[0], "token")))
    seconds = statistics.seconds or math.inf
    times = (
        f"Forward passes took {100 * statistics.forward_seconds / seconds:.0f} % of the time, "
        f"drafting {100 * statistics.drafting_seconds / seconds:.1f} %. "
        "A token that several sources drafted counts for each of them."
    )
    return (
        '<section class="summary" aria-label="Sources">\n<div'
        f' class="figure"><b>{statistics.mean_tokens:.2f}</b>M, tokens of a forward pass; plain'
        ' decoding has 1</div>\n<div class="sources">\n<h2>Where the tokens came from</h2>\n<div'
        f' class="bar" aria-hidden="true">{segments}</div>\n<ul'
        f' class="legend">\n{"".join(legend)}</ul>\n<p'
        f' class="soft">{times}</p>\n</div>\n</section>\n'
    )


def _segment(origin: int, count: int, total: int, labels: Sequence[str]) -> str:
    title = escape(
        f"{_names(origin, labels)}: {counted(count, 'token')}, {100 * count / total:.0f} %"
    )
    return (
        f'<span class="{source_class(origin)}" style="flex-grow:{count}"'
        f' title="{title}"><b>{letters(origin)}</b></span>'
    )


def _entry(origin: int, label: str, share: float, tokens: str) -> str:
    return (
        f'<li><span class="sample {source_class(origin)}">{letters(origin)}</span> <span'
        f' class="label">{escape(label)}</span> <span class="share">{100 * share:.0f} %</span>'
        f' <span class="soft">{tokens}</span></li>\n'
    )


# --- text -----------------------------------------------------------------------------------------


def _text(passes: Sequence[Piece], tokenizer: Any, labels: Sequence[str]) -> str:
    """Return the text, with a link for each forward pass and a mark for each token."""
    special = set(tokenizer.all_special_ids)
    links = []
    for number, piece in enumerate(passes, 1):
        spans = []
        words = piece.words[0] if piece.words is not None else []
        for token, text, origin in zip(piece.tokens[0], words, piece.origins[0], strict=True):
            if token in special and not text.strip():
                text = str(tokenizer.decode([token]))
                kind = " special"
            else:
                kind = " line" if text.endswith("\n") else ""
            title = escape(_names(origin, labels))
            spans.append(
                f'<span class="{source_class(origin)}{kind}" title="{title}">{escape(text)}</span>'
            )
        links.append(
            f'<a class="pass" id="pass-{number}" href="#pass-{number}">{"".join(spans)}</a>'
        )
    return f'<div class="written text" id="written">{"".join(links)}</div>\n'


# --- trees ----------------------------------------------------------------------------------------


def _data(passes: Sequence[Piece], tokenizer: Any) -> list[dict[str, Any]]:
    """Return the data of the script: drafts and accepted tokens of each pass.

    Scores are in thousandths, -1 where there is none. Times are in microseconds: of the step, of
    drafting in it, and of the forward pass.
    """

    @functools.cache
    def decoded(*tokens: int) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    def added(before: int | None, token: int) -> str:
        """Return the text that `token` adds behind `before`.

        Some tokenizers drop the space in front of the first token.
        """
        start, both = ("", "") if before is None else (decoded(before), decoded(before, token))
        is_prefix = (
            both.startswith(start) and not start.endswith("\ufffd") and len(both) > len(start)
        )
        return both[len(start) :] if is_prefix else decoded(token)

    data = []
    before: int | None = None  # the last token written
    for piece in passes:
        tree = piece.trees[0]
        text_tokens = piece.tokens[0]
        accepted = piece.accepted[0]
        tokens = tree.tokens.tolist()
        parents = tree.parents.tolist()
        scores = [-1.0] * len(tokens) if tree.scores is None else tree.scores.tolist()
        last = tokens[accepted[-1]] if accepted else before
        bonus = text_tokens[len(accepted)] if len(text_tokens) > len(accepted) else None
        data.append(
            {
                "context": None if before is None else decoded(before),
                "texts": [
                    added(tokens[parent] if parent >= 0 else before, token)
                    for token, parent in zip(tokens, parents, strict=True)
                ],
                "parents": parents,
                "scores": [
                    round(1000 * min(score, 1.0)) if 0 <= score < math.inf else -1
                    for score in scores
                ],
                "origins": [] if tree.origins is None else tree.origins.tolist(),
                "accepted": accepted,
                "bonus": None if bonus is None else added(last, bonus),
                "times": [
                    round(1e6 * time)
                    for time in (piece.seconds, piece.drafting_seconds, piece.forward_seconds)
                ],
            }
        )
        before = text_tokens[-1] if text_tokens else before
    return data
