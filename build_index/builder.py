"""Build a datastore: read, drop duplicates, tokenize, cut into shards, sort, put in place.

    summary = build(BuildOptions((CorpusSpec("src/"),), "HuggingFaceTB/SmolLM2-135M-Instruct", Path("ds")))

Tokens go straight to disk. While one shard is being sorted in a thread of its own, the next is being tokenized; there
are never more than these two. Every complete tokens file and suffix array is entered in a journal, from which an
interrupted build goes on to the same bytes. The datastore appears at its place complete, in one rename.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import rest_store
from build_index.corpus import Corpus, open_corpus
from build_index.duplicates import SeenDocuments
from build_index.errors import build_packages
from build_index.journal import BuildState, Completion, read_journal
from build_index.memory import MemoryPlan, available_budget, limit_arenas, plan_memory, resident_bytes
from build_index.options import BuildOptions, BuildSummary
from build_index.pipeline import Pipeline
from build_index.progress import ProgressListener
from build_index.staging import Staging, final_place
from build_index.tokenization import TargetTokenizer, load_tokenizer
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard, TokensFile
from rest_store.errors import (
    BuildError,
    CorpusError,
    DatastoreError,
    EmptyCorpusError,
    MixedBuildError,
    OutputError,
    ResumeError,
    describe,
)

__all__ = ["BuildOptions", "BuildSummary", "build"]


def build(options: BuildOptions, progress: ProgressListener | None = None) -> BuildSummary:
    """Build a datastore.

    Args:
        options: what to build.
        progress: told how far each stage is; called by this thread, a few times a second.

    Returns:
        The summary.

    Raises:
        CorpusError: a corpus cannot be read; EmptyCorpusError: there is nothing to store.
        TokenizerLoadError: the tokenizer cannot be loaded.
        MemoryBudgetError: what must be held at once exceeds the memory budget.
        OutputError: the datastore cannot be written, or something else is at its place.
        DatastoreError: shards cannot be opened that have just been written, as there may be too many open files.
        ResumeError: there is nothing to resume, or it is of other inputs, options or another tokenizer.

    Whatever happens, even the end of the process, `options.out` holds what it held before or the complete datastore.
    What can be resumed is kept beside it. Not to be called by several threads at once, since `options.workers` acts on
    the whole process.
    """
    start = time.perf_counter()
    final_place(options.out)
    with build_packages("build", BuildError):
        import pydivsufsort  # noqa: F401 - before the memory is divided
    limit_arenas()
    corpora = [open_corpus(spec) for spec in options.corpora]
    with _tokenizing_threads(options.workers):
        tokenizer = load_tokenizer(options.tokenizer, chat_template=options.chat_template)
        for corpus in corpora:
            _import_reader(corpus)
        with Staging(options.out) as staging:
            unfinished = staging.unfinished() if options.resume else None
            try:
                load_seconds = time.perf_counter() - start
                summary = _Build(options, corpora, tokenizer, staging, unfinished).run(progress)
            except BaseException:
                _leave(staging)
                raise
    seconds, stages = time.perf_counter() - start, {"load": load_seconds, **summary.stage_seconds}
    return replace(summary, seconds=seconds, stage_seconds=stages, peak_memory=resident_bytes("VmHWM"))


@contextmanager
def _tokenizing_threads(workers: int | None) -> Iterator[None]:
    """Limit the threads of `tokenizers`, which reads these variables when it first tokenizes in a process."""
    if workers is None:
        yield
        return
    wanted = {"RAYON_NUM_THREADS": str(workers), "TOKENIZERS_PARALLELISM": "true" if workers > 1 else "false"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_reader(corpus: Corpus) -> None:
    """Import the packages of a reader, so that they count before the memory is divided."""
    with build_packages(corpus.spec.path, CorpusError):
        if corpus.reader == "hub":
            import datasets  # noqa: F401
        elif corpus.reader == "parquet":
            import pyarrow.parquet  # noqa: F401


def _leave(staging: Staging) -> None:
    """After a failure, keep what can be resumed and nothing else."""
    state = read_journal(staging.journal_path)
    if state is None or not state.tokens:
        staging.discard()
    elif state.completion is None:
        kept = {f"{record.name}.{kind}" for record in state.tokens for kind in ("tokens", "suffixes")}
        with suppress(OutputError):
            staging.keep_only(kept)


class _Build:
    """One build in its staging directory."""

    def __init__(
        self,
        options: BuildOptions,
        corpora: list[Corpus],
        tokenizer: TargetTokenizer,
        staging: Staging,
        unfinished: BuildState | None,
    ) -> None:
        self.options = options
        self.corpora = corpora
        self.tokenizer = tokenizer
        self.staging = staging
        self.vocabulary_size = tokenizer.identity.vocabulary_size
        self.plan = self._plan()
        self.state = BuildState(self.plan) if unfinished is None else unfinished
        self.resumed_shards = len(self.state.tokens)
        self.is_resumed = unfinished is not None
        if unfinished is not None:
            _require_same_plan(staging.out, unfinished.plan, self.plan)

    def run(self, progress: ProgressListener | None) -> BuildSummary:
        """Build, or go on building."""
        if self.state.completion is not None:
            return self._put_in_place(self.state.completion)
        memory = self._memory()
        if self.is_resumed:
            self._require_intact()
        else:
            self.staging.start()
        with ExitStack() as stack:
            journal = stack.enter_context(closing(self.staging.open_journal()))
            if not self.is_resumed:
                journal.append("plan", {**self.plan, "shard_positions": memory.shard_positions})
            seen = None
            if not self.options.keep_duplicates:
                seen = stack.enter_context(closing(SeenDocuments(memory.digests, self.staging.path)))
            line = Pipeline(self.corpora, self.tokenizer, self.staging, journal, self.state, memory, seen)
            line.run(progress)
            completion = self._complete(line, memory)
            journal.append("complete", asdict(completion))
        return self._put_in_place(completion)

    def _plan(self) -> dict[str, Any]:
        """Return what must be the same for a build to be resumed."""
        options = self.options
        return {
            "program": _program(),
            "tokenizer": self.tokenizer.identity.name,
            "tokenizer content": _sha256(self.tokenizer.to_json()),
            "chat template": _template_digest(self.tokenizer),
            "shard_tokens": options.shard_tokens,
            "keep_duplicates": options.keep_duplicates,
            "corpora": [json.loads(json.dumps(asdict(spec))) for spec in options.corpora],
        }

    def _memory(self) -> MemoryPlan:
        budget = self.options.memory if self.options.memory is not None else available_budget() // 2
        positions = self.state.plan["shard_positions"] if self.is_resumed else self.options.shard_tokens
        return plan_memory(budget, resident_bytes(), self.vocabulary_size, positions)

    def _require_intact(self) -> None:
        """See that the files of the journal are there, as far as their headers tell; remove all others."""
        directory = self.staging.datastore
        expected = {f"{record.name}.tokens" for record in self.state.tokens}
        self.staging.keep_only(expected | {f"{name}.suffixes" for name in self.state.suffixes})
        try:
            for record in self.state.tokens:
                written = self.state.suffixes.get(record.name)
                if written is not None:
                    written.require_same(ShardRecord.of(record.name, Shard.open(directory, record.name)), directory)
                    continue
                header = TokensFile.open(directory / f"{record.name}.tokens").header
                if header.sha256.hex() != record.sha256:
                    what = describe(directory / record.name, "checksum", header.sha256.hex(), record.sha256)
                    raise MixedBuildError(what)
        except DatastoreError as error:
            found = f"damaged ({error})"
            raise ResumeError(describe(self.staging.path, "unfinished build", found, "intact")) from error

    def _complete(self, line: Pipeline, memory: MemoryPlan) -> Completion:
        """Write what is not a shard, the manifest last, and take stock."""
        shards = tuple(self.state.suffixes[record.name] for record in self.state.tokens)
        if not shards:
            where = ", ".join(corpus.spec.path for corpus in self.corpora)
            raise EmptyCorpusError(describe(where, "the number of documents with tokens", 0, "at least 1"))
        corpora = tuple(line.provenance())
        options: dict[str, Any] = {"keep_duplicates": self.options.keep_duplicates}
        if self.options.shard_tokens is not None:
            options["shard_tokens"] = self.options.shard_tokens
        if any(corpus["conversations"] for corpus in corpora):
            options["chat_template"] = _template_digest(self.tokenizer)
        manifest = Manifest(_program(), self.tokenizer.identity, shards, corpora, options)
        self.staging.write(TOKENIZER_FILE_NAME, self.tokenizer.to_json())
        self.staging.write(MANIFEST_NAME, manifest.to_json())
        self.staging.sync()

        skipped: Counter[str] = Counter()
        for corpus in corpora:
            skipped.update(corpus["skipped"])
            skipped["without tokens"] += corpus["without_tokens"]
        size = sum(shard.tokens_size + shard.suffixes_size for shard in shards)
        summary = BuildSummary(
            out=str(self.staging.out),
            documents=line.shard_tokens.end.stored_documents,
            tokens=manifest.token_count,
            duplicates=sum(corpus["duplicates"] for corpus in corpora),
            skipped={reason: number for reason, number in sorted(skipped.items()) if number},
            split_documents=sum(corpus["split_documents"] for corpus in corpora),
            shards=len(shards),
            resumed_shards=self.resumed_shards,
            shard_positions=memory.shard_positions,
            size=size,
            bytes_per_token=size / manifest.token_count,
            stage_seconds=line.stage_seconds(),
            memory=memory.budget,
        )
        return Completion(_sha256(manifest.to_json()), summary.to_json())

    def _put_in_place(self, completion: Completion) -> BuildSummary:
        digest = completion.manifest_sha256
        if self.staging.is_in_place(digest):
            self.staging.discard()
        elif self.staging.is_complete(digest):
            self.staging.put_in_place()
        else:
            expected = "complete, as its journal says; build without --resume"
            raise ResumeError(describe(self.staging.path, "unfinished build", "without its files", expected))
        return BuildSummary(**completion.summary)


def _require_same_plan(where: Path, unfinished: dict[str, Any], asked: dict[str, Any]) -> None:
    for name, value in asked.items():
        if unfinished.get(name) != value:
            expected = f"{_shown(unfinished.get(name))}, as in the unfinished build; or build without --resume"
            raise ResumeError(describe(where, name, _shown(value), expected))


def _shown(value: object) -> str:
    if isinstance(value, list):  # of corpora
        given = [{name: option for name, option in corpus.items() if option} for corpus in value]
        return "; ".join(" ".join(f"{name}={option}" for name, option in corpus.items()) for corpus in given)
    return "not given" if value is None else str(value)


def _program() -> str:
    return f"rest-store {rest_store.__version__}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _template_digest(tokenizer: TargetTokenizer) -> str | None:
    """Return what the manifest says of the chat template: its text shapes the content, and may be long."""
    return None if tokenizer.chat_template is None else f"sha256:{_sha256(tokenizer.chat_template)}"
