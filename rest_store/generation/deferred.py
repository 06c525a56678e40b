"""Verification of chains with a model that has recurrent state, by deferred commit.

The cache stays at the last commit. Each pass reads all that the cache lacks of the text, the last
token and the draft, from there. If the model writes the whole draft, too, the states after the pass
are kept. Otherwise they are dropped, and the next pass reads the accepted tokens again. Reading a
token again takes little: a pass mostly waits for weights. A step without drafts reads only certain
tokens, and commits all of them.

Rows of a batch have one width in a pass; behind a shorter row are tokens that mean nothing, after
which its states cannot be kept. So a step without drafts reads rows of different lengths in several
passes, each as far as the shortest. Nothing here is thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rest_store.datastore.tree import TokenTree
from rest_store.generation.draft_sessions import EMPTY
from rest_store.generation.passes import TreePasses, Verifier
from rest_store.generation.prefill import PrefilledPrompt
from rest_store.generation.recurrent_cache import RecurrentCache

_NO_LIMIT = (0.0, float("inf"))
_MIN_CHUNK = 8  # tokens
_DELTA_RULE = "GatedDeltaNet"  # the end of the names of its classes
_DELTA_CHUNK = 64  # the usual one


class MixerSettings:
    """The recurrent mixers of a model, whose settings are those of long texts.

    Passes that verify have others.

    A pass over several tokens bounds time steps in Nemotron-H and Zamba2; single steps do not.
    Plain generation has single steps, so here there are none. And on the CPU the last chunk is
    filled up: with chunks of 256, a pass over two tokens takes as long as one over 256. A smaller
    chunk changes nothing but rounding. Mixers of Mamba 2 have its size as an attribute; those of
    the gated delta rule take it as an argument, which models pass on.

    Args:
        model: of transformers.
    """

    def __init__(self, model: Any) -> None:
        modules = [*model.modules()]
        mixers = [module for module in modules if hasattr(module, "time_step_limit")]
        self._limits = [(mixer, mixer.time_step_limit) for mixer in mixers]
        on_cpu = model.device.type == "cpu"  # kernels for accelerators fill nothing up
        self._chunks = [
            (mixer, mixer.chunk_size) for mixer in mixers if on_cpu and hasattr(mixer, "chunk_size")
        ]
        self._takes_chunks = on_cpu and any(
            type(module).__name__.endswith(_DELTA_RULE) for module in modules
        )

    @contextmanager
    def set_for(self, width: int) -> Iterator[dict[str, int]]:
        """Have settings for a pass over `width` tokens.

        Return the arguments of the model that belong to them.
        """
        enough = max(_MIN_CHUNK, 1 << (width - 1).bit_length())
        try:
            for mixer, _ in self._limits:
                mixer.time_step_limit = _NO_LIMIT
            for mixer, chunk in self._chunks:
                mixer.chunk_size = min(chunk, enough)
            yield (
                {"chunk_size": enough}
                if self._takes_chunks and width > 1 and enough < _DELTA_CHUNK
                else {}
            )
        finally:
            for mixer, limit in self._limits:
                mixer.time_step_limit = limit
            for mixer, chunk in self._chunks:
                mixer.chunk_size = chunk


class DeferredVerifier(Verifier):
    """Verifies chains, and reads the accepted tokens of partly right chains again.

    Convolutions alone are rolled back to any token, so that nothing is read again.
    """

    shape = "chain"

    def __init__(self, model: Any, prompt: PrefilledPrompt, room: int) -> None:
        self._passes = TreePasses(model, prompt, RecurrentCache, room)
        self.cache = self._passes.cache
        self._mixers = MixerSettings(model)
        # Of the text, but not in the cache.
        self._waiting: list[list[int]] = [[] for _ in self.cache.lengths]
        # By the latest pass, for each row; None: all of it is kept already.
        self._read: list[list[int]] | None = None
        # The cache holds the last token, too, or an error ended a pass that changes states.
        self._is_ahead = False

    @property
    def rereads(self) -> bool:
        """Whether accepted tokens of a draft that was partly wrong are read again."""
        return not self.cache.rolls_back

    @property
    def waiting(self) -> int:
        """How many tokens the next pass reads again."""
        return max(map(len, self._waiting))

    def run(
        self, last: Sequence[int | None], trees: Sequence[TokenTree], width: int
    ) -> torch.Tensor:
        """Verify the last token and the chain of each row; see `Verifier.run`."""
        texts = [
            [] if token is None else [*waiting, token]
            for waiting, token in zip(self._waiting, last, strict=True)
        ]
        self.cache.ended.update(row for row, token in enumerate(last) if token is None)
        if not any(map(len, trees)):
            self._is_ahead = True
            return self._commit(texts)
        self.cache.put_back([row for row, text in enumerate(texts) if text])
        self._read = [
            [*text, *tree.tokens.tolist()] if text else []
            for text, tree in zip(texts, trees, strict=True)
        ]
        # Of the tokens that logits are wanted for.
        first = min(len(text) for text in texts if text) - 1
        logits = self._pass(self._read, first)
        offsets = [max(len(text) - 1 - first, 0) for text in texts]
        if not any(offsets):
            return logits[:, :width]
        columns = torch.tensor(offsets)[:, None] + torch.arange(width)
        rows = torch.arange(len(texts))[:, None]
        return logits[rows, columns.clamp(max=logits.shape[1] - 1)]

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep the tokens at `paths` of the latest step; see `Verifier.keep`."""
        self._is_ahead = False
        if self._read is None:
            return
        width = max(map(len, self._read))
        ends = [0] * len(paths)
        for row, (path, read) in enumerate(zip(paths, self._read, strict=True)):
            if not read:
                continue
            length = len(self._waiting[row]) + len(path)
            if self.cache.rolls_back or length == width:
                ends[row] = length
                self._waiting[row] = []
            else:
                self._waiting[row] = read[:length]
        self.cache.keep_first(ends)
        self._read = None

    def give_back(self, cache: Any) -> None:
        """Fill the cache that was taken over; see `Verifier.give_back`.

        Ours lacks the tokens that wait to be read again, so they are read here. After an error in a
        step that commits, `cache` stays empty.
        """
        if self._is_ahead:
            return
        self._commit([list(waiting) for waiting in self._waiting])
        self.cache.give_back(cache)

    def close(self) -> None:
        """Give the model its own attention back; may be called again."""
        self._passes.close()

    def _commit(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read tokens that are certain.

        Return the logits after the last one of each row, [rows, 1, vocabulary].
        """
        self._read = None
        self.cache.put_back([row for row, text in enumerate(texts) if text])
        logits = torch.empty(0)
        start = 0
        for stop in sorted({len(text) for text in texts if text}):
            parts = [text[start:stop] for text in texts]
            if stop - start == 1:
                self.cache.set_aside([row for row, part in enumerate(parts) if not part])
            latest = self._pass(parts, stop - start - 1)
            self.cache.keep_first([len(part) for part in parts])
            for row, part in enumerate(parts):
                self._waiting[row] = self._waiting[row][len(part) :]
            if start:
                ended = [row for row, text in enumerate(texts) if len(text) == stop]
                logits[ended] = latest[ended]
            else:
                logits = latest
            start = stop
        return logits

    def _pass(self, rows: Sequence[Sequence[int]], first: int) -> torch.Tensor:
        """Run the model over the tokens of each row.

        Return the logits after all but the `first` ones.
        """
        width = max(map(len, rows))
        chains = [_chain(row[1:]) for row in rows]
        self.cache.drop()
        self.passes += 1
        last = [row[0] if row else None for row in rows]
        with self._mixers.set_for(width) as settings:
            return self._passes.run(last, chains, width, logits=width - first, settings=settings)


def _chain(tokens: Sequence[int]) -> TokenTree:
    return TokenTree(tokens, range(-1, len(tokens) - 1), [1] * len(tokens)) if tokens else EMPTY
