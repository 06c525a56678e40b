"""Build a datastore: read, drop duplicates, tokenize, cut into shards, sort, put in place.

    summary = build(BuildOptions((CorpusSpec("src/"),), "HuggingFaceTB/SmolLM2-135M-Instruct", Path("ds")))

A build has two stages (build_index/stages.py). The first makes a tokens file of each slice of the corpora, the second a
suffix array for each shard of these tokens. A file appears when it is complete, and what is in it depends on corpora
and options alone: an interrupted build is resumed by making what is not there, to the same bytes. The complete
datastore appears at its place in one rename.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from build_index.build_plan import build_plan, program, require_same_plan, template_digest, text_sha256
from build_index.corpus import Corpus, empty_corpora, open_corpus
from build_index.duplicates import SeenDocuments
from build_index.errors import build_packages, output_errors
from build_index.memory import (
    WORKER_BYTES,
    MemoryPlan,
    available_budget,
    limit_arenas,
    plan_memory,
    resident_bytes,
)
from build_index.options import BuildOptions, BuildSummary
from build_index.progress import ProgressListener, StageProgress
from build_index.ray_workers import RayCluster, RayWorkers, connected
from build_index.shard_tokens import ShardTokens
from build_index.slices import Setup
from build_index.stages import Stages
from build_index.staging import Staging, final_place, kept_shards
from build_index.target_tokenizer import EncoderError
from build_index.tokenization import TargetTokenizer, load_tokenizer
from build_index.workers import OwnProcess, Processes, Workers, useful_processes
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard
from rest_store.errors import BuildError, CorpusError, DatastoreError, MemoryBudgetError, ResumeError, describe

__all__ = ["BuildOptions", "BuildSummary", "build"]


def build(options: BuildOptions, progress: ProgressListener | None = None) -> BuildSummary:
    """Build a datastore.

    Args:
        options: what to build.
        progress: called with the progress of each stage, by this thread, a few times a second.

    Raises:
        CorpusError: a corpus cannot be read; EmptyCorpusError: there is nothing to store.
        TokenizerLoadError: the tokenizer cannot be loaded.
        MemoryBudgetError: the build does not fit into the memory budget.
        OutputError: the datastore cannot be written, or something else is at its place.
        DatastoreError: new shards cannot be opened, for instance because too many files are open.
        ResumeError: there is nothing to resume, or it has other inputs, options or another tokenizer; or an unfinished
            build is there and `options.resume` is not set.
        WorkerError: a worker process ends.
        MissingExtraError: `options.ray` is set, and Ray is not installed.
        ClusterError: its cluster cannot do the build.

    Whatever happens, even if the process is killed, `options.out` holds its old content or the complete datastore. What
    can be resumed is kept beside it. Not thread-safe, since `options.workers` acts on the whole process.
    """
    start = time.perf_counter()
    final_place(options.out)
    with build_packages("build", BuildError):
        import pydivsufsort  # noqa: F401 - before the memory is divided
    limit_arenas()
    corpora = [open_corpus(spec) for spec in options.corpora]
    if not options.resume:  # then the shards are those of the unfinished build
        # The tokenizer, which may have to be downloaded, is not loaded if even the smallest vocabulary does not fit.
        plan_memory(_budget(options), resident_bytes(), 1, options.shard_tokens)
    with ExitStack() as stack:
        cluster = None if options.ray is None else stack.enter_context(connected(options.ray))
        stack.enter_context(_tokenizer_threads(options.workers))
        before = resident_bytes()
        tokenizer = _load_tokenizer(options, progress)
        for corpus in corpora:
            _import_reader(corpus)
        with Staging(options.out) as staging:
            unfinished = staging.unfinished_plan() if options.resume else None
            if unfinished is None:
                staging.require_nothing_unfinished()
            if unfinished is None or not str(unfinished.get("encoder")).startswith("tokenizers "):
                tokenizer.accelerate()
            worker_bytes = WORKER_BYTES + max(0, resident_bytes() - before)
            try:
                if cluster is not None:
                    cluster.require_alike(staging.path, [spec.path for spec in options.corpora])
                load_seconds = time.perf_counter() - start
                summary = _build(options, corpora, tokenizer, worker_bytes, cluster, staging, unfinished, progress)
            except BaseException:
                staging.abandon()
                raise
            finally:
                tokenizer.decelerate()  # frees its tables now: the build may be in a cycle that is collected late
    seconds, stages = time.perf_counter() - start, {"load": load_seconds, **summary.stage_seconds}
    peak = summary.peak_memory + resident_bytes("VmHWM")
    return replace(summary, seconds=seconds, stage_seconds=stages, peak_memory=peak)


def _build(
    options: BuildOptions,
    corpora: list[Corpus],
    tokenizer: TargetTokenizer,
    worker_bytes: int,
    cluster: RayCluster | None,
    staging: Staging,
    unfinished: dict[str, Any] | None,
    progress: ProgressListener | None,
) -> BuildSummary:
    """Build; anew without `fastokens` if it is wrong, and go on in one process if several lack memory."""
    while True:
        build = Build(options, corpora, tokenizer, worker_bytes, cluster, staging)
        try:
            return build.run(unfinished, progress)
        except EncoderError as error:
            warnings.warn(f"{staging.out}: {tokenizer.encoder}: {error}; tokenized by tokenizers", stacklevel=2)
            tokenizer.decelerate()
            unfinished = None
        except MemoryBudgetError as error:
            if not build.has_worker_processes:
                raise
            warnings.warn(f"{staging.out}: {error}; read by one process", stacklevel=2)
            options = replace(options, workers=1)
            unfinished = staging.unfinished_plan()


def _load_tokenizer(options: BuildOptions, progress: ProgressListener | None) -> TargetTokenizer:
    start = time.perf_counter()

    def report(done: int) -> None:
        if progress is not None:
            progress([StageProgress("loading", done, 1, "tokenizer", time.perf_counter() - start)])

    report(0)
    tokenizer = load_tokenizer(options.tokenizer, chat_template=options.chat_template)
    report(1)
    return tokenizer


def _budget(options: BuildOptions) -> int:
    return available_budget() // 2 if options.memory is None else options.memory


@contextmanager
def _tokenizer_threads(workers: int | None) -> Iterator[None]:
    """Limit the threads of `tokenizers`, which reads these variables when it first tokenizes in a process."""
    if workers is None:
        yield
        return
    variables = {"RAYON_NUM_THREADS": str(workers), "TOKENIZERS_PARALLELISM": "true"}  # also for one: `ONE_THREAD`
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def _import_reader(corpus: Corpus) -> None:
    """Import the packages of a reader, so that they count before the memory is divided."""
    with build_packages(corpus.spec.path, CorpusError):
        if corpus.reader == "parquet":
            import pyarrow.parquet  # noqa: F401


class Build:
    """One build in its staging directory.

    Attributes:
        has_worker_processes: whether worker processes share the memory.

    Args:
        options: what to build.
        corpora: the opened corpora.
        tokenizer: the tokenizer.
        worker_bytes: memory of a worker process.
        cluster: does the work; None: this machine.
        staging: the staging directory.
    """

    def __init__(
        self,
        options: BuildOptions,
        corpora: list[Corpus],
        tokenizer: TargetTokenizer,
        worker_bytes: int,
        cluster: RayCluster | None,
        staging: Staging,
    ) -> None:
        self.has_worker_processes = False
        self._options = options
        self._corpora = corpora
        self._tokenizer = tokenizer
        self._worker_bytes = worker_bytes
        self._cluster = cluster
        self._staging = staging
        self._vocabulary_size = tokenizer.identity.vocabulary_size

    def run(self, unfinished: dict[str, Any] | None, progress: ProgressListener | None) -> BuildSummary:
        """Build.

        Args:
            unfinished: the plan of the build to resume; None: build from the beginning.
            progress: called with the progress.

        Raises:
            ResumeError: the unfinished build has other inputs, options or another tokenizer, or is damaged.
        """
        plan = build_plan(self._options, self._corpora, self._tokenizer)
        if unfinished is not None:
            require_same_plan(self._staging.out, unfinished, plan)
        memory = self._memory(None if unfinished is None else unfinished["shard_positions"])
        self.has_worker_processes = memory.workers > 0
        if self._cluster is not None:
            self._cluster.require_room(memory.shard, memory.shard_positions)
        if unfinished is None:
            self._staging.start({**plan, "shard_positions": memory.shard_positions})
        resumed_shards = kept_shards(self._staging.out)
        for corpus in self._corpora:
            corpus.row_group_bytes = memory.decoder_bytes
        shard_tokens = ShardTokens(
            self._staging.datastore, self._vocabulary_size, memory.shard_positions, len(self._corpora)
        )
        with ExitStack() as stack:
            seen = None
            if not self._options.keep_duplicates:
                seen = stack.enter_context(closing(SeenDocuments(memory.digests, self._staging.path)))
            workers = stack.enter_context(closing(self._workers(memory)))
            stages = Stages(self._corpora, self._staging, shard_tokens, self._vocabulary_size, seen, workers, progress)
            try:
                records = self._records(stages.run())
            except DatastoreError as error:
                if unfinished is None:
                    raise
                problem, expected = f"damaged ({error})", "intact; remove it to begin anew"
                raise ResumeError(describe(self._staging.path, "unfinished build", problem, expected)) from error
        summary = self.complete(records, stages, shard_tokens, memory, workers.count)
        self._staging.put_in_place()
        return replace(summary, resumed_shards=resumed_shards)

    def _memory(self, shard_positions: int | None) -> MemoryPlan:
        """Divide the memory; `shard_positions` are those of the build that is resumed."""
        most = self._options.workers or len(os.sched_getaffinity(0))
        workers = 0
        if self._cluster is None:
            workers = useful_processes(most, self._corpora, self._tokenizer.is_accelerated)
        positions = shard_positions or self._options.shard_tokens
        budget = _budget(self._options)
        return plan_memory(
            budget, resident_bytes(), self._vocabulary_size, positions, most, workers, self._worker_bytes
        )

    def _workers(self, memory: MemoryPlan) -> Workers:
        setup = Setup(
            corpora=self._corpora,
            tokenizer=self._tokenizer,
            is_accelerated=self._tokenizer.is_accelerated,
            directory=self._staging.slices,
            keeps_duplicates=self._options.keep_duplicates,
        )
        if self._cluster is not None:
            cpus = self._cluster.cpus
            return RayWorkers(setup, min(self._options.workers or cpus, cpus), memory.shard)
        if memory.workers:
            return Processes(setup, memory.workers, memory.sorts)
        return OwnProcess(setup, memory.sorts)

    def _records(self, names: Sequence[str]) -> tuple[ShardRecord, ...]:
        """Check the headers of all shards, and return what the manifest says of them."""
        directory = self._staging.datastore
        with output_errors(directory):
            return tuple(ShardRecord.of(name, Shard.open(directory, name)) for name in names)

    def complete(
        self,
        shards: tuple[ShardRecord, ...],
        stages: Stages,
        shard_tokens: ShardTokens,
        memory: MemoryPlan,
        workers: int,
    ) -> BuildSummary:
        """Write the tokenizer and the manifest, the manifest last, and sum up.

        Raises:
            EmptyCorpusError: there are no shards.
        """
        if not shards:
            raise empty_corpora(self._corpora, sum(counts.without_tokens for counts in shard_tokens.counts))
        manifest = self._manifest(shards, tuple(stages.provenance()))
        self._staging.write(TOKENIZER_FILE_NAME, self._tokenizer.to_json())
        self._staging.write(MANIFEST_NAME, manifest.to_json())
        skipped: Counter[str] = Counter()
        for corpus in manifest.corpora:
            skipped.update(corpus["skipped"])
            skipped["without tokens"] += corpus["without_tokens"]
        size = sum(shard.tokens_size + shard.suffixes_size for shard in shards)
        return BuildSummary(
            out=str(self._staging.out),
            documents=shard_tokens.stored_documents,
            tokens=manifest.token_count,
            duplicates=sum(corpus["duplicates"] for corpus in manifest.corpora),
            skipped={reason: number for reason, number in sorted(skipped.items()) if number},
            split_documents=sum(corpus["split_documents"] for corpus in manifest.corpora),
            shards=len(shards),
            resumed_shards=0,
            shard_positions=memory.shard_positions,
            size=size,
            bytes_per_token=size / manifest.token_count,
            encoder=self._tokenizer.encoder,
            workers=workers,
            stage_seconds=stages.seconds,
            memory=memory.budget,
            peak_memory=stages.peak_memory(os.getpid()) if self._cluster is None else 0,
        )

    def _manifest(self, shards: tuple[ShardRecord, ...], corpora: tuple[dict[str, Any], ...]) -> Manifest:
        options: dict[str, Any] = {
            "keep_duplicates": self._options.keep_duplicates,
            "encoders": [self._tokenizer.encoder],
        }
        if self._options.shard_tokens is not None:
            options["shard_tokens"] = self._options.shard_tokens
        if any(corpus["conversations"] for corpus in corpora):
            options["chat_template"] = template_digest(self._tokenizer)
        digest = text_sha256(self._tokenizer.to_json())
        return Manifest(program(), self._tokenizer.identity, shards, corpora, options, digest)
