"""Drafts under a grammar: forbidden tokens are never drafted, and forced ones always.

**The naive way** masks the logits of a tree's nodes. Then most draft tokens are forbidden before
the model has seen them: in JSON three of four.

**Forced text is not a forced token.** After `{"na` a schema may force `me": `, but a tokenizer
spells that as `me` and `":`, or `m`, `e` and `"`, or `me":`. So "exactly one token is allowed" is
hardly ever true, and many tokens are allowed where one text is.

**The rule.** At each node of the tree, in the order in which the session grows it:

1. Of the sources' candidates those that the grammar forbids are dropped, and the others share the
   probability of the dropped ones.
2. Where few tokens are allowed, each choice that was made there in earlier texts counts; a place is
   known by the set of its allowed tokens and the token before it. So the tokenization that the
   model writes, and the values of an enumeration, are learned from earlier answers.
3. Where nothing was learned, the longest allowed token is the text's canonical beginning; of
   several texts each has a share.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.grammar_matchers import (
    GrammarMatcher,
    Mask,
    compile_json_schema,
    compile_regex,
    json_schema_text,
    open_grammar,
)

_FEW = 256  # allowed tokens up to which choices are counted
# Texts among which the grammar leaves a choice that is drafted without having been seen.
_MAX_CHOICES = 8
_MAX_PLACES = 1 << 14  # places whose choices are counted
_FORCED = 0.9  # probability of the longest token where one text is forced, before any was seen
_CHOICE = 0.8  # of all choices together, where there are several
_SEEN = 0.5  # weight of the sources beside choices that were seen, in choices
_CERTAIN = 0.999


class Grammar:
    """A grammar that the output must follow, as a source of drafts. It masks no logits.

    Args:
        compiled: an `xgrammar.CompiledGrammar`; a grammar as `llguidance.LLMatcher` takes it, text;
            or a `GrammarDefinition` with matchers of your own.
        tokenizer: for llguidance: an `llguidance.LLTokenizer`, or the tokenizer of transformers.
        name: for statistics.
        ends: for llguidance with the tokenizer of transformers: token ids that end a text; without
            any, the end token of the tokenizer.

    Raises:
        ArgumentError: `compiled` is something else, or is no grammar.
        MissingExtraError: llguidance is not installed.

    Sessions may share one: the choices of one output are likely in the next. Thread-safe.
    """

    def __init__(
        self,
        compiled: object,
        tokenizer: object = None,
        *,
        name: str = "grammar",
        ends: Sequence[int] = (),
    ) -> None:
        library = open_grammar(compiled, tokenizer, ends)
        self.begin = library.begin
        self.token_bytes = library.token_bytes
        # Ids of single bytes and of common merges are smaller.
        self._common = 256 + len(library.token_bytes) // 8
        self._compiled = compiled
        self._name = name
        self._choices: dict[bytes, dict[int, float]] = {}
        self._lock = Lock()
        self._matching = Lock()  # matchers are forked by one thread at a time
        self._root: Place | None = None

    @classmethod
    def from_json_schema(
        cls, schema: object, tokenizer: object, *, name: str = "json", ends: Sequence[int] = ()
    ) -> Grammar:
        """Return the grammar of a JSON schema, a dict or its text.

        Raises:
            ArgumentError: the schema is none, or nothing can satisfy it.
            MissingExtraError: llguidance is not installed.
        """
        return cls(compile_json_schema(json_schema_text(schema)), tokenizer, name=name, ends=ends)

    @classmethod
    def from_regex(
        cls, pattern: str, tokenizer: object, *, name: str = "regex", ends: Sequence[int] = ()
    ) -> Grammar:
        """Return the grammar of a regular expression, which the whole text matches.

        Errors as above.
        """
        return cls(compile_regex(pattern), tokenizer, name=name, ends=ends)

    @property
    def group(self) -> str:
        """The default group of its outputs in a live datastore: a hash of its text."""
        text = (
            self._compiled
            if isinstance(self._compiled, str)
            else getattr(self._compiled, "grammar", None)
        )
        if text is None:
            return ""
        return f"grammar-{hashlib.blake2b(str(text).encode(), digest_size=12).hexdigest()}"

    @property
    def root(self) -> Place:
        """The beginning of all texts."""
        if self._root is None:
            self._root = Place(self.begin(), -1, self._matching)
        return self._root

    def copy(self) -> Grammar:
        """Return one that knows the same choices, and learns for itself."""
        copied = Grammar.__new__(Grammar)
        vars(copied).update(vars(self))
        copied._choices = dict(self._choices)
        copied._lock = Lock()
        return copied

    def choices(self, place: bytes) -> dict[int, float]:
        """Return how often each token was chosen at a place."""
        return self._choices.get(place, {})

    def learn(self, place: bytes, token: int) -> None:
        """Count the choice of a token at a place."""
        with self._lock:
            if place not in self._choices and len(self._choices) >= _MAX_PLACES:
                self._choices.pop(next(iter(self._choices)))
            counts = self._choices.get(place, {})
            decayed = {other: 0.9 * count for other, count in counts.items() if count > 0.05}
            decayed[token] = decayed.get(token, 0.0) + 1.0
            self._choices[place] = decayed  # a new one: readers have the old

    def spellings(self, allowed: npt.NDArray[np.int32]) -> list[list[tuple[bytes, int]]]:
        """Return the bytes and ids of tokens, those together each of which begins the next.

        These spell one text: where there is one list, the grammar forces that.
        """
        texts = sorted((self.token_bytes[token], token) for token in allowed.tolist())
        chains: list[list[tuple[bytes, int]]] = []
        for text, token in texts:
            if chains and text.startswith(chains[-1][-1][0]):
                chains[-1].append((text, token))
            else:
                chains.append([(text, token)])
        return chains

    def unseen(self, allowed: npt.NDArray[np.int32]) -> dict[int, float]:
        """Return the probability of choices where none was seen, for few allowed tokens.

        Tokens each of which begins the next spell one text. Where a text is forced, its longest
        token is the likeliest.
        """
        chains = self.spellings(allowed)
        if not 1 <= len(chains) <= _MAX_CHOICES:
            return {}
        chance = _FORCED if len(chains) == 1 else _CHOICE / len(chains)
        chances: dict[int, float] = {}
        for chain in chains:
            longest_text, longest = chain[-1]
            if len(chain) == 1 or longest_text[-1:].isalnum():
                chances[longest] = chance
                continue
            # The longest token may already hold the beginning of free text, such as `":"`. A
            # tokenizer learned the commoner merges earlier: they have smaller ids.
            common = [place for place, (_, token) in enumerate(chain) if token < self._common]
            likelier = common[-1] if common else 0
            other = likelier + 1 if likelier + 1 < len(chain) else likelier - 1
            chances[chain[likelier][1]] = 0.7 * chance
            chances[chain[other][1]] = 0.3 * chance
        return chances

    def __str__(self) -> str:
        return self._name


class Place:
    """The end of a text as the grammar sees it.

    Drafts, masks and other texts that reach the same place share it while one of them holds it.

    Args:
        matcher: at this place.
        before: the token before it; -1: none.
        lock: held while a matcher is forked.

    Attributes:
        matcher: at this place.
        mask: the tokens that may come next; None: the text has ended.
        allowed: int32[n], these tokens where they are few, else None.
        keys: names of the place, the more special one first, where they are few.
    """

    __slots__ = ("__weakref__", "_lock", "_next", "allowed", "keys", "mask", "matcher")

    def __init__(self, matcher: GrammarMatcher, before: int, lock: Lock) -> None:
        self.matcher = matcher
        self._lock = lock
        self._next: WeakValueDictionary[int, Place] | None = None
        self.mask: Mask | None = matcher.mask()
        self.allowed: npt.NDArray[np.int32] | None = None
        self.keys: tuple[bytes, ...] = ()
        if self.mask is None:
            return
        words = np.flatnonzero(self.mask)
        if words.size > _FEW:
            return
        bits = np.unpackbits(self.mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
        rows, columns = np.nonzero(bits)
        if rows.size <= _FEW:
            self.allowed = (32 * words[rows] + columns).astype(np.int32)
            key = self.allowed.tobytes()
            self.keys = (key + before.to_bytes(4, "little", signed=True), key)

    def after(self, token: int) -> Place | None:
        """Return the place after one more token; None if the grammar forbids it."""
        with self._lock:
            if self._next is None:
                self._next = WeakValueDictionary()
            place = self._next.get(token)
            if place is None:
                matcher = self.matcher.fork()
                if not matcher.accept(token):
                    return None
                place = self._next[token] = Place(matcher, token, self._lock)
            return place

    def allows(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return whether each token may come next."""
        if self.mask is None:
            return np.zeros(tokens.size, np.bool_)
        is_known = tokens < 32 * self.mask.size
        words = self.mask[np.where(is_known, tokens >> 5, 0)]
        is_allowed: npt.NDArray[np.bool_] = is_known & ((words >> (tokens & 31)) & 1).astype(
            np.bool_
        )
        return is_allowed


