"""The command `rest-build`, which is also `rest-store build`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from build_index.build_options import BuildOptions, BuildSummary
from build_index.corpus_spec import CorpusSpec, corpus_options
from build_index.documents import well_formed
from build_index.size import parse_size, size_text
from rest_store.command_options import PATH, SETTINGS, json_option
from rest_store.datastore.render import counted, one_line
from rest_store.errors import CorpusError, MemoryBudgetError, RestStoreError, ResumeError
from rest_store.version import __version__

_HELP = """Build a datastore from corpora.

DIR appears when the datastore is complete. An old datastore at DIR stays unchanged until then.

Exit status: 0, or 1 after an error, 2 for wrong options, 130 after Ctrl-C; 3 if the
datastore is complete, but lacks more than half of a corpus though no option asked for that.

\b
Example:
  rest-build --corpus src/ --include '*.py' --corpus chats.jsonl \\
    --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct --out code.ds
"""
_INTERRUPTED_STATUS = 130  # as shells report SIGINT
_LOST_STATUS = 3  # the datastore is complete, but most of a corpus is not in it


def memory_size(text: str) -> int:
    """Return the bytes of a size with K, M, G or T for powers of 1,024, or fail as click does."""
    try:
        return parse_size(text)
    except MemoryBudgetError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    "build",
    help=_HELP,
    context_settings=SETTINGS,
    epilog="--memory sets the size of shards. It does not affect the answers of the datastore.",
)
@click.option(
    "--corpus",
    "corpora",
    metavar="PATH",
    multiple=True,
    required=True,
    help=(
        "Text for the datastore: a file (text, JSON, JSONL, CSV, parquet, Arrow, archives, SQLite,"
        " also compressed), a directory, or the address of one (s3://, gs://, hf://datasets/...)."
        " Repeatable."
    ),
)
@click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    required=True,
    help=(
        "Tokenizer of the target model: a Hugging Face name, a directory, a tokenizer.json or a"
        " .gguf file."
    ),
)
@click.option(
    "--out",
    metavar="DIR",
    required=True,
    type=PATH,
    help=(
        "Destination of the result: the datastore's directory; an old datastore there is replaced."
    ),
)
@click.option(
    "--shard-tokens",
    metavar="N",
    type=click.IntRange(2, 1 << 30),
    show_default="the power of two that fits into the memory",
    help="Tokens in a shard, document ends included.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    type=memory_size,
    show_default="half of the available memory",
    help="Memory limit, such as 8G or 512M.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    show_default="one for each core",
    help=(
        "How many processes share the work: at most so many read and tokenize, and at most so many"
        " shards are sorted at once; memory may allow fewer. The result does not depend on it."
    ),
)
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="auto",
    help=(
        "Let the Ray cluster at ADDRESS (HOST:PORT of its head node) do the work, or else that of"
        " this machine. All nodes must see corpora and DIR."
    ),
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with an interrupted build, and fail if there is none of these corpora and options.",
)
@corpus_options
@json_option
@click.option("--quiet", is_flag=True, help="Print no progress and, without --json, no summary.")
@click.version_option(__version__)
@click.pass_context
def build(
    context: click.Context,
    /,
    corpora: tuple[str, ...],
    out: Path,
    as_json: bool,
    quiet: bool,
    field: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    max_documents: int | None,
    gitignore: bool,
    texts: str,
    keep_secrets: bool,
    **options: Any,
) -> None:
    """Run the command; see `_HELP`. `options` are attributes of `BuildOptions`."""
    with _one_line_errors(context, out):
        from build_index.builder import build as build_datastore
        from build_index.progress import ProgressLine

        reading = (field, include, exclude, max_documents, gitignore, texts, keep_secrets)
        specs = tuple(CorpusSpec(path, *reading) for path in corpora)
        progress = ProgressLine(sys.stderr) if not quiet and ProgressLine.fits(sys.stderr) else None
        summary = build_datastore(BuildOptions(specs, out=out, **options), progress)
        if as_json:
            click.echo(json.dumps(asdict(summary), sort_keys=True))
        elif not quiet:
            click.echo(summary_text(summary))
    if summary.lost:
        context.exit(_LOST_STATUS)


@contextmanager
def _one_line_errors(context: click.Context, out: Path) -> Iterator[None]:
    """Report an error in one line and exit with status 1, or 130 after Ctrl-C."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}", err=True)
        try:
            yield
            return
        except KeyboardInterrupt:
            message = "interrupted" + _resume_hint(out)
            status = _INTERRUPTED_STATUS
        except BrokenPipeError:  # the reader has gone, and click ends without a word
            raise
        except (RestStoreError, OSError) as error:
            # A ResumeError names the remedy itself.
            hint = "" if isinstance(error, ResumeError) else _resume_hint(out)
            if hint and isinstance(error, CorpusError):
                hint = (
                    " (the work on other corpora is kept: mend this one or leave it out, and build"
                    " again)"
                )
            message = str(error) + hint
            status = 1
        click.echo(f"Error: {one_line(message)}", err=True)
        context.exit(status)


def _resume_hint(out: Path) -> str:
    try:
        from build_index.staging import resume_hint

        return resume_hint(out)
    except Exception:  # also of a module whose import was interrupted
        return ""


def summary_text(summary: BuildSummary) -> str:
    """Return the summary for people: a few lines."""
    from build_index.omissions import omissions_text, skipped_texts
    from build_index.progress import clock

    notes = [f"{counted(summary.duplicates, 'exact duplicate')} dropped"]
    notes += [f"{summary.split_documents:,} split"] if summary.split_documents else []
    stages = ", ".join(
        f"{stage} {clock(seconds)}" for stage, seconds in summary.stage_seconds.items()
    )
    processes = f", in {summary.workers} processes" if summary.workers > 1 else ""
    slow = f"; slower, as {summary.slow_reason}" if summary.slow_reason else ""
    facts = {
        "datastore": well_formed(summary.out),
        "documents": f"{summary.documents:,} ({', '.join(notes)})",
        "tokens": f"{summary.tokens:,} (by {summary.encoder}{processes}{slow})",
        "shards": (
            f"{summary.shards:,}"
            + (f" ({summary.resumed_shards:,} resumed)" if summary.resumed_shards else "")
        ),
        "size": f"{size_text(summary.size)}, {summary.size / summary.tokens:.2f} bytes a token",
        "time": f"{clock(summary.seconds)} ({stages}; sorting overlaps)",
        "memory": (
            f"{size_text(summary.peak_memory)} at the peak, limit {size_text(summary.memory)}"
        ),
    }
    lines = list(facts.items())
    names = ["left out", *[""] * len(summary.skipped)]
    skipped = skipped_texts(summary.skipped, summary.skipped_bytes, summary.largest_skipped)
    lines[2:2] = list(zip(names, skipped, strict=False))
    if summary.left_out:
        lines.append(("not stored", omissions_text(summary.left_out)))
    if summary.refusal:
        lines.append(("refused", summary.refusal))
    return "\n".join(f"{name:<10} {text}" for name, text in lines)
