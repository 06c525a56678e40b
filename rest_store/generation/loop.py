"""One generation: draft, verify, accept, emit (REST, Figure 1)."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import torch

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import TOP_K
from rest_store.drafting.draft_policy import DraftPolicy
from rest_store.drafting.output_document import PROMPT_TOKENS, OutputDocument
from rest_store.drafting.remembering import RememberTarget, remember
from rest_store.errors import NotSupportedError, describe
from rest_store.generation.acceptance import Acceptance, Stops
from rest_store.generation.attention import require_attention
from rest_store.generation.detokenizer import Detokenizer
from rest_store.generation.draft_sessions import EMPTY, DraftSessions, shortened
from rest_store.generation.drafting_options import DraftingOptions
from rest_store.generation.grammar_mask import GrammarMask, mask_trees
from rest_store.generation.output import Piece, Statistics, make_output
from rest_store.generation.passes import Verifier
from rest_store.generation.prefill import (
    PrefilledPrompt,
    prefill,
    prompt_length,
    require_prompt,
    unpadded,
)
from rest_store.generation.rows import make_rows
from rest_store.generation.seam import cache_in, require_transformers
from rest_store.generation.support import (
    position_count,
    require_length,
    require_mode,
    require_model,
    vocabulary_size,
)
from rest_store.generation.top_tokens import TopTokens, read_top_tokens
from rest_store.generation.typical import ACCEPTANCES, require_typical
from rest_store.generation.verify import make_verifier, require_verifier

# The times of steps that generations have learned, by target model and conditions.
_policies: weakref.WeakKeyDictionary[Any, dict[Hashable, DraftPolicy]] = weakref.WeakKeyDictionary()


class Generation:
    """A generation to iterate over, once: each item is the `Piece` that one forward pass wrote.

    Iterating again continues where the last iteration stopped. Can be given to `model.generate` as
    `custom_generate`. Used by one thread. A context manager; `close` ends it. The end of the text
    and an error close it too.

    The caller's cache is empty meanwhile, and filled on closing. If a generation is dropped without
    being closed, the cache stays empty: by the time Python notices, it may be in use again.

    Args:
        options: how to draft, and where to remember.
        text_tokenizer: turns tokens into the text of pieces; None: they have none.

    Attributes:
        statistics: up to date after each piece.

    All other arguments, and errors, are those of `rest_store.generate`.
    """

    _sessions: DraftSessions | None = None
    _verifier: Verifier | None = None  # from the prompt's pass until it is closed
    _policy: DraftPolicy | None = None  # None: drafts are made at any cost
    _cache: Any = None  # of transformers, of the prompt's pass
    _target: RememberTarget | None = None  # until the output has been handed over
    _prompt_ends: Sequence[list[int]] = ()  # of each row, without padding
    _closed = False

    def __init__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        *,
        options: DraftingOptions,
        text_tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> None:
        require_transformers()
        sample = bool(generation_config.do_sample)
        self._stops = Stops(stopping_criteria)
        self._max_nodes = options.max_nodes_on(input_ids.device)
        require_mode(generation_config, logits_processor)
        typical = options.acceptance != ACCEPTANCES[0]
        if typical:
            require_typical(sample, logits_processor)
        require_model(model)
        require_attention(model)
        most = self._stops.max_length or math.inf  # tokens of a row
        # In a cache, beside those of the row.
        held = prompt_length(input_ids, model_kwargs) - input_ids.shape[1]
        require_length(model, held + most)
        # The last token needs no position.
        self._longest = min(most, position_count(model) + 1 - held)
        require_prompt(model, generation_config, model_kwargs)
        require_verifier(model, cache_in(model_kwargs))
        self._model = model
        self._config = generation_config
        self._model_kwargs = model_kwargs
        self._input_ids = input_ids
        self._options = options
        # Several threads spin while they wait for one that other processes delay, so their time is
        # no better.
        self._by_processor = input_ids.device.type == "cpu" and torch.get_num_threads() == 1
        returns_dict = bool(generation_config.return_dict_in_generate)
        keeps_logits = returns_dict and bool(generation_config.output_logits)
        kinds = [type(processor) for processor in logits_processor]
        self._masks_trees = kinds[:1] == [GrammarMask] and not keeps_logits
        # Of logits that nothing else changes, so of all nodes at once.
        self._takes_best = not sample and len(kinds) == int(self._masks_trees)
        if options.grammars and input_ids.shape[0] % len(options.grammars):
            expected = f"1, or one for each of {input_ids.shape[0]} rows"
            raise NotSupportedError(
                describe("generate", "number of grammars", len(options.grammars), expected)
            )
        self._rows = make_rows(input_ids, logits_processor, sample=sample)
        self._detokenizers = (
            None if text_tokenizer is None else [Detokenizer(text_tokenizer) for _ in self._rows]
        )
        self.statistics = Statistics(origins=[[] for _ in self._rows])
        self._acceptance = Acceptance(
            self._rows,
            self._stops,
            typical=typical,
            keeps_logits=keeps_logits,
            keeps_scores=returns_dict and bool(generation_config.output_scores),
        )
        # Last: a call refused above remembers nothing.
        self._target = None if options.is_trial else options.remember

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        """Run the next forward pass."""
        piece = self._next_piece()
        if piece is None:
            raise StopIteration
        if self._detokenizers is not None:
            piece.words = [
                detokenizer.words(tokens, last=row.ended)
                for detokenizer, tokens, row in zip(
                    self._detokenizers, piece.tokens, self._rows, strict=True
                )
            ]
        return piece

    def _next_piece(self) -> Piece | None:
        """Run the next forward pass, or close at the end and return None."""
        if self._verifier is not None and all(row.ended for row in self._rows):
            self.close()
        if self._closed:
            return None
        began = time.perf_counter()
        try:
            with torch.no_grad():
                if self._verifier is None or self._sessions is None:
                    piece = self._first_step()
                else:
                    piece = self._step(self._sessions, self._verifier)
        except BaseException:
            self.close()
            raise
        piece.seconds = time.perf_counter() - began
        self.statistics.add(piece)
        return piece

    def _first_step(self) -> Piece:
        """Open the sessions and run the prompt."""
        prompts = unpadded(self._input_ids, self._model_kwargs)
        self._prompt_ends = [prompt[-PROMPT_TOKENS:] for prompt in prompts]
        sessions = self._sessions = DraftSessions(
            self._options, prompts, vocabulary_size(self._model)
        )
        self.statistics.drafts = sessions.counts
        began = time.perf_counter()
        prompt = prefill(
            self._model, self._input_ids, self._config.prefill_chunk_size, self._model_kwargs
        )
        trees = [EMPTY] * len(self._rows)
        logits, top_tokens = self._read(prompt.logits, trees, sessions)
        seconds = time.perf_counter() - began
        if self._options.adaptive:
            self._policy = _find_policy(self._model, prompt)
        piece = self._acceptance.accept(logits, top_tokens, trees)
        piece.forward_seconds = seconds
        self._cache = prompt.cache
        self._verifier = make_verifier(self._model, prompt, 1 + self._max_nodes)
        sessions.accept(piece, top_tokens)
        return piece

    def _step(self, sessions: DraftSessions, verifier: Verifier) -> Piece:
        """Draft, verify, accept."""
        began = self._times()
        has_drafted, trees = self._draft(sessions, verifier)
        draft_end = self._times()
        nodes = max(map(len, trees))
        passes = verifier.passes
        more = verifier.waiting + nodes  # tokens than in a plain step
        last = [None if row.ended else row.tokens[-1] for row in self._rows]
        logits = verifier.run(last, trees, 1 + nodes)
        logits, top_tokens = self._read(logits, trees, sessions)
        verification_end = self._times()
        piece = self._acceptance.accept(logits, top_tokens, trees)
        piece.drafting_seconds = draft_end[0] - began[0]
        piece.forward_seconds = verification_end[0] - draft_end[0]
        piece.forward_passes = verifier.passes - passes
        verifier.keep(piece.paths)
        sessions.accept(piece, top_tokens)
        if self._policy is not None:
            self._policy.observe(more, verification_end[1] - draft_end[1])
            if has_drafted:
                self._learn(self._policy, sessions, more, piece, draft_end[1] - began[1])
        return piece

    # --- one step ---------------------------------------------------------------------------------

    def _draft(self, sessions: DraftSessions, verifier: Verifier) -> tuple[bool, list[TokenTree]]:
        """Return whether the sessions drafted, and a tree for each row, which may be empty."""
        longest = int(min(self._longest, 2**31)) - 1  # the bonus token comes last
        depths = [0 if row.ended else longest - len(row.tokens) for row in self._rows]
        # A step reads at most as many tokens again as it may draft: then they are committed.
        if not sessions.active or self._max_nodes <= verifier.waiting or max(depths) <= 0:
            return False, [EMPTY] * len(self._rows)
        policy = self._policy
        waiting = verifier.waiting
        if policy is None:
            return True, sessions.draft(depths, self._max_nodes, None, shape=verifier.shape)
        if not policy.wants_drafts(waiting):
            sessions.counts.paused += 1
            return False, [EMPTY] * len(self._rows)
        costs = policy.costs(self._max_nodes, waiting)
        services = policy.wants_services()
        trees = sessions.draft(
            depths, self._max_nodes, costs, shape=verifier.shape, services=services
        )
        if verifier.rereads:
            trees = [_shorten_to_worth(tree, policy, waiting) for tree in trees]
        return True, trees

    def _read(
        self, logits: torch.Tensor, trees: Sequence[TokenTree], sessions: DraftSessions
    ) -> tuple[torch.Tensor, TopTokens]:
        """Wait for the logits of a forward pass.

        Return them, perhaps masked, and the tokens of them that the host needs.
        """
        masked = self._masked(logits, trees) if self._masks_trees else None
        best = self._takes_best and self._masks_trees == (masked is not None)
        logits = logits if masked is None else masked
        top_tokens = read_top_tokens(logits, best=best, count=TOP_K if sessions.active else 0)
        if logits.device.type == "cuda":
            torch.cuda.current_stream(logits.device).synchronize()
        return logits, top_tokens

    def _masked(self, logits: torch.Tensor, trees: Sequence[TokenTree]) -> torch.Tensor | None:
        """Return the logits as the rows' grammars leave them.

        None: they are asked token by token.
        """
        masks: list[GrammarMask | None] = [
            None if row.ended else cast(GrammarMask, row.processors[0]) for row in self._rows
        ]
        tokens = [row.tokens for row in self._rows]
        return mask_trees(logits, masks, tokens, trees, self._input_ids.shape[1])

    def _learn(
        self, policy: DraftPolicy, sessions: DraftSessions, nodes: int, piece: Piece, seconds: float
    ) -> None:
        """Learn the time that drafts took and the tokens that they brought.

        The rows of a batch are padded to one width: all count as one.
        """
        waited = sessions.waited
        lengths = [len(tokens) for tokens in piece.tokens if tokens]
        scores = [tree.scores for tree in piece.trees if tree.scores is not None]
        expected = sum(float(tree_scores.sum()) for tree_scores in scores) / len(lengths)
        accepted = sum(lengths) / len(lengths) - 1
        service_tokens = sessions.count_by_services(piece) / len(lengths)
        seconds += waited if self._by_processor else 0.0
        policy.learn(nodes, expected, accepted, seconds, waited, service_tokens)

    def _times(self) -> tuple[float, float]:
        """Return the time, and the clock by which steps are judged, both in seconds.

        On one core the latter is the processor's time, which other processes hardly change. It does
        not pass while a service is waited for.
        """
        now = time.perf_counter()
        return now, time.process_time() if self._by_processor else now

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens generated so far, for each row, without prompt and padding."""
        start = self._input_ids.shape[1]
        return [row.tokens[start:] for row in self._rows]

    # --- begin and end ----------------------------------------------------------------------------

    def close(self) -> None:
        """End the generation here; the caller's cache then holds the text so far."""
        try:
            if self._verifier is not None:
                passes = self._verifier.passes
                with torch.no_grad():
                    self._verifier.give_back(self._cache)
                self.statistics.forward_passes += self._verifier.passes - passes
        finally:
            self.release()

    def release(self) -> None:
        """Remember the output; close verifier and sessions, without filling the caller's cache."""
        self._closed = True
        target = self._target
        self._target = None
        if target is not None:
            texts = list(zip(self._prompt_ends, self.tokens, strict=False))
            outputs = [
                OutputDocument.from_output(
                    prompt, output, self._options.group_of(row, len(texts)), self._options.epoch
                )
                for row, (prompt, output) in enumerate(texts)
            ]
            documents = [document for document in outputs if document is not None]
            remember(target, documents, self.statistics.remembered)
        verifier = self._verifier
        self._verifier = None
        if verifier is not None:
            verifier.close()
        sessions = self._sessions
        self._sessions = None
        if sessions is not None:
            sessions.close()

    __del__ = release

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def result(self, streamer: Any = None, *, has_prompt: bool = False) -> Any:
        """Run to the end, and return the result of `generate`.

        After `close` or an error, that is the text before it.

        Args:
            streamer: of transformers, given the prompt and each token.
            has_prompt: whether it was given the prompt before.

        Raises:
            NotSupportedError: a streamer for several rows, which do not all get a token in the same
                step.
        """
        if streamer is not None and len(self._rows) != 1:
            actual = f"given for {len(self._rows)} rows"
            raise NotSupportedError(describe("generate", "a streamer", actual, "one row"))
        with self:
            if streamer is not None and not has_prompt:
                streamer.put(self._input_ids.cpu())
            for piece in iter(self._next_piece, None):
                for token in piece.tokens[0] if streamer is not None else []:
                    streamer.put(torch.tensor([token]))
            if streamer is not None:
                streamer.end()
        cache = self._cache if self._config.use_cache is not False else None
        return make_output(self._rows, self._config, self._input_ids, cache, self.statistics)


def _shorten_to_worth(chain: TokenTree, policy: DraftPolicy, waiting: int) -> TokenTree:
    """Return the first nodes of a chain, as many as are worth a pass."""
    if chain.scores is None:
        return chain
    return shortened(chain, policy.worth(chain.scores.astype(float), waiting))


def _find_policy(model: Any, prompt: PrefilledPrompt) -> DraftPolicy:
    """Return the policy of an earlier generation under the same conditions, or a new one."""
    context = max(prompt.length, 256).bit_length()  # steps take longer with the context
    is_prepacked = any("forward" in vars(module) for module in model.modules())
    conditions = (
        prompt.logits.shape[0],
        context,
        prompt.logits.device,
        prompt.logits.dtype,
        is_prepacked,
    )
    policies = _policies.setdefault(model, {})
    policy = policies.get(conditions)
    if policy is None:
        policy = policies[conditions] = DraftPolicy(
            0.04 if prompt.logits.device.type == "cpu" else 0.005
        )
    policy.begin()
    return policy
