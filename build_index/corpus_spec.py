"""The options of corpora, for programs and for commands."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from build_index.texts import TEXTS
from rest_store.errors import BuildError, CorpusError, describe


@dataclass(frozen=True)
class CorpusSpec:
    """The options of one corpus.

    Attributes:
        path: a file or a directory, or the address of one (`s3://`, `gs://`,
            `hf://datasets/owner/name/...`).
        field: the field of each record that holds the document, or a dotted path to it; None: the
            field of a known layout.
        include: globs of the files to read in a directory; empty: all.
        exclude: globs of files and directories to leave out of a directory, besides
            `source_tree.DEFAULT_EXCLUDES`.
        max_documents: bound on the documents to read; None: all.
        texts: one of `TEXTS`: `"written"` reads the answers of conversations alone, one document
            each; `"read"` all else, one document a text.
        keep_secrets: whether transcripts keep the lines that look like secrets.
        gitignore: whether files that Git ignores are left out of a directory on this machine
            (`readers/gitignore.py`).

    With `field`, files of a directory that hold no records are skipped.

    Raises:
        CorpusError: `max_documents` is no whole number above 0, or `texts` is none of `TEXTS`.
    """

    path: str
    field: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_documents: int | None = None
    gitignore: bool = True
    texts: str = "all"
    keep_secrets: bool = False

    def __post_init__(self) -> None:
        if self.texts not in TEXTS:
            raise CorpusError(
                describe("corpus", "texts", repr(self.texts), f"one of {', '.join(TEXTS)}")
            )
        if self.max_documents is not None:
            number = whole_number(self.max_documents, "corpus", "max_documents", CorpusError)
            object.__setattr__(self, "max_documents", number)


def whole_number(value: object, where: str, name: str, error: type[BuildError]) -> int:
    """Return a number as an int, which JSON can hold.

    Raises:
        error: it is not whole, or below 1.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise error(describe(where, name, repr(value), "a whole number")) from None
    if number < 1:
        raise error(describe(where, name, number, "at least 1"))
    return number


def corpus_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the attributes of `CorpusSpec` except `path`, and the chat template, to a command."""
    options = (
        click.option(
            "--field",
            metavar="NAME",
            help="Field of each record that holds the document, such as 'text' or 'a.b'.",
        ),
        click.option(
            "--include",
            metavar="GLOB",
            multiple=True,
            help="In directories, read only these files. Repeatable.",
        ),
        click.option(
            "--exclude",
            metavar="GLOB",
            multiple=True,
            help="In directories, skip these files. Repeatable.",
        ),
        click.option(
            "--gitignore/--no-gitignore",
            default=True,
            help="In directories, skip the files that .gitignore and .git/info/exclude name.",
        ),
        click.option(
            "--texts",
            type=click.Choice(TEXTS),
            default="all",
            help=(
                "The texts to read: all; or of conversations alone, the answers of the model"
                " (written) or all other texts (read)."
            ),
        ),
        click.option(
            "--keep-secrets",
            is_flag=True,
            help="Keep lines that look like keys and tokens.",
        ),
        click.option(
            "--max-documents",
            metavar="N",
            type=click.IntRange(1),
            help="Read at most N documents of each corpus.",
        ),
        click.option(
            "--chat-template",
            metavar="TEXT_OR_FILE",
            show_default="that of the tokenizer",
            help="Jinja template for conversations, or a file with it.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
