"""The plan of a build: what has to be the same to resume it, and to give the same bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import rest_store
from build_index.corpus import Corpus
from build_index.documents import CorpusCounts
from build_index.options import BuildOptions
from build_index.target_tokenizer import TargetTokenizer
from rest_store.errors import ResumeError, describe

_SHOWN_DIGITS = 16


def build_plan(options: BuildOptions, corpora: Sequence[Corpus], tokenizer: TargetTokenizer) -> dict[str, Any]:
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
        "corpus files": [_listing(corpus) for corpus in corpora],
        "encoder": tokenizer.encoder,
    }


def _listing(corpus: Corpus) -> dict[str, Any]:
    """Return what changes if a file of a corpus is added, removed or written again."""
    sha256, number = hashlib.sha256(), 0
    for file in corpus.files(CorpusCounts()):
        sha256.update(json.dumps([file.relative, file.size, file.version]).encode())
        number += 1
    return {"files": number, "sha256": sha256.hexdigest()[:_SHOWN_DIGITS]}


def require_same_plan(where: Path, unfinished: dict[str, Any], plan: dict[str, Any]) -> None:
    """Raise ResumeError, which names the first difference, unless an unfinished build has this plan.

    Args:
        where: the directory of the datastore, for the message.
        unfinished: plan of that build.
        plan: of this one.
    """
    for name, value in plan.items():
        if unfinished.get(name) != value:
            expected = f"{_text(unfinished.get(name))}, as in the unfinished build; or build without --resume"
            raise ResumeError(describe(where, name, _text(value), expected))


def program() -> str:
    """Return the name and version of this program."""
    return f"rest-store {rest_store.__version__}"


def text_sha256(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def template_digest(tokenizer: TargetTokenizer) -> str | None:
    """Return what stands for the chat template, as its text may be long; None: there is none."""
    return None if tokenizer.chat_template is None else f"sha256:{text_sha256(tokenizer.chat_template)}"


def _text(value: object) -> str:
    if isinstance(value, list):  # of corpora
        return "; ".join(" ".join(f"{name}={option}" for name, option in spec.items() if option) for spec in value)
    return "not set" if value is None else str(value)
