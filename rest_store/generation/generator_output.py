"""What `Generator.generate` returns: tokens, text, and what drafting gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.generation.comparison import Comparison
from rest_store.generation.output import GenerateOutput, Statistics, only_text

MODEL = "model"  # what stands for tokens that no source drafted
_KINDS: dict[type, str] = {PromptLookup: "prompt lookup", RecycledLogits: "recycled logits"}


@dataclass(frozen=True, eq=False)
class GeneratorOutput:
    """What a `Generator` wrote, and what it took.

    Attributes:
        result: what `rest_store.generate` returns: int64[rows, length], or with `return_dict_in_generate=True` a
            `GenerateOutput` with the fields of transformers.
        tokens: for each row the generated token ids, without prompt and padding.
        texts: for each row the generated text, without special tokens; None without a tokenizer.
        statistics: forward passes, times, what the sessions did, where each token came from.
        sources: for each source, by name, how many of its draft tokens were accepted; under "model" the tokens that no
            source drafted. A token that several sources drafted counts for each of them.
        comparison: with plain generation, if it was asked for.
    """

    result: torch.Tensor | GenerateOutput
    tokens: list[list[int]]
    texts: list[str] | None
    statistics: Statistics
    sources: dict[str, int]
    comparison: Comparison | None = None

    @property
    def sequences(self) -> torch.Tensor:
        """Prompts and output, int64[rows, length], as `model.generate` returns them."""
        return self.result if isinstance(self.result, torch.Tensor) else self.result.sequences

    @property
    def text(self) -> str:
        """The text of the only row.

        Raises:
            DrafterError: the generator has no tokenizer.
            ModeNotSupportedError: there are several rows: `texts` has the text of each.
        """
        return only_text("GeneratorOutput", self.texts)

    @property
    def mean_tokens(self) -> float:
        """M: generated tokens for each forward pass (REST, section 4.1), of all rows together."""
        return self.statistics.mean_tokens

    def summary(self) -> str:
        """Return all this in a line, and the comparison in another."""
        sources = ", ".join(f"{number} from {name}" for name, number in self.sources.items())
        line = f"{self.statistics.summary()}; of these {sources}"
        return line if self.comparison is None else f"{line}\n{self.comparison}"

    __str__ = summary


def source_names(sources: object) -> list[str]:
    """Return a name for each source: the path of a datastore, otherwise what it is; none for a callable drafter."""
    names: list[str] = []
    for source in sources if isinstance(sources, list | tuple) else ():
        path = getattr(source, "path", None)
        name = str(path) if path is not None else _KINDS.get(type(source), type(source).__name__)
        names.append(f"{name} {len(names) + 1}" if name in names else name)
    return names


def accepted_by_source(origins: Sequence[Sequence[int]], names: Sequence[str]) -> dict[str, int]:
    """Return how many tokens each source drafted, and under "model" those that none did.

    Args:
        origins: of each row and token a bitmask of sources.
        names: of the sources; what others drafted counts as "drafted".
    """
    accepted = dict.fromkeys([*names, MODEL], 0)
    for origin in (origin for row in origins for origin in row):
        bits = [bit for bit in range(origin.bit_length()) if origin >> bit & 1]
        for name in {names[bit] if bit < len(names) else "drafted" for bit in bits} or {MODEL}:
            accepted[name] = accepted.get(name, 0) + 1
    return accepted
