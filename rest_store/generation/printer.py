"""The output of `rest-store generate`: texts, and the effort that they took."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from rest_store.datastore.render import counted, one_line
from rest_store.errors import RestStoreError
from rest_store.generation.comparison import MAX_SECONDS
from rest_store.generation.conversation import Conversation, tokenized
from rest_store.generation.output import GeneratorOutput, Piece, Statistics
from rest_store.generation.page import page

_REMEMBER_SECONDS = 10.0  # that the command waits for an output to be added


@dataclass
class Printer:
    """Writes texts, shows them, and sums up the effort that they took.

    Attributes:
        generator: writes.
        options: of `model.generate`.
        seed: of each text.
        compare: whether to decode plainly, too.
        as_json: whether to show one object for each text instead of the text.
    """

    generator: Any
    options: dict[str, Any]
    seed: int | None
    compare: bool
    as_json: bool

    def write(self, prompt: str, *, chat: bool, page_path: Path | None, title: str) -> None:
        """Continue one prompt, or answer it in a new chat.

        Show it, and write a page to `page_path`.
        """
        tokenizer = self.generator.tokenizer
        text = Conversation(tokenizer).ask(prompt) if chat else prompt
        if sys.stdout.isatty() and not self.as_json:
            click.secho(f"> {prompt}\n" if chat else prompt, dim=True, nl=False)
        output, pieces = self._write(tokenized(tokenizer, text, special=not chat))
        if page_path is not None:
            html = page(
                pieces,
                output.statistics,
                tokenizer,
                title=title,
                prompt=text,
                labels=self.generator.source_names,
                comparison=output.comparison,
                remarks=remarks_on(output.statistics),
            )
            page_path.write_text(html, encoding="utf-8", errors="replace")

    def write_lines(self, *, chat: bool) -> None:
        """Continue each line of standard input, or answer it in one chat.

        Typed, Ctrl-C ends only the present text.
        """
        tokenizer = self.generator.tokenizer
        conversation = Conversation(self.generator.tokenizer)
        for line in _lines():
            try:
                text = conversation.ask(line) if chat else line
                output, _ = self._write(tokenized(tokenizer, text, special=not chat))
                conversation.add(line, output.text)
            except (RestStoreError, KeyboardInterrupt) as error:
                if not sys.stdin.isatty():
                    raise
                click.echo(f"\n{one_line(str(error)) or 'interrupted'}", err=True)

    def _write(self, inputs: dict[str, Any]) -> tuple[GeneratorOutput, list[Piece]]:
        """Write and show one text and its effort."""
        pieces: list[Piece] = []

        def show(piece: Piece) -> None:
            pieces.append(piece)
            if not self.as_json:
                click.echo(piece.text, nl=False)

        if self.seed is not None:
            torch.manual_seed(self.seed)
        if self.compare and sys.stderr.isatty():
            click.echo(
                f"plain decoding and drafts take turns, about {MAX_SECONDS:.0f} s at most ...",
                err=True,
            )
        output: GeneratorOutput = self.generator.generate(
            inputs, compare=self.compare, on_piece=show, **self.options
        )
        self.generator.flush(_REMEMBER_SECONDS)
        if self.as_json:
            click.echo(json.dumps(_facts(output), ensure_ascii=False))
        else:
            click.echo("\n" + output.words(remarks_on(output.statistics)))
        return output, pieces


def _facts(output: GeneratorOutput) -> dict[str, Any]:
    """Return a text and its effort, for JSON."""
    statistics = output.statistics
    comparison = output.comparison
    facts: dict[str, Any] = {
        "text": output.text,
        "tokens": statistics.tokens,
        "forward_passes": statistics.forward_passes,
        "mean_tokens": round(statistics.mean_tokens, 3),
        "tokens_per_second": round(statistics.tokens_per_second, 2),
        "sources": output.sources,
        "remarks": remarks_on(statistics),
    }
    if statistics.remembered.ids:
        facts |= {
            "remembered": statistics.remembered.added,
            "duplicates": len(statistics.remembered.duplicates),
        }
    if comparison is not None:
        speedup = comparison.speedup
        facts |= {
            "speedup": round(speedup.median, 3),
            "speedup_range": [round(speedup.low, 3), round(speedup.high, 3)],
            "speedup_is_certain": speedup.is_certain,
            "plain_tokens_per_second": round(comparison.tokens / comparison.seconds, 2),
            "drafted_tokens_per_second": round(comparison.tokens / comparison.drafted_seconds, 2),
            "identical": comparison.identical,
        }
    return facts


def remarks_on(statistics: Statistics) -> list[str]:
    """Return the faults beside the text, and the reason if nothing was gained."""
    omissions = statistics.drafts.omissions.items()
    remarks = [statistics.no_gain] if statistics.no_gain else []
    remarks += [
        f"{counted(steps, 'step')} without {source} ({why})" for (source, why), steps in omissions
    ]
    if statistics.remembered.dropped:
        remarks.append(f"not remembered ({statistics.remembered.error})")
    if statistics.drafts.errors:
        remarks.append(f"drafting failed ({statistics.drafts.errors[0]})")
    return remarks


def _lines() -> Iterator[str]:
    """Yield the lines of standard input that are not blank, to its end.

    On a terminal, after a prompt sign.
    """
    if not sys.stdin.isatty():
        sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
        yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        return
    with suppress(ImportError):  # editing and a history of lines
        import readline  # noqa: F401
    with suppress(EOFError):
        while True:
            if (line := input("> ")).strip():
                yield line
