"""What a generation has written so far, and the time it took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rest_store.datastore.render import counted
from rest_store.drafting.remembering import RememberCounts
from rest_store.errors import DrafterError, ModeNotSupportedError, describe
from rest_store.generation.draft_sessions import DraftCounts


@dataclass
class Piece:
    """What one forward pass wrote.

    Attributes:
        tokens: for each row the tokens written, possibly none.
        origins: for each token a bitmask of the sources that drafted it; 0: the model alone.
        texts: for each row the text that the tokens add; what is not a whole character yet comes with a later piece.
            None without a tokenizer.
    """

    tokens: list[list[int]]
    origins: list[list[int]]
    texts: list[str] | None = None

    @property
    def text(self) -> str:
        """The text that was added to the only row, "" while a character is incomplete.

        Raises:
            DrafterError: the generator has no tokenizer.
            ModeNotSupportedError: there are several rows: `texts` has the text of each.
        """
        return only_text("Piece", self.texts)


@dataclass
class Stopwatch:
    """Measures the seconds inside its `with` blocks.

    Attributes:
        total: seconds of all blocks.
        latest: seconds of the latest block.
    """

    total: float = 0.0
    latest: float = 0.0
    _began: float = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.latest = time.perf_counter() - self._began
        self.total += self.latest


@dataclass
class Statistics:
    """What a generation took.

    Attributes:
        tokens: generated, over all rows.
        forward_passes: of the target model, over the prompt too.
        drafts: what the sessions did.
        remembered: what became of the outputs, if they are remembered; goes on changing after the end.
        origins: for each row and generated token a bitmask of the sources that drafted it; 0: the model alone.
        steps: time of whole steps, without what the reader of a stream took in between.
        forward: of that, in forward passes, until their logits can be read.
        drafting: of that, in `draft` of sessions.
    """

    tokens: int = 0
    forward_passes: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)
    remembered: RememberCounts = field(default_factory=RememberCounts)
    origins: list[list[int]] = field(default_factory=list)
    steps: Stopwatch = field(default_factory=Stopwatch)
    forward: Stopwatch = field(default_factory=Stopwatch)
    drafting: Stopwatch = field(default_factory=Stopwatch)

    @property
    def seconds(self) -> float:
        """From before the prompt's pass to the last token, without the reader's time."""
        return self.steps.total

    @property
    def forward_seconds(self) -> float:
        """Of `seconds`, in forward passes."""
        return self.forward.total

    @property
    def mean_tokens(self) -> float:
        """M: generated tokens for each forward pass (REST, section 4.1), of all rows together."""
        return self.tokens / self.forward_passes if self.forward_passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second, of all rows together."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def summary(self) -> str:
        """Return tokens, forward passes, M and speed in words."""
        passes = counted(self.forward_passes, "forward pass", "forward passes")
        pace = f"M {self.mean_tokens:.2f}, {self.tokens_per_second:.1f} tokens a second"
        return f"{counted(self.tokens, 'token')} in {passes}, {pace}"


def only_text(where: str, texts: Sequence[str] | None) -> str:
    """Return the only one of `texts`; raise DrafterError for None, ModeNotSupportedError for several."""
    if texts is None:
        raise DrafterError(describe(where, "text", "unknown", "Generator(model, tokenizer, ...), to decode the tokens"))
    if len(texts) != 1:
        raise ModeNotSupportedError(describe(where, "text", f"that of {len(texts)} rows", "one row; see texts"))
    return texts[0]
