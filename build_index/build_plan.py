"""The plan of a build: its inputs and options. Builds of equal plans give the same bytes."""

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
_CORPUS_NAMES = ("corpora", "corpus files", "shard_positions")


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
    """Return a summary of the files of a corpus.

    It changes if a file is added, removed or written again, or if other files are cut into slices.

    Args:
        corpus: the corpus.
        max_bytes: size of the largest file that is not cut.
    """
    sha256 = hashlib.sha256()
    number = 0
    cut = 0
    for file in corpus.files(CorpusCounts()):
        sha256.update(
            json.dumps([file.relative, file.size, file.version, *file.row_files]).encode()
        )
        number += 1
        cut += file.size > max_bytes
    return {"files": number, "cut": cut, "sha256": sha256.hexdigest()[:_SHOWN_DIGITS]}


def require_same_plan(where: Path, unfinished: dict[str, Any], plan: dict[str, Any]) -> None:
    """Compare the plan of an unfinished build with the plan of this build.

    Args:
        where: the directory of the datastore, for the message.
        unfinished: plan of the unfinished build.
        plan: plan of this build.

    Raises:
        ResumeError: the plans differ; the message names the first difference.
    """
    for name, value in plan.items():
        if unfinished.get(name) != value:
            expected = (
                f"{_text(unfinished.get(name))}, as in the unfinished build; or build without"
                " --resume"
            )
            raise ResumeError(describe(where, name, _text(value), expected))


def unchanged_corpora(before: dict[str, Any], plan: dict[str, Any]) -> dict[int, int]:
    """Return the numbers of unchanged corpora, each with its number in an unfinished build.

    The result is empty if the plans differ in anything else that decides the tokens of a document.
    It is also empty if the plans are equal: then the build begins anew for another reason.
    """
    is_same = all(
        before.get(name) == value for name, value in plan.items() if name not in _CORPUS_NAMES
    )
    if not is_same or before == plan:
        return {}
    old = list(zip(before["corpora"], before["corpus files"], strict=True))
    places: dict[int, int] = {}
    for place, corpus in enumerate(zip(plan["corpora"], plan["corpus files"], strict=True)):
        for number, old_corpus in enumerate(old):
            if old_corpus == corpus and number not in places.values():
                places[place] = number
                break
    return places


def program() -> str:
    """Return the name and version of this program."""
    return f"rest-store {__version__}"


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def template_digest(tokenizer: TargetTokenizer) -> str | None:
    """Return the digest of the chat template; None: there is no template."""
    if tokenizer.chat_template is None:
        return None
    return f"sha256:{text_sha256(tokenizer.chat_template)}"


def _text(value: object) -> str:
    if isinstance(value, list):  # of corpora
        return "; ".join(map(_spec_text, value))
    return "not set" if value is None else str(value)


def _spec_text(spec: dict[str, Any]) -> str:
    """Return the options of a corpus that are set, or the summary of its files, as a text."""
    shown = {**spec, "gitignore": "off" if spec.get("gitignore") is False else None}
    shown["texts"] = None if spec.get("texts") == "all" else spec.get("texts")
    names = sorted(shown, key=lambda name: (name != "path", name))
    return " ".join(f"{name}={shown[name]}" for name in names if shown[name])
