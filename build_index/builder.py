"""Build a datastore: read, drop duplicates, tokenize, cut into shards, sort, put in place.

    tokenizer = "HuggingFaceTB/SmolLM2-135M-Instruct"
    summary = build(BuildOptions((CorpusSpec("src/"),), tokenizer, Path("ds")))

A build has two stages (build_index/stages.py). The first makes a tokens file of each slice of the
corpora, the second a suffix array for each shard of these tokens. A file appears when it is
complete, and its content depends on corpora and options alone. An interrupted build is resumed by
making the files that are absent, to the same bytes. The complete datastore appears at its place in
one rename.
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from build_index.build_options import MAX_LOST_SHARE, BuildOptions, BuildSummary
from build_index.build_plan import (
    build_plan,
    program,
    require_same_plan,
    template_digest,
    text_sha256,
    unchanged_corpora,
)
from build_index.corpus import Corpus, empty_corpora, open_corpus
from build_index.documents import CorpusCounts, well_formed
from build_index.duplicates import SeenDocuments
from build_index.fast_encoder import EncoderError
from build_index.memory_plan import (
    MemoryPlan,
    MemoryPlanner,
    limit_arenas,
    plan_memory,
    resident_bytes,
    sufficient_budget,
)
from build_index.output_errors import output_errors
from build_index.progress import ProgressListener
from build_index.ray_workers import RayWorkers, connected
from build_index.readers.parquet import HeldAtOnceError
from build_index.readers.unreadable_files import reason_text
from build_index.shard_tokens import ShardTokens
from build_index.size import MIB
from build_index.slices import Setup
from build_index.stages import Stages
from build_index.staging import Staging, final_place, finished_shards
from build_index.tokenization import TargetTokenizer, load_in_process, load_tokenizer
from build_index.workers import Processes, Workers, limit_threads, usable_cores, worker_count
from rest_store.datastore.available_memory import available_bytes
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard
from rest_store.errors import CorpusError, DatastoreError, MemoryBudgetError, ResumeError, describe
from rest_store.extras import named_extras

__all__ = ["BuildOptions", "BuildSummary", "build"]


@named_extras("build")
def build(options: BuildOptions, progress: ProgressListener | None = None) -> BuildSummary:
    """Build a datastore.

    Args:
        options: the options of the build.
        progress: called with the progress of each stage, by this thread, a few times a second.

    Raises:
        CorpusError: a corpus cannot be read, or there is nothing to store.
        TokenizerLoadError: the tokenizer cannot be loaded.
        MemoryBudgetError: the build does not fit into the memory budget.
        OutputError: the datastore cannot be written, or something else is at its place.
        DatastoreError: new shards cannot be opened, for instance because too many files are open.
        ResumeError: `options.resume` is set, and there is nothing to resume, or it has other
            inputs, options or another tokenizer, or is damaged.
        WorkerError: a worker process ends, or the cluster cannot do the build.
        MissingExtraError: a package of the extra [build] is missing, or Ray, for `options.ray`.

    `options.out` always holds its old content or the complete datastore, even if the process is
    killed. The files of an interrupted build stay beside it: the next build of the same inputs and
    options goes on with them. A build in which only corpora differ keeps the slices of those that
    are unchanged, and any other build removes all. Not thread-safe, since
    `options.workers` acts on the whole process.
    """
    start = time.perf_counter()
    final_place(options.out)
    import pydivsufsort  # noqa: F401 - before the memory is divided

    limit_arenas()
    if options.workers is not None:
        limit_threads(options.workers)
    corpora = [open_corpus(spec) for spec in options.corpora]
    with ExitStack() as stack:
        if options.ray is not None:
            stack.enter_context(connected(options.ray))
        tokenizer = load_tokenizer(
            load_in_process(options.tokenizer), chat_template=options.chat_template
        )
        if any(corpus.reader in ("parquet", "arrow") for corpus in corpora):
            import pyarrow.parquet  # noqa: F401 - before the memory is divided, too
        staging = stack.enter_context(Staging(options.out))
        load_seconds = time.perf_counter() - start
        summary = _build_or_resume(options, corpora, tokenizer, staging, progress)
    stages = {"load": load_seconds, **summary.stage_seconds}
    return replace(summary, seconds=time.perf_counter() - start, stage_seconds=stages)


def _build_or_resume(
    options: BuildOptions,
    corpora: list[Corpus],
    tokenizer: TargetTokenizer,
    staging: Staging,
    progress: ProgressListener | None,
) -> BuildSummary:
    """Go on with the unfinished build if it is the same, or else begin anew.

    If `fastokens` gives wrong tokens, the build begins anew with `tokenizers`.
    """
    unfinished = staging.unfinished_plan()
    if unfinished is None and options.resume:
        expected = "one that was interrupted; build without --resume"
        raise ResumeError(describe(staging.out, "unfinished build", "absent", expected))
    is_fastokens_wrong = unfinished is not None and str(unfinished.get("encoder")).startswith(
        "tokenizers "
    )
    while True:
        if is_fastokens_wrong:
            tokenizer.decelerate()
        else:
            tokenizer.accelerate()
        try:
            return _build(options, corpora, tokenizer, staging, unfinished, progress)
        except EncoderError as error:
            warnings.warn(
                f"{staging.out}: {tokenizer.encoder}: {error}; tokenized by tokenizers",
                stacklevel=3,
            )
            is_fastokens_wrong = True
        except ResumeError:
            if options.resume:
                raise
            is_fastokens_wrong = False
        except CorpusError:
            staging.discard_if_empty()
            raise
        unfinished = None


def _build(
    options: BuildOptions,
    corpora: list[Corpus],
    tokenizer: TargetTokenizer,
    staging: Staging,
    unfinished: dict[str, Any] | None,
    progress: ProgressListener | None,
) -> BuildSummary:
    """Build; `unfinished` is the plan of the build to resume, None: build from the beginning."""
    positions = options.shard_tokens
    if positions is None and unfinished is not None and (options.resume or options.memory is None):
        positions = unfinished.get("shard_positions")  # the free memory differs from run to run
    planned = _memory_planner(options, corpora, tokenizer)
    budget = _memory_budget(options)
    try:
        memory = planned(budget, positions)
    except MemoryBudgetError as error:
        if unfinished is None or options.resume:
            raise
        raise ResumeError(str(error)) from error
    plan = {**build_plan(options, corpora, tokenizer), "shard_positions": memory.shard_positions}
    if unfinished is None:
        staging.start(plan, unchanged_corpora(staging.unfinished_plan() or {}, plan))
    else:
        require_same_plan(staging.out, unfinished, plan)
    resumed_shards = finished_shards(staging.out)
    for corpus in corpora:
        corpus.held_bytes = memory.decoder_bytes
    vocabulary_size = tokenizer.identity.vocabulary_size
    shard_tokens = ShardTokens(
        staging.datastore, vocabulary_size, memory.shard_positions, len(corpora)
    )
    setup = Setup(corpora, tokenizer, tokenizer.is_accelerated, staging.slices)
    with ExitStack() as stack:
        seen = SeenDocuments(memory.digests, staging.path)
        workers = stack.enter_context(closing(_workers(options, setup, memory)))
        stages = Stages(corpora, staging, shard_tokens, seen, workers, progress)
        try:
            names = stages.run()
            with output_errors(staging.datastore):
                shards = tuple(
                    ShardRecord.from_shard(name, Shard.open(staging.datastore, name))
                    for name in names
                )
        except HeldAtOnceError as error:
            # With --resume, the shards keep their size. Without it, more memory may make them
            # larger.
            sizes = {positions, memory.shard_positions}
            sufficient = max(
                sufficient_budget(planned, budget, size, error.needed) for size in sizes
            )
            help_text = (
                f"--memory {sufficient // MIB}M suffices, or write the file again with"
                f" {error.again}"
            )
            raise MemoryBudgetError(f"{error.message}; {help_text}") from error
        except DatastoreError as error:
            if unfinished is None:
                raise
            raise ResumeError(
                f"{staging.path}: the unfinished build is damaged ({error}); build without --resume"
            ) from error
    if not shards:
        staging.discard()
        raise empty_corpora(corpora, sum(shard_tokens.without_tokens))
    staging.remove_other_shards(names)
    manifest = _manifest(options, tokenizer, shards, tuple(stages.provenance()))
    staging.write(TOKENIZER_FILE_NAME, tokenizer.to_json())
    staging.write(MANIFEST_NAME, manifest.to_json())
    staging.put_in_place()
    total = CorpusCounts()
    lost = {}
    for corpus, without_tokens in zip(corpora, shard_tokens.without_tokens, strict=True):
        counts = corpus.counts.with_skipped("without tokens", without_tokens)
        total.add(counts)
        if (share := counts.lost_share()) > MAX_LOST_SHARE:
            lost[well_formed(corpus.spec.path)] = share
            notes = ", ".join(
                reason_text(reason, number) for reason, number in counts.skipped.most_common()
            )
            warnings.warn(
                f"{well_formed(corpus.spec.path)}: {share:.0%} was left out ({notes})", stacklevel=4
            )
    size = sum(shard.tokens_size + shard.suffixes_size for shard in shards)
    return BuildSummary(
        out=str(staging.out),
        documents=shard_tokens.stored_documents,
        tokens=manifest.token_count,
        duplicates=sum(entry["duplicates"] for entry in manifest.corpora),
        skipped={reason: number for reason, number in sorted(total.skipped.items()) if number},
        skipped_bytes=dict(sorted(total.sizes.items())),
        largest_skipped={reason: example for reason, (_, example) in sorted(total.largest.items())},
        lost=lost,
        left_out=dict(sorted(total.left_out.items())),
        refusal=total.refusal,
        split_documents=sum(entry["split_documents"] for entry in manifest.corpora),
        shards=len(shards),
        resumed_shards=resumed_shards,
        shard_positions=memory.shard_positions,
        size=size,
        encoder=tokenizer.encoder,
        slow_reason=tokenizer.slow_reason,
        workers=workers.count,
        stage_seconds=stages.seconds,
        memory=memory.budget,
        peak_memory=resident_bytes("VmHWM") + sum(stages.peaks.values()),
    )


def _memory_budget(options: BuildOptions) -> int:
    if options.memory is not None:
        return options.memory
    if (available := available_bytes()) is None:
        raise MemoryBudgetError(
            "build: the available memory is unknown (no /proc/meminfo); set --memory SIZE"
        )
    return available // 2


def _memory_planner(
    options: BuildOptions, corpora: list[Corpus], tokenizer: TargetTokenizer
) -> MemoryPlanner:
    """Return a function that divides a budget for shards of so many positions; None: that fit."""
    max_workers = options.workers or usable_cores()
    workers = 0 if options.ray is not None else worker_count(max_workers, corpora)
    process_bytes = resident_bytes()
    vocabulary_size = tokenizer.identity.vocabulary_size

    def planned(budget: int, positions: int | None) -> MemoryPlan:
        return plan_memory(budget, process_bytes, vocabulary_size, positions, max_workers, workers)

    return planned


def _workers(options: BuildOptions, setup: Setup, memory: MemoryPlan) -> Workers:
    if options.ray is not None:
        return RayWorkers(setup, options.workers, memory.shard)
    if memory.workers:
        return Processes(setup, memory.workers, memory.sorts)
    return Workers(setup, memory.sorts)


def _manifest(
    options: BuildOptions,
    tokenizer: TargetTokenizer,
    shards: tuple[ShardRecord, ...],
    corpora: tuple[dict[str, Any], ...],
) -> Manifest:
    recorded: dict[str, Any] = {"encoders": [tokenizer.encoder]}
    if options.shard_tokens is not None:
        recorded["shard_tokens"] = options.shard_tokens
    if any(corpus["conversations"] for corpus in corpora):
        recorded["chat_template"] = template_digest(tokenizer)
    digest = text_sha256(tokenizer.to_json())
    return Manifest(program(), tokenizer.identity, shards, corpora, recorded, digest)
