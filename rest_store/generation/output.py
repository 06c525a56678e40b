"""The output of a generation, pass by pass and as a whole, and its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from rest_store.datastore.render import counted
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.remembering import RememberCounts
from rest_store.errors import ArgumentError, NotSupportedError
from rest_store.generation.comparison import Comparison
from rest_store.generation.draft_counts import DraftCounts
from rest_store.generation.rows import Row
from rest_store.generation.seam import CACHE

MODEL = "model"  # stands for tokens that no source drafted


@dataclass
class Piece:
    """The tokens that one forward pass wrote.

    Attributes:
        tokens: for each row the tokens written, possibly none: those of the accepted path, then the
            bonus token.
        origins: for each token a bitmask of the sources that drafted it; 0: the model alone.
        trees: for each row the draft tree that was verified, empty where nothing was.
        accepted: for each row the nodes of that tree that were accepted, from the context on.
        words: for each row the text that each token adds, "" while a character is incomplete; None
            without a tokenizer.
        seconds: of the whole step.
        drafting_seconds: of that, in `draft` of sessions.
        forward_seconds: of that, in the forward pass, until its logits can be read.
        forward_passes: 1, unless rows of different lengths were read one after the other.
    """

    tokens: list[list[int]]
    origins: list[list[int]]
    trees: Sequence[TokenTree]
    accepted: list[list[int]]
    words: list[list[str]] | None = None
    seconds: float = 0.0
    drafting_seconds: float = 0.0
    forward_seconds: float = 0.0
    forward_passes: int = 1

    @property
    def text(self) -> str:
        """The text that was added to the only row; errors as in `GeneratorOutput.text`."""
        return only_text(
            "Piece", None if self.words is None else ["".join(words) for words in self.words]
        )

    @property
    def paths(self) -> list[list[int]]:
        """For each row, the positions in the step of the tokens that the new ones follow.

        Position 0 is the first token of the step.
        """
        paths = []
        for tokens, nodes in zip(self.tokens, self.accepted, strict=True):
            path = [0, *(1 + node for node in nodes)]
            paths.append(path[: len(tokens)])
        return paths


@dataclass
class Statistics:
    """The counts and times of a generation.

    Attributes:
        tokens: generated, over all rows.
        forward_passes: of the target model, over the prompt too.
        drafts: counts of the sessions' work.
        remembered: counts of the outputs' additions, if any; goes on changing after the
            end.
        origins: for each row and generated token a bitmask of the sources that drafted it; 0: the
            model alone.
        seconds: of whole steps, the prompt's too, without the time of a stream's reader between
            them.
        drafting_seconds: of that, in `draft` of sessions.
        forward_seconds: of that, in forward passes, until their logits can be read.
    """

    tokens: int = 0
    forward_passes: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    remembered: RememberCounts = field(default_factory=RememberCounts)
    origins: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0
    drafting_seconds: float = 0.0
    forward_seconds: float = 0.0

    def add(self, piece: Piece) -> None:
        """Count a forward pass."""
        self.tokens += sum(map(len, piece.tokens))
        self.forward_passes += piece.forward_passes
        for origins, added in zip(self.origins, piece.origins, strict=True):
            origins += added
        self.drafts.nodes += sum(map(len, piece.trees))
        self.drafts.accepted += sum(map(len, piece.accepted))
        self.seconds += piece.seconds
        self.drafting_seconds += piece.drafting_seconds
        self.forward_seconds += piece.forward_seconds

    @property
    def mean_tokens(self) -> float:
        """M: generated tokens for each forward pass (REST, section 4.1), of all rows together."""
        return self.tokens / self.forward_passes if self.forward_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second, of all rows together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def pace(self) -> str:
        """Tokens, forward passes and M in words."""
        passes = counted(self.forward_passes, "forward pass", "forward passes")
        return (
            f"{counted(self.tokens, 'token')} in {passes}, M {self.mean_tokens:.2f} tokens a pass"
            " (1 without drafts)"
        )

    def __str__(self) -> str:
        """Return the pace and the speed in words."""
        return f"{self.pace}, {self.tokens_per_second:.1f} tokens a second"

    @property
    def no_gain(self) -> str:
        """Why no draft token was accepted; empty if some were, or if nothing was to be drafted."""
        drafts = self.drafts
        if drafts.accepted or not drafts.requested + drafts.paused:
            return ""
        reasons = [
            (drafts.nodes, f"{counted(drafts.nodes, 'draft token')} verified, all of them wrong"),
            (drafts.empty, f"{counted(drafts.empty, 'draft')} without a match that pays"),
            (
                sum(drafts.omissions.values()),
                f"{counted(sum(drafts.omissions.values()), 'answer')} late or failed",
            ),
            (
                drafts.paused,
                f"drafting paused in {counted(drafts.paused, 'step')}, since it did not pay",
            ),
        ]
        return f"no draft was accepted: {', '.join(reason for number, reason in reasons if number)}"


@dataclass
class GenerateOutput(GenerateDecoderOnlyOutput):
    """The output with `return_dict_in_generate=True`: fields of transformers, and statistics.

    Attributes:
        statistics: forward passes, M, the work of sessions, the source of each token.
    """

    statistics: Statistics | None = None


@dataclass(frozen=True, eq=False)
class GeneratorOutput:
    """The text of a `Generator`, and the effort that it took.

    Attributes:
        sequences: prompts and output, int64[rows, length], as `model.generate` returns them.
        tokens: for each row the generated token ids, without prompt and padding.
        texts: for each row the generated text, without special tokens; None without a tokenizer.
        statistics: forward passes, times, the work of sessions, the source of each token.
        sources: for each source, by name, how many of its draft tokens were accepted; under "model"
            the tokens that no source drafted. A token that several sources drafted counts for each
            of them.
        comparison: with plain generation, if it was asked for.
    """

    sequences: torch.Tensor
    tokens: list[list[int]]
    texts: list[str] | None
    statistics: Statistics
    sources: dict[str, int]
    comparison: Comparison | None = None

    @property
    def text(self) -> str:
        """The text of the only row.

        Raises:
            ArgumentError: the generator has no tokenizer.
            NotSupportedError: there are several rows: `texts` has the text of each.
        """
        return only_text("GeneratorOutput", self.texts)

    @property
    def by_source(self) -> str:
        """The accepted tokens of each source, in words."""
        return ", ".join(f"{number} from {name}" for name, number in self.sources.items())

    def __str__(self) -> str:
        """Return all this in a line, and the comparison, which then has the speed, in another."""
        return self.words([self.statistics.no_gain])

    def words(self, remarks: Sequence[str]) -> str:
        """Return the effort that the text took, with `remarks` on it, in a line.

        And the comparison in another.
        """
        statistics = self.statistics
        took = str(statistics) if self.comparison is None else statistics.pace
        line = "; ".join(filter(None, [took, self.by_source, *remarks]))
        return line if self.comparison is None else f"{line}\n{self.comparison}"


def _padding(config: Any) -> int:
    """Return the token that `generate` of transformers pads with."""
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    ends = config.eos_token_id
    if isinstance(ends, list):
        return int(ends[0])
    return 0 if ends is None else int(ends)


def make_output(
    rows: Sequence[Row], config: Any, input_ids: torch.Tensor, cache: Any, statistics: Statistics
) -> torch.Tensor | GenerateOutput:
    """Return the result of `generate`.

    Args:
        rows: written rows, with the scores and logits that were requested.
        config: the prepared `GenerationConfig`.
        input_ids: int64[rows, length], the prompts.
        cache: of the model; None if it is not returned.
        statistics: of the generation.
    """
    padding = _padding(config)
    length = max(len(row.tokens) for row in rows)
    sequences = input_ids.new_full((len(rows), length), padding, dtype=torch.int64)
    for number, row in enumerate(rows):
        sequences[number, : len(row.tokens)] = torch.tensor(row.tokens)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateOutput(
        sequences=sequences,
        scores=_by_token([row.scores for row in rows]) if config.output_scores else None,
        logits=_by_token([row.logits for row in rows]) if config.output_logits else None,
        statistics=statistics,
        **{CACHE: cache},
    )


def _by_token(rows: Sequence[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """Return [rows, vocabulary] of each generated token, 0 behind a row's end."""
    if not rows[0]:  # closed before the first token
        return ()
    zeros = torch.zeros_like(rows[0][0])
    by_token = zip_longest(*rows, fillvalue=zeros)
    return tuple(map(torch.cat, by_token))


def accepted_by_source(origins: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, int]:
    """Return the number of tokens by source, and under "model" those of no source.

    Args:
        origins: of each row and token a bitmask of sources.
        names: of the sources; tokens of others count as "drafted".
    """
    accepted = dict.fromkeys([*names, MODEL], 0)
    for origin in chain.from_iterable(origins):
        bits = [bit for bit in range(origin.bit_length()) if origin >> bit & 1]
        for name in {names[bit] if bit < len(names) else "drafted" for bit in bits} or {MODEL}:
            accepted[name] = accepted.get(name, 0) + 1
    return accepted


def only_text(where: str, texts: Sequence[str] | None) -> str:
    """Return the only one of `texts`.

    Raise ArgumentError for None, NotSupportedError for several.
    """
    if texts is None:
        raise ArgumentError(
            f"{where}: there is no text without a tokenizer: use Generator(model, tokenizer, ...)"
        )
    if len(texts) != 1:
        raise NotSupportedError(f"{where}: there are the texts of {len(texts)} rows; use `texts`")
    return texts[0]
