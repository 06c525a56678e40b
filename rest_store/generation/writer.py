"""What `rest-store generate` writes: texts in the colours of their sources, and what they took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from rest_store.datastore.render import counted, one_line
from rest_store.errors import RestStoreError
from rest_store.generation import prompt_loop
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
        trace = Trace() if page_path is not None else None
        _, facts, statistics = self._write(inputs, trace=trace)
        if page_path is not None and trace is not None:
            shown = page(
                trace,
                statistics,
                tokenizer,
                title=title,
                prompt=text,
                labels=self.labels,
                speedup=facts.get("speedup"),
                identical=facts.get("identical"),
                remarks=_remarks(facts),
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
                    parts, _, _ = self._write(inputs, interrupted)
                if chat:
                    conversation.add(line, "".join(part for part, _ in parts))
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
    ) -> tuple[list[tuple[str, str]], dict[str, Any], Statistics]:
        """Write one text; return it in parts, each with the name of its origin, what it took, and its statistics."""
        tokenizer = self.generator.tokenizer
        self._set_seed()
        generation = self.generator.begin(inputs, **self.options)
        generation.trace = trace
        parts = _written(generation, tokenizer, self.names, interrupted, show=not self.as_json)
        self.generator.flush(_REMEMBER_SECONDS)
        facts = _facts(generation.statistics, self.labels)
        if interrupted():
            facts["interrupted"] = True
        elif self.compare:
            self._set_seed()
            drafted, seconds = generation.result(), generation.statistics.seconds
            facts |= _compared(self.generator.model, inputs, self.options, drafted, seconds)
        if self.as_json:
            click.echo(json.dumps({"text": "".join(part for part, _ in parts), **facts}, ensure_ascii=False))
        else:
            click.echo(_summary(facts))
        return parts, facts, generation.statistics

    def _set_seed(self) -> None:
        if self.seed is not None:
            torch.manual_seed(self.seed)


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


def _facts(statistics: Any, labels: Sequence[str]) -> dict[str, Any]:
    """Return what a generation took, for JSON.

    Args:
        statistics: of a generation that has ended.
        labels: of the sources.
    """
    facts: dict[str, Any] = {
        "tokens": statistics.tokens,
        "forward_passes": statistics.forward_passes,
        "mean_tokens": round(statistics.mean_tokens, 3),
        "tokens_per_second": round(statistics.tokens / statistics.seconds, 2),
    }
    if statistics.drafts.errors:
        facts["drafter_errors"] = statistics.drafts.errors
    if statistics.drafts.dropped:
        dropped = statistics.drafts.dropped.items()
        facts["dropped_sources"] = {f"{labels[place]} ({reason})": steps for (place, reason), steps in dropped}
    if statistics.remembered.ids:
        facts["remembered"] = statistics.remembered.added
    if statistics.remembered.dropped:
        facts["not_remembered"] = statistics.remembered.error
    return facts


def _compared(
    model: Any, inputs: dict[str, Any], options: dict[str, Any], drafted: Any, seconds: float
) -> dict[str, Any]:
    """Decode plainly; return the speedup, and whether the text is the same."""
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    began = time.perf_counter()
    plain = model.generate(**inputs, **options)
    plain_seconds = time.perf_counter() - began
    return {"speedup": round(plain_seconds / seconds, 3), "identical": bool(plain.tolist() == drafted.tolist())}


def _summary(facts: dict[str, Any]) -> str:
    line = (
        f"{counted(facts['tokens'], 'token')} in {counted(facts['forward_passes'], 'forward pass', 'forward passes')}, "
        f"M {facts['mean_tokens']:.2f}, {facts['tokens_per_second']:.1f} tokens a second"
    )
    if "speedup" in facts:
        text = "the same text" if facts["identical"] else "another text"
        line += f", {facts['speedup']:.2f} times as fast as plain decoding, which wrote {text}"
    return "; ".join([line, *_remarks(facts)])


def _remarks(facts: dict[str, Any]) -> list[str]:
    """Return what went wrong beside the text."""
    dropped = facts.get("dropped_sources", {}).items()
    remarks = [f"{counted(steps, 'step')} without {source}" for source, steps in dropped]
    if "interrupted" in facts:
        remarks.append("interrupted")
    if "not_remembered" in facts:
        remarks.append(f"not remembered ({facts['not_remembered']})")
    if "drafter_errors" in facts:
        remarks.append(f"drafting failed ({facts['drafter_errors'][0]})")
    return remarks
