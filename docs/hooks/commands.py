"""Writes the help of every command into reference/commands.md, at its mark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rest_store.cli import main

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page with the commands at the mark (an event of MkDocs)."""
    return (
        markdown.replace(MARK, "\n".join(sections(main, "rest-store")))
        if MARK in markdown
        else markdown
    )


def sections(
    command: click.Command, name: str, parent: click.Context | None = None, level: int = 2
) -> Iterator[str]:
    """Yield a heading and what `--help` prints, for a command and those below it."""
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=80, **command.context_settings
    )
    yield f"{'#' * level} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from sections(found, below, context, level + 1)
