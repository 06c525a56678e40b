"""The rule of vLLM's suffix speculator for its model runner V2, to compare draft sessions with.

This is vLLM after release 0.33.0 (`vllm/v1/worker/gpu/spec_decode/suffix`), where kernels apply the
rule on the device. Two differences favour it here: keys have no collisions of hashes, and nothing
of a document is overwritten before all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree

Tokens = npt.NDArray[np.int32]

_KEY_SIZES = (4, 2)  # tokens before a position by which it is found
_SLOTS = 8  # documents of a key, each with its latest position
_PROMPT_TOKENS = 3  # before an output in its document
_DEPTH = 24  # of a match, by default
_CAPACITY = 1_000_000  # tokens of the memory, by default
_END = -1  # follows a document


class SuffixMemory:
    """The outputs of finished requests.

    Args:
        capacity: tokens, and one for each output; the oldest outputs are forgotten.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._documents: list[Tokens] = []
        self._first = 0  # document that is not forgotten
        self._size = 0
        self._slots: dict[bytes, dict[int, tuple[int, int]]] = {}  # places by key and slot

    def add(self, prompt: Tokens, output: Tokens) -> None:
        """Remember an output, with the last tokens of its prompt."""
        document = np.concatenate([prompt[-_PROMPT_TOKENS:], output]).astype(np.int32)
        document = document[-(self._capacity - 1) :]
        number = len(self._documents)
        self._documents.append(document)
        self._size += document.size + 1
        while self._size > self._capacity:
            self._size -= self._documents[self._first].size + 1
            self._first += 1
        for size in _KEY_SIZES:
            for position in range(size, document.size):
                key = document[position - size : position].tobytes()
                self._slots.setdefault(key, {})[number % _SLOTS] = (number, position)

    def candidates(self, text: Tokens, depth: int) -> dict[tuple[int, int], int]:
        """Return places after the end of the text, with the length of each match.

        A place is a document and a position in it.
        """
        lengths = {}
        for size in _KEY_SIZES:
            if text.size < size:
                continue
            for place in self._slots.get(text[-size:].tobytes(), {}).values():
                number, position = place
                if number >= self._first:
                    before = self._documents[number][:position]
                    lengths[place] = _common_suffix(before, text, depth)
        return lengths

    def continuation(self, text: Tokens, depth: int, count: int) -> tuple[int, list[int]]:
        """Return the length of the match whose continuation is likeliest, and the continuation.

        For each length, the candidates that match so much vote for token after token; of equal
        tokens, the latest document's wins. The continuation with the greatest sum of probabilities
        is taken, of equal ones that of the longest match.
        """
        lengths = self.candidates(text, depth)
        best = (-1.0, 0)
        chain: list[int] = []
        for length in set(lengths.values()):
            alive = [place for place, own in lengths.items() if own >= length]
            expected, tokens = self._vote(alive, count)
            if (expected, length) > best:
                best = (expected, length)
                chain = tokens
        return best[1], chain

    def _vote(self, alive: Sequence[tuple[int, int]], count: int) -> tuple[float, list[int]]:
        probability = 1.0
        expected = 0.0
        chain: list[int] = []
        for offset in range(count):
            nexts = {place: self._token(place, offset) for place in alive}
            votes = Counter(token for token in nexts.values() if token != _END)
            if not votes:
                break
            most = max(votes.values())
            latest = max(place for place, token in nexts.items() if votes[token] == most)
            token = nexts[latest]
            probability *= most / len(alive)
            expected += probability
            chain.append(token)
            alive = [place for place in alive if nexts[place] == token]
        return expected, chain

    def _token(self, place: tuple[int, int], offset: int) -> int:
        number, position = place
        document = self._documents[number]
        return int(document[position + offset]) if position + offset < document.size else _END


class SuffixRule:
    """One request: the continuation of the longest match, of its own text or of the memory.

    Of equal lengths the own text is continued, from the latest match. The rest of a draft repeats
    the last token, since vLLM verifies as many in each step.

    Args:
        memory: outputs of earlier requests; that of this one is added by `close`.
        prompt: the text so far.
        depth: most tokens of a match.
    """

    def __init__(self, memory: SuffixMemory, prompt: Tokens, *, depth: int = _DEPTH) -> None:
        self._memory = memory
        self._prompt = prompt
        self._depth = depth
        self._text = np.asarray(prompt, np.int32)

    def draft(self, max_nodes: int, costs: object = None) -> TokenTree:
        """Return the chain of the rule, of `max_nodes` tokens; `costs` are not used."""
        if not self._text.size:
            return TokenTree([], [], [])
        length, tokens = self.own_continuation(max_nodes)
        remembered, others = self._memory.continuation(self._text, self._depth, max_nodes)
        if remembered > length:
            tokens = others
        tokens = [*tokens, *[int(self._text[-1])] * (max_nodes - len(tokens))]
        return TokenTree(tokens, range(-1, max_nodes - 1), [1] * max_nodes)

    def accept(self, tokens: Tokens, top_k: object = None) -> None:
        """Take over `tokens`; the likely tokens are not used."""
        self._text = np.concatenate([self._text, tokens]).astype(np.int32)

    def close(self) -> None:
        """End the request."""
        self._memory.add(self._prompt, self._text[self._prompt.size :])

    def own_continuation(self, count: int) -> tuple[int, list[int]]:
        """Return the length of the longest earlier match, and the tokens after the latest one."""
        text = self._text
        ends = 1 + np.flatnonzero(text[:-1] == text[-1])
        if not ends.size:
            return 0, []
        length = 1
        while length < self._depth:
            longer = ends[ends > length]
            longer = longer[text[longer - 1 - length] == text[-1 - length]]
            if not longer.size:
                break
            ends = longer
            length += 1
        return length, text[ends[-1] : ends[-1] + count].tolist()


def _common_suffix(one: Tokens, other: Tokens, most: int) -> int:
    size = min(one.size, other.size, most)
    differs = one[one.size - size :][::-1] != other[other.size - size :][::-1]
    return int(differs.argmax()) if differs.any() else size
