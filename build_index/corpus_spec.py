"""What to read: the options of one corpus."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from rest_store.errors import CorpusError, describe

READERS = ("parquet", "jsonl", "json", "chat", "text", "tree")
"""Readers to choose from. `chat` reads JSON or JSONL whose records are conversations, `tree` a directory."""


@dataclass(frozen=True)
class CorpusSpec:
    """What to read.

    Attributes:
        path: a file or a directory; the address of one (`s3://`, `gs://`, `https://`, `hf://datasets/owner/name/...`),
            or a glob of files there; or a data set, `hf://owner/name[/config][@split]`.
        reader: one of `READERS`; None: by content, for each file of a directory separately.
        field: the field of each record that holds the document, or a dotted path to it; None: that of a known layout.
        langs: languages to read, in any case, compared with the field `lang` or `language`; empty: all.
        include: globs of the files to read in a directory; empty: all.
        exclude: globs of files and directories to leave out, besides `source_tree.DEFAULT_EXCLUDES`.
        max_documents: most documents to read; None: all.

    With `field` or `langs`, files of a directory that hold no records are skipped.

    Raises:
        CorpusError: `max_documents` is no whole number.
    """

    path: str
    reader: str | None = None
    field: str | None = None
    langs: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_documents: int | None = None

    def __post_init__(self) -> None:
        if self.max_documents is not None:
            try:
                number = operator.index(self.max_documents)  # an int, which JSON can hold
            except TypeError:
                found = repr(self.max_documents)
                raise CorpusError(describe("corpus", "max_documents", found, "a whole number")) from None
            object.__setattr__(self, "max_documents", number)
