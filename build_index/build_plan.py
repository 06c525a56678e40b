"""The plan of a build: what has to be the same to resume it, and to give the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from build_index.build_options import BuildOptions
from build_index.corpus import Corpus
from build_index.documents import CorpusCounts
from build_index.slices import slice_bytes
from build_index.target_tokenizer import TargetTokenizer
from rest_store.errors import ResumeError, describe
from rest_store.version import __version__

_SHOWN_DIGITS = 16
_OF_CORPORA = ("corpora", "corpus files", "shard_positions")


def build_plan(
    options: BuildOptions, corpora: Sequence[Corpus], tokenizer: TargetTokenizer
) -> dict[str, Any]:
    """Return the plan as an object for JSON.

    Raises:
        CorpusError: a corpus cannot be listed.
    """
    return {
        "program": program(),
        "tokenizer": tokenizer.identity.name,
        "tokenizer content": text_sha256(tokenizer.to_json()),
        "chat template": template_digest(tokenizer),
        "shard_tokens": options.shard_tokens,
        "corpora": [json.loads(json.dumps(asdict(spec))) for spec in options.corpora],
        "corpus files": [_listing(corpus, slice_bytes(corpora)) for corpus in corpora],
        "encoder": tokenizer.encoder,
    }


def _listing(corpus: Corpus, max_bytes: int) -> dict[str, Any]:
    """Return what changes if a file of a corpus is added, removed or
    written again, or other files are cut into slices.

    Args:
        corpus: the corpus.
        max_bytes: of a file that is not cut.
    """
    sha256, number, cut = hashlib.sha256(), 0, 0
    for file in corpus.files(CorpusCounts()):
        sha256.update(json.dumps([file.relative, file.size, file.version, *file.rows]).encode())
        number += 1
        cut += file.size > max_bytes
    return {"files": number, "cut": cut, "sha256": sha256.hexdigest()[:_SHOWN_DIGITS]}


def require_same_plan(where: Path, unfinished: dict[str, Any], plan: dict[str, Any]) -> None:
    """Raise ResumeError, which names the first difference, unless
    an unfinished build has this plan.

    Args:
        where: the directory of the datastore, for the message.
        unfinished: plan of that build.
        plan: of this one.
    """
    for name, value in plan.items():
        if unfinished.get(name) != value:
            expected = (
                f"{_text(unfinished.get(name))}, as in the unfinished build; or build without"
                " --resume"
            )
            raise ResumeError(describe(where, name, _text(value), expected))


def unchanged_corpora(before: dict[str, Any], plan: dict[str, Any]) -> dict[int, int]:
    """Return the places of corpora that are as in the plan of an
    unfinished build, with the places that they had there.

    None are if anything else differs that decides the tokens of a document. If nothing differs at
    all, there is another reason to begin anew, and none are kept.
    """
    is_same = all(
        before.get(name) == value for name, value in plan.items() if name not in _OF_CORPORA
    )
    if not is_same or before == plan:
        return {}
    old = list(zip(before["corpora"], before["corpus files"], strict=True))
    places: dict[int, int] = {}
    for place, corpus in enumerate(zip(plan["corpora"], plan["corpus files"], strict=True)):
        free = (
            number
            for number, one in enumerate(old)
            if one == corpus and number not in places.values()
        )
        if (number := next(free, None)) is not None:
            places[place] = number
    return places


def program() -> str:
    """Return the name and version of this program."""
    return f"rest-store {__version__}"


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def template_digest(tokenizer: TargetTokenizer) -> str | None:
    """Return what stands for the chat template, as its text may be long; None: there is none."""
    return (
        None
        if tokenizer.chat_template is None
        else f"sha256:{text_sha256(tokenizer.chat_template)}"
    )


def _text(value: object) -> str:
    if isinstance(value, list):  # of corpora
        return "; ".join(map(_spec_text, value))
    return "not set" if value is None else str(value)


def _spec_text(spec: dict[str, Any]) -> str:
    """Return the options of a corpus that are set, or what its files are like."""
    shown = {**spec, "gitignore": "off" if spec.get("gitignore") is False else None}
    shown["texts"] = None if spec.get("texts") == "all" else spec.get("texts")
    names = sorted(shown, key=lambda name: (name != "path", name))
    return " ".join(f"{name}={shown[name]}" for name in names if shown[name])
