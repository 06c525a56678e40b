"""The datastores that benchmarks ask: real Python source, cut to sizes and shards, and one of a billion tokens.

Made once under a work folder and found again by name. `python_source` builds from the standard library and all
installed packages with `rest-build`; the others are laid out anew from its tokens, so that only layout or size differs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from build_index.suffix_array import suffix_array
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id
from rest_store.datastore.manifest import FILE_NAME, TOKENIZER_FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.shard import Shard, TokensFile, TokensWriter, write_suffixes


def python_source(work: Path, tokenizer: str, extra: list[str]) -> Path:
    """Return the datastore of the standard library's and the installed packages' source, and of `extra` folders."""
    out = work / "python"
    if not (out / FILE_NAME).exists():
        paths = sysconfig.get_paths()
        corpora = dict.fromkeys([paths["stdlib"], paths["purelib"], *extra])
        arguments = [part for corpus in corpora for part in ("--corpus", corpus)]
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "rest_store", "build", *arguments, "--include", "*.py", "--include", "*.pyi"),
                *("--tokenizer", tokenizer, "--out", str(out)),
            ],
            check=True,
        )
    return out


def laid_out(source: Path, out: Path, tokens: int | None, shards: int) -> Path:
    """Return a datastore of the first `tokens` tokens of `source` (all if None), in `shards` shards of equal size."""
    if (out / FILE_NAME).exists():
        return out
    store = Datastore.open(source)
    wanted = min(tokens or store.manifest.token_count, store.manifest.token_count)
    return _write(store, out, documents_of(store, wanted), -(-wanted // shards))


def perturbed(source: Path, out: Path, tokens: int, shard_tokens: int) -> Path:
    """Return a SYNTHETIC datastore of `tokens` tokens: perturbed copies of the documents of `source`.

    A tenth of each copy's tokens is replaced by others of the same document, so that copies share n-grams, as forks of
    a project do, but not whole files.
    """
    if (out / FILE_NAME).exists():
        return out
    store = Datastore.open(source)
    rng = np.random.default_rng(0)

    def documents() -> Iterator[np.ndarray]:
        left = tokens
        while left > 0:
            for document in documents_of(store, min(left, store.manifest.token_count)):
                changed = document.copy()
                places = np.flatnonzero(rng.random(document.size) < 0.1)
                changed[places] = document[rng.integers(0, document.size, places.size)]
                left -= document.size
                yield changed

    return _write(store, out, documents(), shard_tokens)


def thinned(source: Path, out: Path, share: float) -> Path:
    """Return a datastore of `share` (0..1) of the tokens of `source`: whole documents, evenly spread, in one shard."""
    store = Datastore.open(source)

    def documents() -> Iterator[np.ndarray]:
        seen = kept = 0
        for document in documents_of(store, store.manifest.token_count):
            if kept <= share * seen:
                kept += document.size
                yield document
            seen += document.size

    return written(store, out, documents())


def written(like: Datastore, out: Path, documents: Iterator[np.ndarray]) -> Path:
    """Return a datastore of `documents` in one shard, of the tokenizer of `like`; what lies at `out` is replaced."""
    shutil.rmtree(out, ignore_errors=True)
    return _write(like, out, documents, 1 << 29)


def documents_of(store: Datastore, tokens: int) -> Iterator[np.ndarray]:
    """Yield documents in order until they hold `tokens` tokens; the last may be cut."""
    separator = separator_id(store.vocabulary_size)
    for shard in store.shards:
        symbols = shard.tokens.symbols()
        start = 0
        for end in np.flatnonzero(symbols == separator).tolist():
            document = symbols[start : min(end, start + tokens)]
            start = end + 1
            tokens -= document.size
            if document.size:
                yield document
            if tokens <= 0:
                return


def _write(store: Datastore, out: Path, documents: Iterator[np.ndarray], shard_tokens: int) -> Path:
    building = out.with_name(out.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    records: list[ShardRecord] = []
    writer: TokensWriter | None = None

    def finish() -> None:
        assert writer is not None
        name = writer.path.stem
        writer.close()
        tokens = TokensFile.open(writer.path)
        order = suffix_array(tokens.payload.reshape(-1, tokens.header.width), vocabulary_size=store.vocabulary_size)
        write_suffixes(building / f"{name}.suffixes", tokens, order)
        records.append(ShardRecord.of(name, Shard.open(building, name)))

    for document in documents:
        if writer is None:
            writer = TokensWriter(building / f"shard-{len(records):05d}.tokens", store.vocabulary_size)
        writer.append(document)
        if writer.position_count - writer.document_count >= shard_tokens:
            finish()
            writer = None
    if writer is not None:
        finish()
    tokenizer, corpora = store.manifest.tokenizer, store.manifest.corpora
    manifest = Manifest("rest-store bench", tokenizer, tuple(records), corpora, {})
    kept = store.path / TOKENIZER_FILE_NAME
    if kept.exists():
        shutil.copy(kept, building)
    (building / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    building.rename(out)
    return out
