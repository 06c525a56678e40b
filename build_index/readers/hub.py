"""Data sets of the Hugging Face Hub, streamed through `datasets`: `hf://owner/name[/config][@split]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from build_index.documents import Document
from build_index.packages import import_package
from build_index.readers.records import RecordReader
from rest_store.errors import CorpusError, CorpusNotFoundError, describe

HUB_PREFIX = "hf://"
_ADDRESS = re.compile(r"hf://(?P<repository>[^/@]+/[^/@]+)(?:/(?P<rest>[^@]+))?(?:@(?P<split>[^@/]+))?")


@dataclass(frozen=True)
class HubAddress:
    """Where a data set is.

    Attributes:
        repository: `owner/name`.
        config: the configuration, or None.
        data_dir: a directory of the repository, such as The Stack's `data/python`, or None; written in the place of
            the configuration, and known by its slash.
        split: the split, or None for `train`, or the only one.
    """

    repository: str
    config: str | None = None
    data_dir: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, address: str) -> HubAddress:
        """Read an address.

        Args:
            address: `hf://owner/name[/config][@split]`, or with a directory for the configuration.

        Returns:
            Its parts.

        Raises:
            CorpusError: it is not of this form.
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
        records: takes the document out of each row.

    Yields:
        Documents, `origin` being the address and the row.

    Raises:
        CorpusNotFoundError: no such data set, configuration or split.
        CorpusError: it cannot be loaded, or the connection is lost.
        CorpusFormatError: a row is not as expected.
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
        except Exception as error:  # the network and every decoder there is: many kinds, one meaning
            found = f"not readable ({_first_line(error)})"
            raise CorpusError(describe(f"{address}:row {row}", "data set", found, "a row")) from error
        for document in records.documents(record, f"{address}:row {row}"):
            records.counts.advance(_utf8_length(document))
            yield document
        row += 1


def load_dataset(address: HubAddress) -> Any:
    """Open a data set for streaming: the one place where `datasets` is called.

    Args:
        address: which.

    Returns:
        A `datasets.IterableDataset`, or a dictionary of them by split.
    """
    datasets = import_package("datasets", f"{HUB_PREFIX}{address.repository}", CorpusError)
    return datasets.load_dataset(
        address.repository, name=address.config, data_dir=address.data_dir, split=address.split, streaming=True
    )


def _rows(address: str) -> Iterator[Mapping[str, Any]]:
    parsed = HubAddress.parse(address)
    try:
        loaded = load_dataset(parsed)
    except CorpusError:
        raise
    except (FileNotFoundError, ValueError) as error:  # no such data set; no such configuration or split
        found, expected = f"not there ({_first_line(error)})", "a data set, configuration and split that exist"
        raise CorpusNotFoundError(describe(address, "data set", found, expected)) from error
    except Exception as error:  # the network, a login that is missing: many kinds, one meaning
        found, expected = f"not loadable ({_first_line(error)})", "one that 'datasets' can stream"
        raise CorpusError(describe(address, "data set", found, expected)) from error
    if isinstance(loaded, Mapping):
        split = next(
            (name for name in ("train", *loaded) if name in loaded and (name == "train" or len(loaded) == 1)), None
        )
        if split is None:
            expected = "one of them: hf://...@" + ", @".join(map(str, loaded))
            raise CorpusNotFoundError(describe(address, "its split", "not given, and none is 'train'", expected))
        loaded = loaded[split]
    yield from loaded


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _utf8_length(document: Document) -> int:
    return len(document.text.encode()) + sum(len(content.encode()) for _, content in document.messages)
