"""Shared by tests of corpora: files to read, one conversation, and the documents of a corpus."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from build_index.corpus import Corpus, open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
CHAT = Document(messages=(("user", "Hi"), ("assistant", "Hello")))


def write_files(root: Path, files: Mapping[str, bytes | str]) -> Path:
    """Write files by their paths below `root`, and return `root`."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def read_corpus(path: Path | str, **options: Any) -> tuple[Corpus, list[Document]]:
    """Read all documents of a corpus; `options` are those of `CorpusSpec`."""
    corpus = open_corpus(CorpusSpec(str(path), **options))
    return corpus, list(corpus)


def documents_of(path: Path | str, **options: Any) -> list[Document]:
    return read_corpus(path, **options)[1]


COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2", ".lz4")


def compressed(data: bytes, suffix: str) -> bytes:
    """Compress as the files of an ending are; of any other: not at all."""
    if suffix == ".lz4":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "lz4") as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()
    compress = {
        ".gz": lambda data: gzip.compress(data, mtime=0),
        ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
        ".xz": lzma.compress,
        ".bz2": bz2.compress,
    }.get(suffix, bytes)
    return compress(data)
