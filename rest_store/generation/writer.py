"""What `rest-store generate` writes: texts in the colours of their sources, and what they took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from rest_store.datastore.render import counted, one_line
from rest_store.errors import RestStoreError
from rest_store.generation import prompt_loop
from rest_store.generation.comparison import Comparer, Comparison
from rest_store.generation.conversation import Conversation, rendered
from rest_store.generation.detokenizer import Detokenizer
from rest_store.generation.page import page
from rest_store.generation.progress import Statistics
from rest_store.generation.render import coloured, legend, origin_name
from rest_store.generation.trace import Trace

_REMEMBER_SECONDS = 10.0  # that the command waits for an output to be added


@dataclass(frozen=True)
class _Text:
    """A text that was written.

    Attributes:
        parts: the text, each part with the name of its origin.
        statistics: of its generation, which has ended.
        labels: of the sources.
        comparison: with plain decoding, if it was asked for.
        interrupted: whether somebody ended it.
    """

    parts: list[tuple[str, str]]
    statistics: Statistics
    labels: Sequence[str]
    comparison: Comparison | None
    interrupted: bool

    @property
    def text(self) -> str:
        """All parts."""
        return "".join(part for part, _ in self.parts)

    def facts(self) -> dict[str, Any]:
        """Return it with what it took, for JSON."""
        statistics = self.statistics
        facts: dict[str, Any] = {
            "text": self.text,
            "tokens": statistics.tokens,
            "forward_passes": statistics.forward_passes,
            "mean_tokens": round(statistics.mean_tokens, 3),
            "tokens_per_second": round(statistics.tokens_per_second, 2),
        }
        if statistics.drafts.errors:
            facts["drafter_errors"] = statistics.drafts.errors
        if dropped := self._dropped():
            facts["dropped_sources"] = dropped
        if statistics.remembered.ids:
            facts["remembered"] = statistics.remembered.added
        if statistics.remembered.dropped:
            facts["not_remembered"] = statistics.remembered.error
        if self.interrupted:
            facts["interrupted"] = True
        if self.comparison is not None:
            facts["speedup"] = round(self.comparison.speedup, 3)
            facts["identical"] = self.comparison.identical
        return facts

    def summary(self) -> str:
        """Return what it took in a line."""
        line = self.statistics.summary()
        return "; ".join([line if self.comparison is None else f"{line}, {self.comparison}", *self.remarks()])

    def remarks(self) -> list[str]:
        """Return what went wrong beside the text."""
        statistics = self.statistics
        remarks = [f"{counted(steps, 'step')} without {source}" for source, steps in self._dropped().items()]
        if self.interrupted:
            remarks.append("interrupted")
        if statistics.remembered.dropped:
            remarks.append(f"not remembered ({statistics.remembered.error})")
        if statistics.drafts.errors:
            remarks.append(f"drafting failed ({statistics.drafts.errors[0]})")
        return remarks

    def _dropped(self) -> dict[str, int]:
        """Return in how many steps each source was left out."""
        dropped = self.statistics.drafts.dropped.items()
        return {f"{self.labels[place]} ({reason})": steps for (place, reason), steps in dropped}


@dataclass
class Writer:
    """Writes texts, shows them, and sums up what they took.

    Attributes:
        generator: writes.
        options: of `model.generate`.
        names: of the sources, for colours.
        labels: of the sources, for messages.
        seed: of each text.
        compare: whether to decode plainly, too.
        as_json: whether to show one object for each text instead of the text.
    """

    generator: Any
    options: dict[str, Any]
    names: Sequence[str]
    labels: Sequence[str]
    seed: int | None
    compare: bool
    as_json: bool

    def __post_init__(self) -> None:
        self.on_terminal = sys.stdout.isatty() and not self.as_json
        if self.on_terminal:
            click.echo(legend(self.names))

    def write(self, prompt: str, *, chat: bool, page_path: Path | None, title: str) -> None:
        """Continue one prompt, or answer it in a new chat; show it, and write a page to `page_path`."""
        tokenizer = self.generator.tokenizer
        text, inputs = Conversation(tokenizer).ask(prompt) if chat else rendered(tokenizer, prompt)
        self._echo(prompt, chat=chat)
        trace = Trace() if page_path is not None else None
        written = self._write(inputs, trace=trace)
        if page_path is not None and trace is not None:
            shown = page(
                trace,
                written.statistics,
                tokenizer,
                title=title,
                prompt=text,
                labels=self.labels,
                comparison=written.comparison,
                remarks=written.remarks(),
            )
            page_path.write_text(shown, encoding="utf-8", errors="replace")

    def write_lines(self, *, chat: bool) -> None:
        """Continue each line of standard input, or answer it in one chat; typed, Ctrl-C ends only the present text."""
        tokenizer, config = self.generator.tokenizer, self.generator.model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", None) or sys.maxsize
        conversation = Conversation(tokenizer, max(1, positions - self.options["max_new_tokens"]))
        typed = prompt_loop.is_interactive()
        for line in prompt_loop.lines():
            try:
                _, inputs = conversation.ask(line) if chat else rendered(tokenizer, line)
                if not (typed and chat):
                    self._echo(line, chat=chat)
                with prompt_loop.interruptible() if typed else nullcontext(lambda: False) as interrupted:
                    written = self._write(inputs, interrupted)
                if chat:
                    conversation.add(line, written.text)
            except RestStoreError as error:
                if not typed:
                    raise
                click.echo(f"Error: {one_line(str(error))}", err=True)

    def _echo(self, prompt: str, *, chat: bool) -> None:
        """Show a prompt in front of what continues or answers it."""
        if self.on_terminal:
            click.secho(f"> {prompt}\n" if chat else prompt, dim=True, nl=False)

    def _write(
        self,
        inputs: dict[str, Any],
        interrupted: Callable[[], bool] = lambda: False,
        *,
        trace: Trace | None = None,
    ) -> _Text:
        """Write one text, and what it took."""
        model = self.generator.model
        if self.seed is not None:
            torch.manual_seed(self.seed)
        comparer = Comparer(model.device) if self.compare else None
        began = time.perf_counter()
        generation = self.generator.begin(inputs, **self.options)
        preparing = time.perf_counter() - began  # plain generation is timed with it, too
        generation.trace = trace
        parts = _written(generation, self.generator.tokenizer, self.names, interrupted, show=not self.as_json)
        self.generator.flush(_REMEMBER_SECONDS)
        statistics, ended_early, comparison = generation.statistics, interrupted(), None
        if comparer is not None and not ended_early:
            rows = {name: value.to(model.device) for name, value in inputs.items()}
            plain = partial(model.generate, **rows, **self.options)
            seconds = preparing + statistics.seconds
            comparison = comparer.compare(generation.result(), seconds, plain)
        text = _Text(parts, statistics, self.labels, comparison, ended_early)
        click.echo(json.dumps(text.facts(), ensure_ascii=False) if self.as_json else text.summary())
        return text


def _written(
    generation: Any, tokenizer: Any, names: Sequence[str], interrupted: Callable[[], bool], *, show: bool
) -> list[tuple[str, str]]:
    """Generate to the end, or until it is interrupted; return the text in parts, each with the name of its origin.

    Args:
        generation: not begun yet.
        tokenizer: the model's.
        names: of the sources.
        interrupted: tells after each forward pass whether to end there.
        show: whether to print each part at once, in the colour of its origin.
    """
    detokenizer = Detokenizer(tokenizer)
    parts: list[tuple[str, str]] = []
    name = "model"
    for piece in generation:
        for token, origin in zip(piece.tokens[0], piece.origins[0], strict=True):
            name = origin_name(origin, names)
            parts.append((detokenizer.push(token), name))
            if show:
                click.echo(coloured(*parts[-1]), nl=False)
        if interrupted():
            generation.close()
            break
    parts.append((detokenizer.flush(), name))
    if show:
        click.echo(coloured(*parts[-1]))
    return parts
