"""Datastores for the benchmarks: Python source, cut to sizes and shards, and a synthetic one of any size.

They are made once in a work folder and found again by name. `python_source` builds from the standard library and all
installed packages. The others are written from its tokens, so that only layout or size differs.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rest_store.bench.datastores import documents_of, write_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME


def python_source(work: Path, tokenizer: str, extra: Sequence[Path]) -> Path:
    """Return the datastore of the standard library's and the installed packages' source, and of `extra` folders."""
    out = work / "python"
    if not (out / FILE_NAME).exists():
        paths = sysconfig.get_paths()
        corpora = dict.fromkeys([paths["stdlib"], paths["purelib"], *map(str, extra)])
        command = [sys.executable, "-m", "rest_store", "build", "--tokenizer", tokenizer, "--out", str(out)]
        command += [part for corpus in corpora for part in ("--corpus", corpus)]
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([*command, "--include", "*.py", "--include", "*.pyi"], check=True)
    return out


def laid_out(source: Path, out: Path, tokens: int | None, shards: int) -> Path:
    """Return a datastore of the first `tokens` tokens of `source` (all if None), in `shards` shards of equal size."""
    if not (out / FILE_NAME).exists():
        store = Datastore.open(source)
        count = min(tokens or store.manifest.token_count, store.manifest.token_count)
        write_datastore(store, out, documents_of(store, count), -(-count // shards))
    return out


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

    return write_datastore(store, out, documents(), shard_tokens)
