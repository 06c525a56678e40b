"""Who reads and tokenizes: the process of the build alone, worker processes beside it, or a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from build_index.corpus import Corpus
from build_index.document_stream import known_bytes
from build_index.duplicates import KnownDocuments
from build_index.encoder import CHECKED_CHARACTERS
from build_index.errors import output_errors
from build_index.memory import MemoryPlan
from build_index.ray_workers import RayCluster, RayWorkers
from build_index.staging import Staging
from build_index.target_tokenizer import TargetTokenizer
from build_index.tasks import Setup
from build_index.workers import ProcessWorkers, Workers

# Bytes of corpora for each worker process, of which two at least are started: it takes a second to start, in which the
# build reads and tokenizes about as much, by `fastokens` or by `tokenizers`.
_ACCELERATED_SHARE = 32 << 20
_SHARE = 4 << 20


def useful_workers(most: int, corpora: Sequence[Corpus], tokenizer: TargetTokenizer) -> int:
    """Return how many worker processes are worth their start; 0: none.

    Args:
        most: how many the user wants.
        corpora: what there is to read.
        tokenizer: the tokenizer.
    """
    share = _ACCELERATED_SHARE if tokenizer.is_accelerated else _SHARE
    return min(most, known_bytes(corpora) // share) if most > 1 else 0


@contextmanager
def started_workers(
    memory: MemoryPlan,
    corpora: Sequence[Corpus],
    tokenizer: TargetTokenizer,
    staging: Staging,
    *,
    most: int | None,
    keep_duplicates: bool,
    cluster: RayCluster | None,
) -> Iterator[tuple[Workers | None, KnownDocuments | None]]:
    """Start the workers.

    Args:
        memory: how many processes there is room for.
        corpora: what to read.
        tokenizer: the tokenizer.
        staging: where they write.
        most: how many the user wants; None: as many as there are.
        keep_duplicates: whether all documents are tokenized.
        cluster: does the work, if there is one.

    Yields:
        The workers, or None; and the table of stored documents that workers look up, or None.
    """
    count = memory.workers if cluster is None else min(most or cluster.cpus, cluster.cpus)
    if not count:
        yield None, None
        return
    with staging.open_batches() as directory:
        path, known = directory / "known", None
        if not keep_duplicates and cluster is None:  # other machines would not see the table change
            with output_errors(path):
                known = KnownDocuments(path, create=True)
        checked = CHECKED_CHARACTERS // count if tokenizer.is_accelerated else None
        setup = Setup(
            corpora=corpora,
            tokenizer=tokenizer,
            checked_characters=checked,
            decoder_bytes=memory.decoder_bytes,
            directory=directory,
            known=None if known is None else path,
            drops_duplicates=not keep_duplicates,
        )
        workers: ProcessWorkers | RayWorkers
        workers = ProcessWorkers(setup, count) if cluster is None else RayWorkers(setup, count, memory.shard)
        with closing(workers):
            yield workers, known
