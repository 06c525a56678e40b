"""Data sets of the Hugging Face Hub, streamed through `datasets`: `hf://owner/name[/config][@split]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from build_index.documents import Document
from build_index.errors import build_packages, first_line
from build_index.readers.records import RecordReader
from rest_store.errors import CorpusError, CorpusNotFoundError, RestStoreError, describe
from rest_store.loading.hub import hub_failure

_ADDRESS = re.compile(r"hf://(?P<repository>[^/@]+/[^/@]+)(?:/(?P<rest>[^@]+))?(?:@(?P<split>[^@/]+))?")


def hub_arguments(address: str) -> tuple[str, dict[str, str | None]]:
    """Return the repository, and the other arguments of `datasets.load_dataset`, of an address.

    In the place of the configuration, a path with a slash names a directory of the repository, such as The Stack's
    `data/python`.

    Raises:
        CorpusError: the address is malformed.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise CorpusError(describe(address, "address", "malformed", "hf://owner/name[/config][@split]"))
    rest = match["rest"]
    is_directory = rest is not None and "/" in rest
    options = {"name": None if is_directory else rest, "data_dir": rest if is_directory else None}
    return match["repository"], {**options, "split": match["split"]}


def read_hub(address: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a data set, row by row as they arrive.

    Args:
        address: see `hub_arguments`.
        records: extracts the document of each row.

    Yields:
        Documents, with the address and the row as `origin`.

    Raises:
        CorpusNotFoundError: no such data set, configuration or split.
        CorpusError: the data set cannot be loaded, or the connection is lost.
        CorpusFormatError: a row has another layout.
    """
    row = 0
    try:
        for record in _rows(address):
            for document in records.documents(record, f"{address}:row {row}"):
                texts = (document.text, *(content for _, content in document.messages))
                records.counts.advance(sum(len(text.encode()) for text in texts))
                yield document
            row += 1
    except RestStoreError:
        raise
    except Exception as error:  # errors of the network and of every decoder
        raise CorpusError(f"{address}:row {row}: the data set cannot be read ({first_line(error)})") from error


def load_dataset(address: str) -> Any:
    """Open a data set for streaming; nothing else calls `datasets`.

    Returns:
        A `datasets.IterableDataset`, or a dictionary of them by split.

    Raises:
        CorpusError: the hub cannot be reached.
        Exception: of `datasets`.
    """
    repository, options = hub_arguments(address)
    with build_packages(f"hf://{repository}", CorpusError):
        import datasets
    failure = hub_failure(repository, kind="dataset")
    if failure is not None:
        raise CorpusError(f"hf://{repository}: the Hugging Face hub cannot be reached ({failure})")
    return datasets.load_dataset(repository, streaming=True, **options)


def _rows(address: str) -> Iterator[Mapping[str, Any]]:
    try:
        loaded = load_dataset(address)
    except (FileNotFoundError, ValueError) as error:  # no such data set; no such configuration or split
        if isinstance(error, CorpusError):
            raise
        problem, expected = f"not found ({first_line(error)})", "a data set, configuration and split that exist"
        raise CorpusNotFoundError(describe(address, "data set", problem, expected)) from error
    if isinstance(loaded, Mapping):
        name = next(iter(loaded)) if len(loaded) == 1 else "train"
        if name not in loaded:
            expected = "one of hf://...@" + ", @".join(map(str, loaded))
            raise CorpusNotFoundError(describe(address, "the split", "not set, and none is named 'train'", expected))
        loaded = loaded[name]
    yield from loaded
