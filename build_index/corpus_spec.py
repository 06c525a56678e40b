"""What to read: the options of corpora, for programs and for commands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from build_index.path import is_directory
from rest_store.errors import BuildError, CorpusError, describe

READERS = ("parquet", "jsonl", "json", "text")
"""Readers to choose from."""


@dataclass(frozen=True)
class CorpusSpec:
    """What to read.

    Attributes:
        path: a file or a directory; the address of one (`s3://`, `gs://`, `https://`, `hf://datasets/owner/name/...`),
            or a glob of files there.
        reader: one of `READERS`; None: by content, for each file of a directory separately.
        field: the field of each record that holds the document, or a dotted path to it; None: that of a known layout.
        langs: languages to read, in any case, compared with the field `lang` or `language`; empty: all.
        include: globs of the files to read in a directory; empty: all.
        exclude: globs of files and directories to leave out, besides `source_tree.DEFAULT_EXCLUDES`.
        max_documents: most documents to read; None: all.

    With `field` or `langs`, files of a directory that hold no records are skipped.

    Raises:
        CorpusError: `reader` is not one of `READERS`, or `max_documents` is no whole number above 0.
    """

    path: str
    reader: str | None = None
    field: str | None = None
    langs: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_documents: int | None = None

    def __post_init__(self) -> None:
        if self.reader is not None and self.reader not in READERS:
            raise CorpusError(describe("corpus", "reader", f"'{self.reader}'", "one of " + ", ".join(READERS)))
        if self.max_documents is not None:
            object.__setattr__(
                self, "max_documents", whole_number(self.max_documents, "corpus", "max_documents", CorpusError)
            )


def whole_number(value: object, where: str, name: str, error: type[BuildError]) -> int:
    """Return a number as an int, which JSON can hold, or raise `error` unless it is a whole one from 1 on."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise error(describe(where, name, repr(value), "a whole number")) from None
    if number < 1:
        raise error(describe(where, name, number, "at least 1"))
    return number


def corpus_specs(paths: Sequence[str], **options: Any) -> tuple[CorpusSpec, ...]:
    """Return what to read at each of `paths`; `options` are the other attributes of `CorpusSpec`.

    Globs apply to directories. Without a directory they are a mistake, which `open_corpus` reports.
    """
    without_globs = {**options, "include": (), "exclude": ()}
    has_directory = any(map(is_directory, paths))
    return tuple(
        CorpusSpec(path, **(options if is_directory(path) or not has_directory else without_globs)) for path in paths
    )


def corpus_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `corpus_specs` to a command."""
    options = (
        click.option(
            "--reader", type=click.Choice(READERS), show_default="by their content", help="How to read the corpora."
        ),
        click.option(
            "--field", metavar="NAME", help="Field of each record that holds the document, such as 'text' or 'a.b'."
        ),
        click.option(
            "--lang", "langs", metavar="NAME", multiple=True, help="Read only records in this language. Repeatable."
        ),
        click.option(
            "--include", metavar="GLOB", multiple=True, help="In directories, read only these files. Repeatable."
        ),
        click.option("--exclude", metavar="GLOB", multiple=True, help="In directories, skip these files. Repeatable."),
        click.option(
            "--max-documents", metavar="N", type=click.IntRange(1), help="Read at most N documents of each corpus."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


chat_template_option = click.option(
    "--chat-template",
    metavar="TEXT_OR_FILE",
    show_default="that of the tokenizer",
    help="Jinja template for conversations, or a file with it.",
)
