"""What `rest-store generate` writes: texts in the colours of their sources, and what they took."""

from __future__ import annotations

import io
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
from rest_store.generation.conversation import Conversation, rendered
from rest_store.generation.output import GeneratorOutput, Piece, Statistics
from rest_store.generation.page import page

_REMEMBER_SECONDS = 10.0  # that the command waits for an output to be added
_COLOURS = ("green", "cyan", "magenta", "blue", "bright_green", "bright_cyan", "bright_magenta", "bright_blue")
_SEVERAL = "yellow"


def coloured(text: str, origin: int) -> str:
    """Return `text` for a terminal, in the colour of the sources that drafted it.

    Args:
        text: of a token.
        origin: bit i set: source i drafted the token; 0: the model alone, in no colour.
    """
    if not origin:
        return text
    bit = origin.bit_length() - 1
    return click.style(text, fg=_COLOURS[bit % len(_COLOURS)] if origin == 1 << bit else _SEVERAL)


@dataclass
class Writer:
    """Writes texts, shows them, and sums up what they took.

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

    def __post_init__(self) -> None:
        self.on_terminal = sys.stdout.isatty() and not self.as_json
        if self.on_terminal:
            names = [coloured(label, 1 << bit) for bit, label in enumerate(self.generator.source_names)]
            several = coloured("several of them", 3)
            click.echo(f"drafted by: the model alone, {', '.join(names)}, {several}")

    def write(self, prompt: str, *, chat: bool, page_path: Path | None, title: str) -> None:
        """Continue one prompt, or answer it in a new chat; show it, and write a page to `page_path`."""
        tokenizer = self.generator.tokenizer
        text, inputs = Conversation(tokenizer).ask(prompt) if chat else rendered(tokenizer, prompt)
        self._echo(prompt, chat=chat)
        pieces: list[Piece] = []
        output = self._write(inputs, pieces)
        if page_path is not None:
            html = page(
                pieces,
                output.statistics,
                tokenizer,
                title=title,
                prompt=text,
                labels=self.generator.source_names,
                comparison=output.comparison,
                remarks=self._remarks(output.statistics),
            )
            page_path.write_text(html, encoding="utf-8", errors="replace")

    def write_lines(self, *, chat: bool) -> None:
        """Continue each line of standard input, or answer it in one chat; typed, Ctrl-C ends only the present text."""
        tokenizer, conversation = self.generator.tokenizer, Conversation(self.generator.tokenizer)
        typed = sys.stdin.isatty()
        for line in _lines(typed=typed):
            pieces: list[Piece] = []
            try:
                _, inputs = conversation.ask(line) if chat else rendered(tokenizer, line)
                if not (typed and chat):
                    self._echo(line, chat=chat)
                self._write(inputs, pieces)
            except (RestStoreError, KeyboardInterrupt) as error:
                if not typed:
                    raise
                reason = f"Error: {one_line(str(error))}" if isinstance(error, RestStoreError) else "interrupted"
                click.echo(f"\n{reason}", err=True)
            if chat and pieces:
                conversation.add(line, "".join(piece.text for piece in pieces))

    def _echo(self, prompt: str, *, chat: bool) -> None:
        """Show a prompt in front of what continues or answers it."""
        if self.on_terminal:
            click.secho(f"> {prompt}\n" if chat else prompt, dim=True, nl=False)

    def _write(self, inputs: dict[str, Any], pieces: list[Piece]) -> GeneratorOutput:
        """Write and show one text, each token in the colour of its sources, and what it took; add to `pieces`."""

        def show(piece: Piece) -> None:
            pieces.append(piece)
            if not self.as_json and piece.words is not None:
                for word, origin in zip(piece.words[0], piece.origins[0], strict=True):
                    click.echo(coloured(word, origin), nl=False)

        if self.seed is not None:
            torch.manual_seed(self.seed)
        if self.compare and self.on_terminal:
            click.secho("comparing first: plainly and with drafts in turns, about half a minute", dim=True, err=True)
        output: GeneratorOutput = self.generator.generate(inputs, compare=self.compare, on_piece=show, **self.options)
        self.generator.flush(_REMEMBER_SECONDS)
        if self.as_json:
            click.echo(json.dumps(self._facts(output), ensure_ascii=False))
            return output
        click.echo()
        click.echo("; ".join([str(output.statistics), *self._remarks(output.statistics)]))
        if output.comparison is not None:
            click.echo(str(output.comparison))
        return output

    def _facts(self, output: GeneratorOutput) -> dict[str, Any]:
        """Return a text and what it took, for JSON."""
        statistics, comparison = output.statistics, output.comparison
        facts: dict[str, Any] = {
            "text": output.text,
            "tokens": statistics.tokens,
            "forward_passes": statistics.forward_passes,
            "mean_tokens": round(statistics.mean_tokens, 3),
            "tokens_per_second": round(statistics.tokens_per_second, 2),
        }
        if statistics.remembered.ids:
            facts |= {"remembered": statistics.remembered.added, "duplicates": len(statistics.remembered.duplicates)}
        if remarks := self._remarks(statistics):
            facts["remarks"] = remarks
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

    def _remarks(self, statistics: Statistics) -> list[str]:
        """Return what went wrong beside the text, and why nothing was gained."""
        dropped = statistics.drafts.dropped.items()
        remarks = [statistics.no_gain] if statistics.no_gain else []
        remarks += [f"{counted(steps, 'step')} without {source} ({why})" for (source, why), steps in dropped]
        if statistics.remembered.dropped:
            remarks.append(f"not remembered ({statistics.remembered.error})")
        if statistics.drafts.errors:
            remarks.append(f"drafting failed ({statistics.drafts.errors[0]})")
        return remarks


def _lines(*, typed: bool) -> Iterator[str]:
    """Yield the lines of standard input that are not blank, to its end; on a terminal, after a prompt sign.

    There Ctrl-C gives up a line, and Ctrl-D ends the input.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not typed:
        yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        return
    with suppress(ImportError):  # editing and a history of lines
        import readline  # noqa: F401
    sign = "> " if sys.stdout.isatty() else ""  # not into what takes the texts
    while True:
        try:
            line = input(sign)
        except EOFError:
            click.echo(err=not sign)
            return
        except KeyboardInterrupt:
            line = ""
            click.echo(err=not sign)
        if line.strip():
            yield line
