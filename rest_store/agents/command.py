"""The command `rest-store remember`: transcripts, a working tree and its history in a memory."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rest_store.command_options import PATH, SETTINGS, json_option
from rest_store.datastore.render import counted, one_line
from rest_store.terminal import loading

if TYPE_CHECKING:
    from rest_store.agents.memory import AgentMemory


@click.command(
    "remember",
    context_settings=SETTINGS,
    epilog="""\b
Examples:
  rest-store remember ~/.codex/sessions . --git 200 --into memory \\
      --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct
  rest-store remember ~/.codex/sessions . --git 200 --into memory --follow""",
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--into",
    "directory",
    required=True,
    metavar="DIR",
    type=PATH,
    help="The live datastore that is the memory; it is created if it is absent.",
)
@click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    show_default="the one that the memory was created with",
    help="Tokenizer of the target model.",
)
@click.option(
    "--chat-template",
    metavar="TEXT_OR_FILE",
    show_default="that of the tokenizer",
    help="Jinja template for conversations, or a file with it.",
)
@click.option("--follow", is_flag=True, help="Go on, and take over each change within a second.")
@click.option(
    "--git",
    "commits",
    metavar="N",
    type=click.IntRange(1),
    help="Remember also the diffs of the last N commits of the repositories that PATHs are in.",
)
@click.option(
    "--include",
    metavar="GLOB",
    multiple=True,
    help="In directories, read only these files. Repeatable.",
)
@click.option(
    "--exclude",
    metavar="GLOB",
    multiple=True,
    help="In directories, skip these files. Repeatable.",
)
@click.option(
    "--gitignore/--no-gitignore",
    default=True,
    help="In directories, skip the files that .gitignore and .git/info/exclude name.",
)
@click.option(
    "--keep-versions",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    help="Versions of each file that are kept, the present one counted.",
)
@click.option("--keep-secrets", is_flag=True, help="Keep lines that look like keys and tokens.")
@json_option
def remember(
    paths: tuple[str, ...],
    directory: Path,
    tokenizer: str | None,
    chat_template: str | None,
    follow: bool,
    commits: int | None,
    keep_versions: int,
    keep_secrets: bool,
    as_json: bool,
    **reading: Any,
) -> None:
    """Make the memory DIR hold the texts of PATHs: transcripts of agents, and files of a tree.

    A file that has changed replaces its earlier text, and one that is gone is forgotten. Texts that
    an earlier run has added from other paths stay. A run that is killed is continued by the next
    one. Each kind of text is a namespace of DIR: written, read, files, history.
    """
    from rest_store.agents.follower import Follower
    from rest_store.agents.history import repository_of, sync_history
    from rest_store.agents.memory import AgentMemory

    with loading(f"memory {directory}"):
        memory = AgentMemory(
            directory,
            tokenizer=tokenizer,
            chat_template=chat_template,
            keep_secrets=keep_secrets,
            keep_versions=keep_versions,
        )
    with memory:
        places = [memory.place(path, **reading) for path in paths]
        tops = sorted({place.source.top for place in places})
        repositories = sorted({top for top in map(repository_of, tops) if top is not None})

        def take_history() -> None:
            for repository in repositories if commits is not None else ():
                sync_history(memory, repository, commits or 0)

        if follow:
            follower = Follower(memory, places, sync_history=take_history)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: follower.stop())
        for place in places:
            memory.sync(place)
        take_history()
        memory.discard()
        _show(memory, directory, click.echo, as_json=as_json)
        if follow:
            follower.run()
            _show(memory, directory, click.echo, as_json=as_json)


def _show(
    memory: AgentMemory, directory: Path, echo: Callable[[str], None], *, as_json: bool
) -> None:
    from build_index.omissions import omissions_text, skipped_texts

    sizes, counts = memory.sizes(), memory.counts
    if as_json:
        facts = {
            name: {"sources": sources, "documents": documents}
            for name, (sources, documents) in sizes.items()
        }
        changes = {"added": memory.added, "discarded": memory.discarded}
        left_out = {"skipped": dict(counts.skipped), "left_out": dict(counts.left_out)}
        echo(json.dumps({"path": str(directory), **changes, **left_out, "namespaces": facts}))
        return
    echo(f"{directory}: {memory.added:,} added, {memory.discarded:,} discarded; now there are")
    for name, (sources, documents) in sizes.items():
        of = "commit" if name == "history" else "file"
        echo(f"  {name:<8} {counted(documents, 'document')} of {counted(sources, of)}")
    largest = {reason: example for reason, (_, example) in counts.largest.items()}
    for text in skipped_texts(counts.skipped, counts.sizes, largest):
        echo(f"left out: {text}")
    if counts.left_out:
        echo(f"not stored: {omissions_text(counts.left_out)}")
    if counts.refusal:
        echo(f"refused: {one_line(counts.refusal)}")
