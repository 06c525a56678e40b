"""One generation: draft, verify, accept, emit (REST, Figure 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from rest_store.drafting.output_document import PROMPT_TOKENS, OutputDocument
from rest_store.drafting.remembering import RememberTarget, remember
from rest_store.errors import DraftingWarning, GenerationFailedError, ModeNotSupportedError, describe
from rest_store.generation import graph_pool
from rest_store.generation.acceptance import Acceptance
from rest_store.generation.cache import Loan, TreeKVCache, capacity_of
from rest_store.generation.costs import DraftPolicy, policy_of
from rest_store.generation.detokenizer import Detokenizer
from rest_store.generation.draft_sessions import TOP_K, DraftSessions, SessionFactory
from rest_store.generation.drafts import NO_DRAFT, Draft
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.options import Options
from rest_store.generation.output import output_of
from rest_store.generation.prefill import Prompt, prefill, prompt_length, require_prompt, require_slots, row_limits
from rest_store.generation.progress import Piece, Statistics
from rest_store.generation.rows import Row, Rows, unpadded
from rest_store.generation.sampling import Choice, Stops
from rest_store.generation.support import require_mode, require_model, vocabulary_size
from rest_store.generation.top_k import TopTokens, read_top_tokens
from rest_store.generation.trace import Trace
from rest_store.generation.verify import Step, Verifier


class Generation:
    """A generation to iterate over, once: each item is the `Piece` that one forward pass wrote.

    Iterating again continues where the last iteration stopped. Can be given to `model.generate` as `custom_generate`.
    Used by one thread. A context manager; `close` ends it. The end of the text and an error close it too.

    The caller's cache is empty meanwhile, and filled on closing. If a generation is dropped without being closed, the
    cache stays empty: by the time Python notices, it may be in use again.

    Args:
        session_factory: makes the draft session of a prompt; None: plain decoding.
        options: how to draft, and where to remember.
        text_tokenizer: turns tokens into the text of pieces; None: they have none.

    Attributes:
        statistics: up to date after each piece.
        trace: keeps what each forward pass drafts and accepts, if one is set before the first; None: nothing does.

    All other arguments, and errors, are those of `rest_store.generate`.
    """

    trace: Trace | None = None
    _sessions: DraftSessions | None = None
    _verifier: Verifier | None = None  # from the prompt's pass until it is closed
    _policy: DraftPolicy
    _loan: Loan | None = None
    _target: RememberTarget | None = None  # until the output has been handed over
    _prompt_ends: Sequence[list[int]] = ()  # of each row, without padding
    _failure = ""
    _closed = False

    def __init__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        *,
        session_factory: SessionFactory | None,
        options: Options,
        text_tokenizer: Any = None,
        **model_kwargs: Any,
    ) -> None:
        rows, device = input_ids.shape[0], input_ids.device
        self._stops = Stops(stopping_criteria)
        self._new_tokens = (self._stops.max_length or math.inf) - input_ids.shape[1]  # of a row at most
        self._widths = options.widths_for(self._new_tokens)
        self._max_nodes = options.max_nodes_on(model.device)
        require_mode(generation_config, logits_processor)
        typical = options.typical_rule(bool(generation_config.do_sample), logits_processor)
        length = prompt_length(input_ids, generation_config, model_kwargs) + self._new_tokens
        require_model(model, length, self._max_nodes, fixed=bool(self._widths))
        require_prompt(model, input_ids, generation_config, model_kwargs)
        self._model, self._config, self._model_kwargs = model, generation_config, model_kwargs
        self._input_ids, self._session_factory, self._options = input_ids, session_factory, options
        self._choice = Choice(logits_processor, sample=bool(generation_config.do_sample), rows=rows, device=device)
        self._rows = Rows(input_ids, self._stops)
        self._writers = None if text_tokenizer is None else [Detokenizer(text_tokenizer) for _ in self._rows]
        self.statistics = Statistics(origins=[row.origins for row in self._rows])
        returns_dict = bool(generation_config.return_dict_in_generate)
        self._returns_cache = returns_dict and generation_config.use_cache is not False
        self._acceptance = Acceptance(
            self._rows,
            self._choice,
            self._stops,
            typical,
            keeps_logits=returns_dict and bool(generation_config.output_logits),
            keeps_scores=returns_dict and bool(generation_config.output_scores),
        )
        self._target = options.remember  # last: what is refused above has nothing to remember

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        """Run the next forward pass.

        Raises:
            GenerationFailedError: an earlier one failed, or a streamer.
            CacheFullError: the caller's static cache has no slot for the next token.
        """
        piece = self._next_piece(with_texts=True)
        if piece is None:
            raise StopIteration
        return piece

    def _next_piece(self, *, with_texts: bool = False) -> Piece | None:
        """Run the next forward pass, or close at the end and return None; errors as in `__next__`."""
        if self._failure:
            raise GenerationFailedError(f"the generation has failed ({self._failure}) and cannot continue")
        if self._closed:
            return None
        try:
            if self._verifier is None or self._sessions is None:
                piece = self._first_step()
            elif any(map(self._rows.continues, self._rows)):
                piece = self._step(self._sessions, self._verifier)
            else:
                piece = None
            if piece is not None and with_texts and self._writers is not None:
                ended = not any(map(self._rows.continues, self._rows))
                piece.texts = [
                    writer.push_all(tokens, flush=ended)
                    for writer, tokens in zip(self._writers, piece.tokens, strict=True)
                ]
        except BaseException as error:
            self._fail(error)
            raise
        if piece is None:
            self.close()
        return piece

    def _first_step(self) -> Piece:
        """Open the sessions and run the prompt."""
        with self.statistics.steps:
            prompts = unpadded(self._input_ids, self._model_kwargs)
            self._prompt_ends = [prompt[-PROMPT_TOKENS:] for prompt in prompts]
            sessions = self._sessions = DraftSessions(self._session_factory, prompts, vocabulary_size(self._model))
        self.statistics.drafts = sessions.counts
        with torch.no_grad(), self.statistics.steps:
            with self.statistics.forward:
                prompt = prefill(self._model, self._input_ids, self._config, self._model_kwargs)
                top_tokens = self._read(prompt.logits, sessions)
            self._earlier = prompt.length - self._input_ids.shape[1]  # tokens of the cache that are not in the rows
            self._capacity = capacity_of(prompt.cache)
            for row, limit in zip(self._rows, row_limits(self._model, prompt, self._input_ids), strict=True):
                row.limit = min(limit, self._stops.max_length or math.inf)
            self._policy = policy_of(self._model, prompt, self._widths, adaptive=self._options.adaptive)
            drafts = [NO_DRAFT] * len(self._rows)
            piece, paths = self._acceptance.accept(prompt.logits, top_tokens, drafts, self.statistics)
            verifier = self._verifier = self._new_verifier(prompt)
            plain = verifier.width_of(1)
            self._padded = [verifier.width_of(1 + nodes) - plain for nodes in range(self._max_nodes + 1)]
            sessions.inform(piece.tokens, paths, top_tokens, drafts)
        if self.trace is not None:
            self.trace.add(piece.tokens, drafts, self.statistics)
        return piece

    def _step(self, sessions: DraftSessions, verifier: Verifier) -> Piece:
        """Draft, verify, accept."""
        with torch.no_grad(), self.statistics.steps:
            drafts = self._draft(sessions, self._policy)
            step, logits, top_tokens = self._verify(verifier, drafts, sessions)
            piece, paths = self._acceptance.accept(logits, top_tokens, drafts, self.statistics)
            self._keep(verifier.cache, paths)
            sessions.inform(piece.tokens, paths, top_tokens, drafts)
            self._learn(self._policy, verifier, step, piece, drafts)
        if self.trace is not None:
            self.trace.add(piece.tokens, drafts, self.statistics)
        return piece

    # --- one step ----------------------------------------------------------------------------------------------------

    def _draft(self, sessions: DraftSessions, policy: DraftPolicy) -> list[Draft]:
        """Return the tree of each row, empty where there is none."""
        drafts = [NO_DRAFT] * len(self._rows)
        with self.statistics.drafting:
            rooms = [self._room(row) for row in self._rows]
            if not sessions.active or not self._max_nodes or max(rooms) <= 1:
                return drafts
            nodes, costs = policy.budget(self._padded)
            for row, room in enumerate(rooms):
                if nodes and room > 1:
                    drafts[row] = Draft(sessions.draft(row, nodes, costs), room - 1)
        self.statistics.drafts.nodes += sum(len(draft.tree) for draft in drafts)
        return drafts

    def _verify(
        self, verifier: Verifier, drafts: Sequence[Draft], sessions: DraftSessions
    ) -> tuple[Step, torch.Tensor, TopTokens]:
        """Run the last token of each row and its tree through the model."""
        width = verifier.width_of(1 + max(len(draft.tree) for draft in drafts))
        last = [row.tokens[-1] if self._rows.continues(row) else None for row in self._rows]
        step = Step(last, [draft.tree for draft in drafts], width)
        with self.statistics.forward:
            logits = verifier.run(step)
            return step, logits, self._read(logits, sessions)

    def _read(self, logits: torch.Tensor, sessions: DraftSessions) -> TopTokens:
        """Wait for the logits of a forward pass; return what is needed of them on the host."""
        top_tokens = read_top_tokens(logits, best=self._choice.is_argmax, count=TOP_K if sessions.wants_top_k else 0)
        if logits.device.type == "cuda":
            torch.cuda.current_stream(logits.device).synchronize()
        self.statistics.forward_passes += 1
        return top_tokens

    def _keep(self, cache: TreeKVCache, paths: list[list[int]]) -> None:
        """Keep the keys and values of accepted tokens."""
        cache.keep(paths)
        for number, row in enumerate(self._rows):
            if self._rows.is_done(row):
                cache.finish(number)

    def _learn(
        self, policy: DraftPolicy, verifier: Verifier, step: Step, piece: Piece, drafts: Sequence[Draft]
    ) -> None:
        """Learn what the step cost and brought, unless a graph was captured in it."""
        if not verifier.captured:
            lengths = [len(tokens) for tokens in piece.tokens if tokens]
            rows = max(1, len(lengths))
            scored = [draft.promised for draft in drafts]
            promised = None if None in scored else sum(filter(None, scored)) / rows
            times = self.statistics
            policy.observe(
                step.width - verifier.width_of(1),
                sum(lengths) / rows,
                times.forward.latest,
                times.drafting.latest,
                promised,
            )
            times.pauses = policy.pauses

    def _room(self, row: Row) -> int:
        """Return how many tokens `row` may get in this step.

        Raises:
            CacheFullError: the caller's static cache has no slot for the next token.
        """
        if not self._rows.continues(row):
            return 0
        require_slots(self._earlier + len(row.tokens), self._capacity)
        return int(min(row.limit, 2**31)) - len(row.tokens)

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens generated so far, for each row, without prompt and padding."""
        start = self._input_ids.shape[1]
        return [row.tokens[start:] for row in self._rows]

    # --- begin and end -----------------------------------------------------------------------------------------------

    def _new_verifier(self, prompt: Prompt) -> Verifier:
        """Return what verifies behind `prompt`; it takes over the keys and values."""
        verifier: Verifier
        if self._widths:
            slots = prompt.length + int(self._new_tokens) + max(self._widths)
            verifier = graph_pool.acquire(self._model, prompt, self._widths, slots)
        else:
            cache = TreeKVCache(prompt.cache, prompt.patterns, prompt.length)
            verifier = Verifier(self._model, cache, seen=prompt.seen, positions=prompt.positions, extras=prompt.extras)
        self._loan = Loan(prompt.cache)
        return verifier

    def close(self) -> None:
        """End the generation here; a cache of the caller that is not in use again then holds what was written."""
        self._release(hand_back=True)

    def __del__(self) -> None:
        self._release(hand_back=False)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._close_quietly()

    def _fail(self, error: BaseException) -> None:
        """Close after an error. It is not kept: its traceback would keep this generation and its memory."""
        self._failure = self._failure or type(error).__name__
        self._close_quietly()

    def _close_quietly(self) -> None:
        """Close while an error passes; where warnings are raised as errors, theirs must not take its place."""
        with suppress(DraftingWarning):
            self.close()

    def _release(self, *, hand_back: bool) -> None:
        """Remember the output, close the sessions, and keep captured graphs.

        Args:
            hand_back: whether to leave the caller's cache as plain decoding leaves it.
        """
        self._closed = True
        self._remember()
        sessions, self._sessions = self._sessions, None
        verifier, self._verifier = self._verifier, None
        try:
            if sessions is not None:
                sessions.close()
        finally:
            if verifier is not None and self._loan is not None:
                is_kept = self._returns_cache or getattr(self._loan.cache, "_is_user_defined", False)
                if hand_back and is_kept:
                    self._loan.give_back(verifier.cache)
                if isinstance(verifier, FixedVerifier):
                    graph_pool.release(self._model, verifier)

    def _remember(self) -> None:
        """Hand the output so far over to be remembered, once."""
        target, self._target = self._target, None
        if target is not None:
            outputs = [OutputDocument.of(*texts) for texts in zip(self._prompt_ends, self.tokens, strict=False)]
            documents = [document for document in outputs if document is not None]
            remember(target, documents, self.statistics.remembered)

    def stream_to(self, streamer: Any, *, prompt: bool = True) -> None:
        """Run to the end and give a streamer of transformers each token; with `prompt`, the prompt first.

        Raises:
            ModeNotSupportedError: there are several rows; they do not all get a token in the same step.
        """
        if len(self._rows) != 1:
            raise ModeNotSupportedError(
                describe("generate", "a streamer", f"given for {len(self._rows)} rows", "one row")
            )
        try:
            if prompt:
                streamer.put(self._input_ids.cpu())
            while (piece := self._next_piece()) is not None:
                for token in piece.tokens[0]:
                    streamer.put(torch.tensor([token]))
            streamer.end()
        except BaseException as error:
            self._fail(error)
            raise

    def result(self) -> Any:
        """Run to the end; return what `generate` returns. After `close` that is what was written before.

        Raises:
            GenerationFailedError: the generation has failed.
        """
        try:
            while self._next_piece() is not None:
                pass
        except BaseException as error:  # an interrupt between two steps, too
            self._fail(error)
            raise
        cache = self._loan.cache if self._loan is not None and self._returns_cache else None
        return output_of(self._rows, self._config, self._input_ids, cache, self.statistics)
