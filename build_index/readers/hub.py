"""Data sets of the Hugging Face Hub, streamed through `datasets`: `hf://owner/name[/config][@split]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from build_index.documents import Document
from build_index.errors import build_packages, first_line
from build_index.path import HUB_PREFIX
from build_index.readers.records import RecordReader
from rest_store.errors import CorpusError, CorpusNotFoundError, describe
from rest_store.loading.hub import hub_failure

_ADDRESS = re.compile(r"hf://(?P<repository>[^/@]+/[^/@]+)(?:/(?P<rest>[^@]+))?(?:@(?P<split>[^@/]+))?")


@dataclass(frozen=True)
class HubAddress:
    """Where a data set is.

    Attributes:
        repository: `owner/name`.
        config: the configuration, or None.
        data_dir: a directory of the repository, such as The Stack's `data/python`, or None. It is written in the place
            of the configuration and recognized by its slash.
        split: the split; None: `train`, or the only one.
    """

    repository: str
    config: str | None = None
    data_dir: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, address: str) -> HubAddress:
        """Parse `hf://owner/name[/config][@split]`.

        Raises:
            CorpusError: the address is malformed.
        """
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise CorpusError(describe(address, "address", "malformed", "hf://owner/name[/config][@split]"))
        rest = match["rest"]
        is_directory = rest is not None and "/" in rest
        return cls(match["repository"], None if is_directory else rest, rest if is_directory else None, match["split"])


def read_hub(address: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of a data set, row by row as they arrive.

    Args:
        address: see `HubAddress.parse`.
        records: extracts the document of each row.

    Yields:
        Documents, with the address and the row as `origin`.

    Raises:
        CorpusNotFoundError: no such data set, configuration or split.
        CorpusError: the data set cannot be loaded, or the connection is lost.
        CorpusFormatError: a row has another layout.
    """
    rows = _rows(address)
    row = 0
    while True:
        try:
            record = next(rows)
        except StopIteration:
            return
        except CorpusError:
            raise
        except Exception as error:  # errors of the network and of every decoder
            raise CorpusError(f"{address}:row {row}: the data set cannot be read ({first_line(error)})") from error
        for document in records.documents(record, f"{address}:row {row}"):
            records.counts.advance(_utf8_length(document))
            yield document
        row += 1


def load_dataset(address: HubAddress) -> Any:
    """Open a data set for streaming; nothing else calls `datasets`.

    Returns:
        A `datasets.IterableDataset`, or a dictionary of them by split.

    Raises:
        CorpusError: the hub cannot be reached.
        Exception: of `datasets`.
    """
    where = f"{HUB_PREFIX}{address.repository}"
    with build_packages(where, CorpusError):
        import datasets
    failure = hub_failure(address.repository, kind="dataset")
    if failure is not None:
        raise CorpusError(f"{where}: the Hugging Face hub cannot be reached ({failure})")
    return datasets.load_dataset(
        address.repository, name=address.config, data_dir=address.data_dir, split=address.split, streaming=True
    )


def _rows(address: str) -> Iterator[Mapping[str, Any]]:
    try:
        loaded = load_dataset(HubAddress.parse(address))
    except CorpusError:
        raise
    except (FileNotFoundError, ValueError) as error:  # no such data set; no such configuration or split
        problem, expected = f"not found ({first_line(error)})", "a data set, configuration and split that exist"
        raise CorpusNotFoundError(describe(address, "data set", problem, expected)) from error
    except Exception as error:  # errors of the network, a missing login
        raise CorpusError(f"{address}: the data set cannot be loaded ({first_line(error)})") from error
    if isinstance(loaded, Mapping):
        name = next(iter(loaded)) if len(loaded) == 1 else "train"
        if name not in loaded:
            expected = "one of hf://...@" + ", @".join(map(str, loaded))
            raise CorpusNotFoundError(describe(address, "the split", "not set, and none is named 'train'", expected))
        loaded = loaded[name]
    yield from loaded


def _utf8_length(document: Document) -> int:
    return sum(len(text.encode()) for text in (document.text, *(content for _, content in document.messages)))
