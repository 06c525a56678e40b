"""Build a datastore: read, drop duplicates, tokenize, cut into shards, sort, put in place.

    summary = build(BuildOptions((CorpusSpec("src/"),), "HuggingFaceTB/SmolLM2-135M-Instruct", Path("ds")))

Tokens go straight to disk. Complete shards are sorted, each in a thread of its own, while the next is tokenized. A
journal records every complete tokens file and suffix array, and an interrupted build resumes from it to the same bytes.
The complete datastore appears at its place in one rename.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from build_index.allocator import limit_arenas
from build_index.build_plan import build_plan, program, require_same_plan, template_digest, text_sha256
from build_index.corpus import Corpus, empty_corpora, open_corpus
from build_index.duplicates import SeenDocuments
from build_index.encoder import EncoderError
from build_index.errors import build_packages
from build_index.journal import BuildState, Completion, read_journal
from build_index.memory import WORKER_BYTES, MemoryPlan, available_budget, plan_memory, resident_bytes
from build_index.options import BuildOptions, BuildSummary
from build_index.pipeline import Pipeline
from build_index.progress import ProgressListener, StageProgress
from build_index.ray_workers import RayCluster, connected
from build_index.staging import Staging, final_place
from build_index.tokenization import TargetTokenizer, load_tokenizer
from build_index.worker_choice import started_workers, useful_workers
from build_index.workers import Workers
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard, TokensFile
from rest_store.errors import (
    BuildError,
    CorpusError,
    DatastoreError,
    MemoryBudgetError,
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
        progress: called with the progress of each stage, by this thread, a few times a second.

    Raises:
        CorpusError: a corpus cannot be read; EmptyCorpusError: there is nothing to store.
        TokenizerLoadError: the tokenizer cannot be loaded.
        MemoryBudgetError: the build does not fit into the memory budget.
        OutputError: the datastore cannot be written, or something else is at its place.
        DatastoreError: new shards cannot be opened, for instance because too many files are open.
        ResumeError: there is nothing to resume, or it has other inputs, options or another tokenizer; or an unfinished
            build is there and `options.resume` is not set.
        WorkerError: a worker process ends again and again.
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
            unfinished = None
            if options.resume:
                unfinished = staging.unfinished()
            else:
                staging.require_nothing_unfinished()
            if unfinished is None or not unfinished.gave_up_fastokens:
                tokenizer.accelerate()
            worker_bytes = WORKER_BYTES + max(0, resident_bytes() - before)
            try:
                if cluster is not None:
                    cluster.require_alike(staging.path, [spec.path for spec in options.corpora])
                load_seconds = time.perf_counter() - start
                summary = _build(options, corpora, tokenizer, worker_bytes, cluster, staging, unfinished, progress)
            except BaseException:
                _keep_resumable(staging)
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
    unfinished: BuildState | None,
    progress: ProgressListener | None,
) -> BuildSummary:
    """Build; if `fastokens` is wrong, or workers lack memory, again from the last complete shard without them."""
    while True:
        build = Build(options, corpora, tokenizer, worker_bytes, cluster, staging, unfinished)
        try:
            return build.run(progress)
        except EncoderError as error:
            message = f"{tokenizer.encoder}: {error}; tokenized by tokenizers"
            tokenizer.decelerate()
        except MemoryBudgetError as error:
            if not build.has_worker_processes:
                raise
            options = replace(options, workers=1)
            message = f"{error}; read by one process"
        warnings.warn(f"{staging.out}: {message} from the last complete shard on", UserWarning, stacklevel=2)
        unfinished = staging.unfinished()


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
        if corpus.reader == "hub":
            import datasets  # noqa: F401
        elif corpus.reader == "parquet":
            import pyarrow.parquet  # noqa: F401


def _keep_resumable(staging: Staging) -> None:
    """After a failure, keep what can be resumed and nothing else."""
    state = read_journal(staging.journal_path)
    if state is None or not state.tokens:
        staging.discard()
    elif state.completion is None:
        with suppress(OutputError):
            staging.keep_only({f"{record.name}.{kind}" for record in state.tokens for kind in ("tokens", "suffixes")})


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
        unfinished: the state to resume; None: build from the beginning.

    Raises:
        ResumeError: the unfinished build has other inputs, options or another tokenizer.
    """

    def __init__(
        self,
        options: BuildOptions,
        corpora: list[Corpus],
        tokenizer: TargetTokenizer,
        worker_bytes: int,
        cluster: RayCluster | None,
        staging: Staging,
        unfinished: BuildState | None,
    ) -> None:
        self._options = options
        self._corpora = corpora
        self._tokenizer = tokenizer
        self._worker_bytes = worker_bytes
        self._cluster = cluster
        self.has_worker_processes = False
        self._staging = staging
        plan = build_plan(options, tokenizer)
        self._state = BuildState(plan) if unfinished is None else unfinished
        self._resumed_shards = len(self._state.tokens)
        self._is_resumed = unfinished is not None
        if unfinished is not None:
            require_same_plan(staging.out, unfinished.plan, plan)

    def run(self, progress: ProgressListener | None) -> BuildSummary:
        """Build, or resume."""
        if self._state.completion is not None:
            return self.put_in_place(self._state.completion)
        memory = self._memory()
        self.has_worker_processes = memory.workers > 0
        if self._cluster is not None:
            self._cluster.require_room(memory.shard, memory.shard_positions)
        if self._is_resumed:
            self._require_intact()
        else:
            self._staging.start()
        for corpus in self._corpora:
            corpus.decoder_bytes = memory.decoder_bytes
        with ExitStack() as stack:
            journal = stack.enter_context(closing(self._staging.open_journal()))
            if not self._is_resumed:
                journal.append("plan", {**self._state.plan, "shard_positions": memory.shard_positions})
            if self._state.encoders[-1:] != [self._tokenizer.encoder]:
                journal.append("encoder", {"program": self._tokenizer.encoder})
                self._state.encoders.append(self._tokenizer.encoder)
            seen = None
            if not self._options.keep_duplicates:
                seen = stack.enter_context(closing(SeenDocuments(memory.digests, self._staging.path)))
            workers, known = stack.enter_context(
                started_workers(
                    memory,
                    self._corpora,
                    self._tokenizer,
                    self._staging,
                    most=self._options.workers,
                    keep_duplicates=self._options.keep_duplicates,
                    cluster=self._cluster,
                )
            )
            pipeline = Pipeline(
                self._corpora, self._tokenizer, self._staging, journal, self._state, memory, seen, workers, known
            )
            pipeline.run(progress)
            completion = self.complete(pipeline, memory, workers)
            journal.append("complete", completion)
        return self.put_in_place(completion)

    def _memory(self) -> MemoryPlan:
        positions = self._state.plan["shard_positions"] if self._is_resumed else self._options.shard_tokens
        size = self._tokenizer.identity.vocabulary_size
        most = self._options.workers or len(os.sched_getaffinity(0))
        workers = 0 if self._cluster is not None else useful_workers(most, self._corpora, self._tokenizer)
        budget = _budget(self._options)
        return plan_memory(budget, resident_bytes(), size, positions, most, workers, self._worker_bytes)

    def _require_intact(self) -> None:
        """Check the headers of the files in the journal, and remove all other files."""
        directory = self._staging.datastore
        names = {f"{record.name}.tokens" for record in self._state.tokens}
        self._staging.keep_only(names | {f"{name}.suffixes" for name in self._state.suffixes})
        try:
            for record in self._state.tokens:
                shard = self._state.suffixes.get(record.name)
                if shard is not None:
                    shard.require_same(ShardRecord.of(record.name, Shard.open(directory, record.name)), directory)
                    continue
                sha256 = TokensFile.open(directory / f"{record.name}.tokens").header.sha256.hex()
                if sha256 != record.sha256:
                    raise MixedBuildError(describe(directory / record.name, "checksum", sha256, record.sha256))
        except DatastoreError as error:
            problem, expected = f"damaged ({error})", "intact; remove it to begin anew"
            raise ResumeError(describe(self._staging.path, "unfinished build", problem, expected)) from error

    def complete(self, pipeline: Pipeline, memory: MemoryPlan, workers: Workers | None) -> Completion:
        """Write the tokenizer and the manifest, the manifest last, and sum up."""
        manifest = self._manifest(pipeline)
        self._staging.write(TOKENIZER_FILE_NAME, self._tokenizer.to_json())
        self._staging.write(MANIFEST_NAME, manifest.to_json())
        self._staging.sync()
        summary = self._summary(manifest, pipeline, memory, workers)
        return Completion(text_sha256(manifest.to_json()), asdict(summary))

    def _manifest(self, pipeline: Pipeline) -> Manifest:
        """Return the manifest of the shards that were built; raise EmptyCorpusError if there are none."""
        shards = tuple(self._state.suffixes[record.name] for record in self._state.tokens)
        if not shards:
            without_tokens = sum(counts.without_tokens for counts in pipeline.shard_tokens.end.counts)
            raise empty_corpora(self._corpora, without_tokens)
        corpora = tuple(pipeline.provenance())
        options: dict[str, Any] = {
            "keep_duplicates": self._options.keep_duplicates,
            "encoders": self._state.encoders,
        }
        if self._options.shard_tokens is not None:
            options["shard_tokens"] = self._options.shard_tokens
        if any(corpus["conversations"] for corpus in corpora):
            options["chat_template"] = template_digest(self._tokenizer)
        digest = text_sha256(self._tokenizer.to_json())
        return Manifest(program(), self._tokenizer.identity, shards, corpora, options, digest)

    def _summary(
        self, manifest: Manifest, pipeline: Pipeline, memory: MemoryPlan, workers: Workers | None
    ) -> BuildSummary:
        skipped: Counter[str] = Counter()
        for corpus in manifest.corpora:
            skipped.update(corpus["skipped"])
            skipped["without tokens"] += corpus["without_tokens"]
        size = sum(shard.tokens_size + shard.suffixes_size for shard in manifest.shards)
        return BuildSummary(
            out=str(self._staging.out),
            documents=pipeline.shard_tokens.end.stored_documents,
            tokens=manifest.token_count,
            duplicates=sum(corpus["duplicates"] for corpus in manifest.corpora),
            skipped={reason: number for reason, number in sorted(skipped.items()) if number},
            split_documents=sum(corpus["split_documents"] for corpus in manifest.corpora),
            shards=len(manifest.shards),
            resumed_shards=self._resumed_shards,
            shard_positions=memory.shard_positions,
            size=size,
            bytes_per_token=size / manifest.token_count,
            encoders=self._state.encoders,
            workers=1 if workers is None else workers.count,
            stage_seconds=pipeline.stage_seconds(),
            memory=memory.budget,
            peak_memory=0 if workers is None else workers.peak_memory(),
        )

    def put_in_place(self, completion: Completion) -> BuildSummary:
        """Put the complete datastore in place, unless it is there already."""
        digest = completion.manifest_sha256
        if self._staging.is_in_place(digest):
            self._staging.discard()
        elif self._staging.is_complete(digest):
            self._staging.put_in_place()
        else:
            expected = "complete, as in its journal; remove it to begin anew"
            raise ResumeError(describe(self._staging.path, "unfinished build", "incomplete", expected))
        return BuildSummary(**completion.summary)
