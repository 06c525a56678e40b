"""The options of commands that read corpora: how to read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from build_index.corpus_spec import READERS, CorpusSpec
from build_index.path import is_directory

_OPTIONS = (
    click.option(
        "--reader", type=click.Choice(READERS), show_default="by their content", help="How to read the corpora."
    ),
    click.option(
        "--field", metavar="NAME", help="Field of each record that holds the document, such as 'text' or 'a.b'."
    ),
    click.option(
        "--lang", "langs", metavar="NAME", multiple=True, help="Read only records in this language. Repeatable."
    ),
    click.option("--include", metavar="GLOB", multiple=True, help="In directories, read only these files. Repeatable."),
    click.option("--exclude", metavar="GLOB", multiple=True, help="In directories, skip these files. Repeatable."),
    click.option(
        "--max-documents", metavar="N", type=click.IntRange(1), help="Read at most N documents of each corpus."
    ),
    click.option(
        "--chat-template",
        metavar="TEXT_OR_FILE",
        show_default="that of the tokenizer",
        help="Jinja template for conversations, or a file with it.",
    ),
)


@dataclass(frozen=True)
class Reading:
    """How a command was told to read corpora; the fields but the last are those of `CorpusSpec`."""

    reader: str | None
    field: str | None
    langs: tuple[str, ...]
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    max_documents: int | None
    chat_template: str | None

    def specs(self, paths: Sequence[str]) -> tuple[CorpusSpec, ...]:
        """Return what to read at each of `paths`.

        Globs apply to directories. Without a directory they are a mistake, which `open_corpus` reports.
        """
        has_directory = any(map(is_directory, paths))

        def spec(path: str) -> CorpusSpec:
            globs = (self.include, self.exclude) if is_directory(path) or not has_directory else ((), ())
            return CorpusSpec(path, self.reader, self.field, self.langs, *globs, self.max_documents)

        return tuple(map(spec, paths))


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add these options to a command, which gets them as one argument `reading`."""

    @functools.wraps(command)
    def with_reading(*arguments: Any, **options: Any) -> None:
        reading = Reading(**{name: options.pop(name) for name in Reading.__dataclass_fields__})
        command(*arguments, reading=reading, **options)

    wrapped: Callable[..., None] = with_reading
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