class GrammarText:
    """The text of one session under a grammar. Not thread-safe."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._place = grammar.root

    def accept(self, tokens: Sequence[int]) -> bool:
        """Go on with the text, and learn its choices; return False if it leaves the grammar.

        Tokens after its end are padding.
        """
        for token in tokens:
            if self._place.mask is None:
                break
            for key in self._place.keys:
                self._grammar.learn(key, token)
            place = self._place.after(token)
            if place is None:
                return False
            self._place = place
        return True

    def tree(self) -> GrammarTree:
        """Return the filter of a new draft tree, which continues the text."""
        return GrammarTree(self._grammar, self._place)


class GrammarTree:
    """Filters the candidates of one draft tree (`NativeSession.use_filter`)."""

    def __init__(self, grammar: Grammar, root: Place) -> None:
        self._grammar = grammar
        self._places: dict[int, Place | None] = {-1: root}

    def filter(
        self, node: int, parent: int, token: int, tokens: bytes, probabilities: bytes
    ) -> tuple[bytes, bytes]:
        """Filter the candidates of a node.

        Args:
            node: index of the node that is expanded, after its parent; -1: the end of the text.
            parent: index of its parent.
            token: its token.
            tokens: int32[n], the candidates.
            probabilities: float32[n], of each.

        Returns:
            The same of the candidates that are left or new.
        """
        chances = self.chances(
            node,
            parent,
            token,
            np.frombuffer(tokens, np.int32),
            np.frombuffer(probabilities, np.float32),
        )
        return (
            np.fromiter(chances, np.int32, len(chances)).tobytes(),
            np.fromiter(chances.values(), np.float32, len(chances)).tobytes(),
        )

    def chances(
        self,
        node: int,
        parent: int,
        token: int,
        tokens: npt.NDArray[np.int32],
        probabilities: npt.NDArray[np.float32],
    ) -> dict[int, float]:
        """Return the probability of each token that may follow a node; arguments as of `filter`."""
        if node >= 0:
            above = self._places[parent]
            self._places[node] = None if above is None else above.after(token)
        place = self._places[node]
        if place is None or place.mask is None:
            return {}
        is_allowed = place.allows(tokens)
        forbidden = min(float(probabilities[~is_allowed].sum()), 0.999)
        shares = probabilities[is_allowed] / (1.0 - forbidden)
        proposed = dict(zip(tokens[is_allowed].tolist(), shares.tolist(), strict=True))
        if place.allowed is None:
            return proposed
        if place.allowed.size == 1:
            return {int(place.allowed[0]): _CERTAIN}
        rest = max(0.0, 1.0 - sum(proposed.values()))
        for choice, chance in self._grammar.unseen(place.allowed).items():
            proposed[choice] = proposed.get(choice, 0.0) + rest * chance
        for key in reversed(place.keys):
            proposed = _with_choices(proposed, self._grammar.choices(key))
        return {choice: min(chance, _CERTAIN) for choice, chance in proposed.items()}


def _with_choices(proposed: dict[int, float], seen: dict[int, float]) -> dict[int, float]:
    """Return the probabilities of choices, `proposed` before some were seen."""
    if not seen:
        return proposed
    total = sum(seen.values()) + _SEEN
    chances = {choice: _SEEN * chance / total for choice, chance in proposed.items()}
    for choice, count in seen.items():
        chances[choice] = chances.get(choice, 0.0) + count / total
    return chances


class ConstrainedTree(NamedTuple):
    """A scored tree as a grammar leaves it.

    Attributes:
        tree: the new tree, with the nodes that the grammar forces.
        nodes: int32[N], for each node of the old tree the one that it became; -1: none.
    """

    tree: TokenTree
    nodes: npt.NDArray[np.int32]


def constrained(
    old: TokenTree, grammar: GrammarTree, options: DraftOptions, origin: int
) -> ConstrainedTree:
    """Return another session's tree without forbidden nodes, and with forced tokens below.

    Args:
        old: with scores and origins.
        grammar: of the text that the tree continues.
        options: `max_nodes` and `is_chain` of the new tree; its costs are not looked at.
        origin: of the nodes that the grammar adds, as a bitmask.
    """
    scores = old.scores
    origins = old.origins
    assert scores is not None
    assert origins is not None
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(old.parents.tolist()):
        children.setdefault(parent, []).append(child)
    new_of_old = np.full(len(old), -1, np.int32)
    new: list[_NewNode] = []
    heap: list[_NewNode] = []

    def expand(index: int, node: _NewNode) -> None:
        """Push the candidates after a node."""
        below = [] if node.old is None else children.get(node.old, [])
        probabilities = np.minimum(scores[below] / max(node.score, 1e-9), 1.0)
        chances = grammar.chances(index, node.parent, node.token, old.tokens[below], probabilities)
        old_of_token = {int(old.tokens[child]): child for child in reversed(below)}
        if options.is_chain and chances:
            likeliest = max(chances, key=lambda token: chances[token])
            chances = {likeliest: chances[likeliest]}
        for token, chance in chances.items():
            score = node.score * chance
            heapq.heappush(
                heap, _NewNode(-score, len(heap) + len(new), token, index, old_of_token.get(token))
            )

    expand(-1, _NewNode(-1.0, 0, -1, -1, -1))
    while heap and len(new) < options.max_nodes:
        node = heapq.heappop(heap)
        if node.old is not None:
            new_of_old[node.old] = len(new)
        new.append(node)
        expand(len(new) - 1, node)
    tree = TokenTree(
        [node.token for node in new],
        [node.parent for node in new],
        [0] * len(new),
        scores=[node.score for node in new],
        origins=[origin if node.old is None else int(origins[node.old]) for node in new],
    )
    return ConstrainedTree(tree, new_of_old)


class _NewNode(NamedTuple):
    """A node of a constrained tree.

    The most probable one comes first, of equals the earlier one.
    """

    negative_score: float
    order: int
    token: int
    parent: int
    old: int | None  # the node of the old tree; -1: its context; None: the grammar added it

    @property
    def score(self) -> float:
        return -self.negative_score
