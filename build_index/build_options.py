"""The options and the summary of a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_index.corpus_spec import CorpusSpec, whole_number
from rest_store.errors import BuildError, describe

MAX_LOST_SHARE = 0.5
"""The build warns if it lost a greater share of a corpus's bytes or records."""


@dataclass(frozen=True)
class BuildOptions:
    """The options of a build.

    The attributes are the arguments of `build_index.build`; `corpora` stands for `corpus`, `field`,
    `include`, `exclude`, `max_documents` and `gitignore`.

    The result does not depend on `workers` and `ray`. This process reads small corpora itself. It
    tokenizes them with as many threads, unless it has tokenized before.

    Raises:
        BuildError: there is no corpus, or a number is not whole or out of range.
    """

    corpora: tuple[CorpusSpec, ...]
    tokenizer: Any
    out: Path
    shard_tokens: int | None = None
    memory: int | None = None
    workers: int | None = None
    ray: str | None = None
    resume: bool = False
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.corpora:
            raise BuildError(describe("build", "the number of corpora", 0, "at least 1"))
        for name in ("shard_tokens", "memory", "workers"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(value, "build", name, BuildError))


@dataclass(frozen=True)
class BuildSummary:
    """The result of a build; sizes in bytes, times in seconds.

    Attributes:
        out: the datastore.
        documents: documents stored.
        tokens: tokens stored.
        duplicates: exact duplicates dropped.
        skipped: number of skipped documents and files by reason.
        skipped_bytes: their bytes, by reason, where they are known.
        largest_skipped: by reason, the largest example: a file, a record, or an error about it.
        lost: share of each corpus that was left out though no option asked for it, where it is
            above `MAX_LOST_SHARE`.
        left_out: by kind, how many pieces of stored conversations the datastore lacks.
        refusal: the first conversation that the chat template refused, with the reason; empty: it
            refused none.
        split_documents: documents longer than a shard, stored in pieces.
        shards: number of shards.
        resumed_shards: shards that an earlier, interrupted run had tokenized.
        shard_positions: bound on the tokens and separators of a shard.
        size: bytes of all shard files.
        workers: processes that read and tokenized; 1: the build's own process.
        encoder: name and version of the package that tokenized.
        slow_reason: the reason that a slower package than `fastokens` tokenized; empty if
            `fastokens` did.
        seconds: from start to end.
        stage_seconds: time by stage: `load` (packages and tokenizer), `read`, `tokenize` and
            `sort`. Their sum may exceed `seconds`: sorting overlaps the other stages, and workers
            overlap each other.
        memory: the bound on resident memory.
        peak_memory: sum of the peaks of resident memory of this process, since it started, and of
            each worker process.
    """

    out: str
    documents: int
    tokens: int
    duplicates: int
    skipped: Mapping[str, int]
    left_out: Mapping[str, int]
    refusal: str
    split_documents: int
    shards: int
    resumed_shards: int
    shard_positions: int
    size: int
    encoder: str
    workers: int = 1
    slow_reason: str = ""
    seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    memory: int = 0
    peak_memory: int = 0
    skipped_bytes: Mapping[str, int] = field(default_factory=dict)
    largest_skipped: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
