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
        trace = Trace()
        _, statistics, comparison = self._write(inputs, trace=trace)
        if page_path is not None:
            shown = page(
                trace,
                statistics,
                tokenizer,
                title=title,
                prompt=text,
                labels=self.labels,
                comparison=comparison,
                remarks=self._remarks(statistics),
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
                    text, *_ = self._write(inputs, interrupted)
                if chat:
                    conversation.add(line, text)
            except RestStoreError as error:
                if not typed:
                    raise
                click.echo(f"Error: {one_line(str(error))}", err=True)

    def _echo(self, prompt: str, *, chat: bool) -> None:
        """Show a prompt in front of what continues or answers it."""
        if self.on_terminal:
            click.secho(f"> {prompt}\n" if chat else prompt, dim=True, nl=False)

    def _write(
        self, inputs: dict[str, Any], interrupted: Callable[[], bool] = lambda: False, *, trace: Trace | None = None
    ) -> tuple[str, Statistics, Comparison | None]:
        """Write one text and what it took; return the text, and its statistics and comparison."""
        model = self.generator.model
        if self.seed is not None:
            torch.manual_seed(self.seed)
        comparer = Comparer(model.device) if self.compare else None
        began = time.perf_counter()
        generation = self.generator.begin(inputs, **self.options)
        preparing = time.perf_counter() - began  # plain generation is timed with it, too
        generation.trace = trace
        text = self._show(generation, interrupted)
        self.generator.flush(_REMEMBER_SECONDS)
        statistics, comparison = generation.statistics, None
        if comparer is not None and not interrupted():
            rows = {name: value.to(model.device) for name, value in inputs.items()}
            plain = partial(model.generate, **rows, **self.options)
            comparison = comparer.compare(generation.result(), preparing + statistics.seconds, plain)
        if self.as_json:
            click.echo(json.dumps(self._facts(text, statistics, comparison), ensure_ascii=False))
        else:
            summary = statistics.summary() + ("" if comparison is None else f", {comparison}")
            remarks = self._remarks(statistics) + (["interrupted"] if interrupted() else [])
            click.echo("; ".join([summary, *remarks]))
        return text, statistics, comparison

    def _show(self, generation: Any, interrupted: Callable[[], bool]) -> str:
        """Generate to the end, or until it is interrupted; show each token in the colour of its origin."""
        detokenizer, parts, name = Detokenizer(self.generator.tokenizer), [], "model"
        for piece in generation:
            for token, origin in zip(piece.tokens[0], piece.origins[0], strict=True):
                name = origin_name(origin, self.names)
                parts.append(detokenizer.push(token))
                if not self.as_json:
                    click.echo(coloured(parts[-1], name), nl=False)
            if interrupted():
                generation.close()
                break
        parts.append(detokenizer.flush())
        if not self.as_json:
            click.echo(coloured(parts[-1], name))
        return "".join(parts)

    def _facts(self, text: str, statistics: Statistics, comparison: Comparison | None) -> dict[str, Any]:
        """Return a text and what it took, for JSON."""
        facts: dict[str, Any] = {
            "text": text,
            "tokens": statistics.tokens,
            "forward_passes": statistics.forward_passes,
            "mean_tokens": round(statistics.mean_tokens, 3),
            "tokens_per_second": round(statistics.tokens_per_second, 2),
        }
        if statistics.remembered.ids:
            facts["remembered"] = statistics.remembered.added
        if remarks := self._remarks(statistics):
            facts["remarks"] = remarks
        if comparison is not None:
            facts |= {"speedup": round(comparison.speedup, 3), "identical": comparison.identical}
        return facts

    def _remarks(self, statistics: Statistics) -> list[str]:
        """Return what went wrong beside the text."""
        dropped = statistics.drafts.dropped.items()
        remarks = [f"{counted(steps, 'step')} without {source} ({why})" for (source, why), steps in dropped]
        if statistics.remembered.dropped:
            remarks.append(f"not remembered ({statistics.remembered.error})")
        if statistics.drafts.errors:
            remarks.append(f"drafting failed ({statistics.drafts.errors[0]})")
        return remarks
