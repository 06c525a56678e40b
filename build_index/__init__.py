"""The builder of rest-store: it turns corpora into a datastore of suffix-array shards.

    import build_index

    tokenizer = "HuggingFaceTB/SmolLM2-135M-Instruct"
    store = build_index.build("src/", tokenizer, "code.ds", include="*.py")

This package stands beside `rest_store` and needs the extra [build]. `rest_store.build` is the same
function, and the commands `rest-build` and `rest-store build` take the same options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from build_index.progress import ProgressListener
    from rest_store.datastore.datastore import Datastore

__all__ = ["build"]


def build(
    corpus: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    tokenizer: Any,
    out: str | os.PathLike[str],
    *,
    field: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    max_documents: int | None = None,
    gitignore: bool = True,
    texts: str = "all",
    keep_secrets: bool = False,
    chat_template: str | os.PathLike[str] | None = None,
    shard_tokens: int | None = None,
    memory: int | str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    resume: bool = False,
    progress: ProgressListener | None = None,
) -> Datastore:
    """Build a datastore and open it.

    Args:
        corpus: a file (text, JSON, JSONL, CSV, parquet, Arrow, archives, SQLite, also compressed),
            a directory or an address; or several.
        tokenizer: tokenizer of the target model: an object of `transformers` or `tokenizers`, a
            Hugging Face name, a directory, a `tokenizer.json` or a `.gguf` file.
        out: directory of the datastore; an old datastore there is replaced when the new one is
            complete.
        field: field of each record that holds the document, such as "text" or "a.b"; None: that of
            a known layout.
        include: globs of the files to read in directories; empty: all.
        exclude: globs of files to skip in directories.
        max_documents: bound on the documents of each corpus.
        gitignore: whether to skip the files in directories that `.gitignore` and
            `.git/info/exclude` name.
        texts: "all"; or of conversations alone, "written": the answers of the model, or "read": all
            other texts.
        keep_secrets: whether to keep lines of agents' transcripts that look like keys and tokens.
        chat_template: Jinja template for conversations, or a file with it; None: that of the
            tokenizer.
        shard_tokens: tokens of a shard, document ends included; None: the power of two that fits
            into the memory.
        memory: bound on the memory of this process and its worker processes together in bytes, or
            as text such as "8G"; a model loaded into it counts. None: half of the available memory.
        workers: bound on the processes that read and tokenize, and on the shards sorted at once;
            None: one for each core.
        ray: address of a Ray cluster whose CPUs do the work, or "auto" (needs the extra [ray]);
            None: this machine. All nodes must see corpora and `out`.
        resume: whether to insist on an interrupted build: it is an error if there is none, or if
            its inputs or options differ. False: go on with it if it is the same, or else begin
            anew.
        progress: called with the progress of each stage, a few times a second.

    Returns:
        The datastore at `out`, opened. Its `info()` has the counts of the corpora.

    Raises:
        BuildError: corpora, options or `out` are not valid; the subclass names the kind.
        TokenizerLoadError: the tokenizer cannot be loaded.
        MissingExtraError: a package of the extra [build] is missing, or Ray, for `ray`.

    A UserWarning names each corpus of which more than half was left out though no argument asked
    for it.

    `out` always holds its old content or the complete datastore. A process runs one build at a
    time.
    """
    from build_index.builder import BuildOptions
    from build_index.builder import build as build_datastore
    from build_index.corpus_spec import CorpusSpec
    from build_index.size import parse_size
    from rest_store.datastore.datastore import Datastore
    from rest_store.loading.local_path import local_path

    globs = _texts(include), _texts(exclude)
    reading = (field, *globs, max_documents, gitignore, texts, keep_secrets)
    options = BuildOptions(
        corpora=tuple(CorpusSpec(path, *reading) for path in _texts(corpus)),
        tokenizer=tokenizer,
        out=Path(out),
        shard_tokens=shard_tokens,
        memory=parse_size(memory) if isinstance(memory, str) else memory,
        workers=workers,
        ray=ray,
        resume=resume,
        chat_template=None if chat_template is None else os.fspath(chat_template),
    )
    build_datastore(options, progress)
    return Datastore.open(local_path(out))


def _texts(values: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(values, str | os.PathLike):
        return (os.fspath(values),)
    return tuple(os.fspath(value) for value in values)
