"""One generation: the loop that drafts, verifies, accepts, and writes out (REST, Figure 1).

Torch is imported here. A `Generation` is used by one thread, and by one at a time for each model.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.generation.cache import TreeCache, drop_contents
from rest_store.generation.costs import ForwardCosts, Payoff
from rest_store.generation.drafting import EMPTY, Accepted, Draft, Drafting, Session
from rest_store.generation.graph_pool import acquire, release
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.options import Options
from rest_store.generation.prefill import Prompt, prefill, prompt_length, require_prompt
from rest_store.generation.progress import Piece, Row, Statistics
from rest_store.generation.sampling import Choice, Stops
from rest_store.generation.support import require_mode, require_model
from rest_store.generation.top_k import TopTokens, read_top_tokens
from rest_store.generation.verify import Step, Verifier

SessionMaker = Callable[[list[int]], Session]

_TOP_K = 8  # likeliest next tokens told to sessions that ask for them
_known_costs: weakref.WeakKeyDictionary[Any, dict[Hashable, ForwardCosts]] = weakref.WeakKeyDictionary()


class Generation:
    """A generation in the making.

    Args:
        model: the target model.
        input_ids: int64[rows, length], the prompts, padded on the left.
        processors: prepared logits processors.
        criteria: prepared stopping criteria.
        config: the prepared `GenerationConfig`.
        maker: makes the drafting session of a prompt; None: plain decoding.
        options: how to draft.
        model_kwargs: what `generate` prepared for the forward pass: cache, mask, positions.

    Attributes:
        input_ids, config: as given.
        rows: what is written so far.
        statistics: up to date after each piece.
        cache: the cache of `transformers`, after the last piece as plain decoding leaves it.

    Raises:
        ModelNotSupportedError, ModeNotSupportedError, CacheNotSupportedError: it cannot be done with drafts.
        LimitError: as of `Options`.
    """

    def __init__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        processors: Any,
        criteria: Any,
        config: Any,
        maker: SessionMaker | None,
        options: Options,
        model_kwargs: dict[str, Any],
    ) -> None:
        rows, device = input_ids.shape[0], input_ids.device
        self._stops = Stops(criteria)
        self._new = (self._stops.max_length or math.inf) - input_ids.shape[1]  # most tokens to be written to a row
        self._widths = options.widths_for(self._new)
        self._max_nodes = options.max_nodes_on(device)
        require_mode(config, processors)
        require_model(model, prompt_length(input_ids, model_kwargs) + self._new, self._max_nodes)
        require_prompt(model, model_kwargs)
        self._model, self.config, self._model_kwargs = model, config, model_kwargs
        self.input_ids, self._maker, self._options = input_ids, maker, options
        self._choice = Choice(processors, sample=bool(config.do_sample), rows=rows, device=device)
        capacity = self._stops.max_length or 2 * input_ids.shape[1]
        self.rows = [Row(ids, capacity) for ids in input_ids]
        self.statistics = Statistics(origins=[row.origins for row in self.rows])
        self.cache: Any = None
        self._keeps_scores = bool(config.return_dict_in_generate and config.output_scores)
        self._keeps_logits = bool(config.return_dict_in_generate and config.output_logits)
        self._costs = ForwardCosts()
        self._payoff = Payoff()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Piece, None, None]:
        """Run the generation, once; yield what each forward pass wrote, as soon as it is written."""
        began = time.perf_counter()
        drafting = Drafting([self._session_of(row) for row in range(len(self.rows))], self._vocabulary_size())
        self.statistics.drafts = drafting.counts
        verifier: Verifier | None = None
        try:
            with torch.no_grad():
                prompt = prefill(self._model, self.input_ids, self.config, self._model_kwargs)
                self._costs = self._known_costs(prompt)
                logits = prompt.logits
                nothing = [Draft(EMPTY, 0, 0)] * len(self.rows)
                top_tokens = self._read(logits, drafting, began)
                piece, paths = self._write(logits, top_tokens, nothing)
                verifier = self._take_over(prompt)
                del prompt
                self._tell(drafting, piece, paths, top_tokens, nothing)
            while self._unfinished():
                started = time.perf_counter()
                asked = self._ask(drafting, verifier)
                self.statistics.seconds = time.perf_counter() - began
                yield piece
                away = time.perf_counter() - began - self.statistics.seconds
                began, started = began + away, started + away  # what the reader took is not the generation's
                with torch.no_grad():
                    drafts = self._drafts(drafting, asked)
                    width = verifier.width_of(1 + max(len(draft.tree) for draft in drafts))
                    step = Step([row.tokens[-1] for row in self.rows], [draft.tree for draft in drafts], width)
                    verifying = time.perf_counter()
                    logits = verifier.run(step)
                    top_tokens = self._read(logits, drafting, verifying)
                    verified = time.perf_counter()
                    piece, paths = self._write(logits, top_tokens, drafts)
                    self._keep(verifier.cache, paths)
                    self._tell(drafting, piece, paths, top_tokens, drafts)
                if not verifier.captured:
                    self._measure(width - 1, verified - verifying, time.perf_counter() - started, piece, bool(asked))
            self.statistics.seconds = time.perf_counter() - began
            yield piece
        finally:
            drafting.close()
            if verifier is not None:
                self._hand_back(verifier)

    def _take_over(self, prompt: Prompt) -> Verifier:
        """Return what verifies behind `prompt`, whose keys and values it then holds alone, as far as that can be."""
        self.cache = prompt.cache
        verifier: Verifier
        if self._widths:
            slots = prompt.length + int(self._new) + max(self._widths)
            verifier = acquire(self._model, prompt, self._widths, slots)
        else:
            cache = TreeCache(self.cache, prompt.patterns, prompt.length)
            given: dict[str, Any] = {"seen": prompt.seen, "positions": prompt.positions, "extras": prompt.extras}
            verifier = Verifier(self._model, cache, **given)
        drop_contents(self.cache)
        return verifier

    def _hand_back(self, verifier: Verifier) -> None:
        """Leave the caller's cache as plain decoding of what was written leaves it."""
        if self.config.return_dict_in_generate or getattr(self.cache, "_is_user_defined", False):
            verifier.cache.give_back(self.cache)
        if isinstance(verifier, FixedVerifier):
            release(self._model, verifier)

    def _read(self, logits: torch.Tensor, drafting: Drafting, since: float) -> TopTokens:
        """Read what is asked of the logits of a pass begun at `since`; wait for them, and count its time."""
        top_tokens = read_top_tokens(logits, best=self._choice.plain, count=_TOP_K if drafting.reads_logits else 0)
        if logits.device.type == "cuda":
            torch.cuda.current_stream(logits.device).synchronize()
        self.statistics.forward_seconds += time.perf_counter() - since
        self.statistics.forward_passes += 1
        return top_tokens

    def _keep(self, cache: TreeCache, paths: list[list[int]]) -> None:
        cache.keep(paths)
        for number, row in enumerate(self.rows):
            if row.ended is not None and self._stops.pads:
                cache.finish(number)

    def _drafts(self, drafting: Drafting, asked: list[int]) -> list[Draft]:
        """Collect the trees asked for, without what could not be accepted any more."""
        trees = drafting.trees(self._options.source_timeout) if asked else [EMPTY] * len(self.rows)
        drafts = [Draft(tree, self._max_nodes, self._room(row) - 1) for row, tree in zip(self.rows, trees, strict=True)]
        self.statistics.drafts.nodes += sum(len(draft.tree) for draft in drafts)
        return drafts

    def _write(
        self, logits: torch.Tensor, top_tokens: TopTokens, drafts: Sequence[Draft]
    ) -> tuple[Piece, list[list[int]]]:
        """Choose tokens along each row's tree until they leave it, or end; return them and the paths followed."""
        best = top_tokens.best.tolist() if top_tokens.best is not None else None
        tokens, origins, paths = [], [], []
        for number, draft in enumerate(drafts):
            written, path = self._walk(number, draft, logits[number], best[number] if best is not None else None)
            tokens.append(written)
            origins.append([draft.origins[place - 1] for place in path[1:]])
            origins[-1] += [0] * (len(written) - len(origins[-1]))
            self.rows[number].origins += origins[-1]
            paths.append(path[: len(written)])
            self.statistics.tokens += len(written)
            self.statistics.drafts.accepted += len(path[1:])
        return Piece(tokens, origins), paths

    def _walk(
        self, number: int, draft: Draft, logits: torch.Tensor, best: list[int] | None
    ) -> tuple[list[int], list[int]]:
        """Write to one row; return its new tokens and the places in the step that they came to, the first being 0."""
        row = self.rows[number]
        if not self._writes(row):
            return [], []
        below = self._places(draft)
        written, path = [], [0]
        while True:
            place = path[-1]
            if best is not None:
                token, scores = best[place], None
            else:
                token, scores = self._choice.choose(number, row.ids(), logits[place : place + 1])
            self._record(row, scores, logits[place : place + 1])
            row.tokens.append(token)
            written.append(token)
            child = below.get((place, token))
            if child is not None:
                path.append(child)
            if self._ends(row, token):
                if self._stops.pads:  # otherwise it may be written on
                    self._choice.finish(number)
                return written, path
            if child is None:
                return written, path

    def _ends(self, row: Row, token: int) -> bool:
        """Note whether `row` has met a criterion with its last token; return whether writing to it stops here."""
        if row.ended is None:
            if self._stops.plain:
                ended = self._stops.after(token, len(row.tokens))
            else:
                ended = self._stops.judge(row.ids(), tuple(row.scores) if self._keeps_scores else None)
            if ended:
                row.ended = len(row.tokens)
                return True
            return False
        return not self._writes(row)  # written on, until it is as long as the others

    # --- parts -------------------------------------------------------------------------------------------------------

    def _writes(self, row: Row) -> bool:
        """Whether there is something to write to `row`.

        Where no token ends a row, `generate` writes on to rows that have met a criterion until the last one has.
        """
        if row.ended is None:
            return True
        ends = [other.ended for other in self.rows]
        if self._stops.pads or None in ends:
            return False
        return len(row.tokens) < max(end for end in ends if end is not None)

    def _unfinished(self) -> bool:
        return any(self._writes(row) for row in self.rows)

    def _room(self, row: Row) -> int:
        """Return how many tokens `row` may still get."""
        if not self._writes(row):
            return 0
        return (self._stops.max_length or 2**31) - len(row.tokens)

    def _session_of(self, number: int) -> Callable[[], Session] | None:
        if self._maker is None:
            return None
        mask = self._model_kwargs.get("attention_mask")
        prompt = list(self.rows[number].tokens)
        if mask is not None:
            start = mask.shape[1] - len(prompt)
            prompt = [token for token, seen in zip(prompt, mask[number, start:].tolist(), strict=True) if seen]
        maker = self._maker
        return lambda: maker(prompt)

    def _ask(self, drafting: Drafting, verifier: Verifier) -> list[int]:
        """Ask for the trees of the next step, or only tell what was accepted; return the rows asked for."""
        rows = [number for number, row in enumerate(self.rows) if self._room(row) > 1]
        if drafting.busy or (drafting.active and self._options.adaptive and self._pauses()):
            rows = []
        drafting.ask(rows, self._max_nodes, self._table(verifier) if self._options.adaptive else None)
        return rows if drafting.active else []

    def _pauses(self) -> bool:
        """Whether the next step is a plain one, because drafting does not pay or to measure what plain steps cost."""
        return not self._payoff.drafts() or self._costs.wants_plain

    def _table(self, verifier: Verifier) -> npt.NDArray[np.float64] | None:
        """Return what steps with 0, 1, ... draft tokens cost, each at the width that it is padded to."""
        padded = [verifier.width_of(1 + nodes) - 1 for nodes in range(self._max_nodes + 1)]
        table = self._costs.table(padded[-1])
        return table[padded] if table is not None else None

    def _tell(
        self,
        drafting: Drafting,
        piece: Piece,
        paths: list[list[int]],
        top_tokens: TopTokens,
        drafts: Sequence[Draft],
    ) -> None:
        """Tell the sessions what was written, with the likeliest tokens after all that was verified."""
        if not drafting.active:
            return
        for number, (tokens, path) in enumerate(zip(piece.tokens, paths, strict=True)):
            if not tokens:
                continue
            after = np.full((len(tokens), _TOP_K), -1, dtype=np.int64)  # after the last: not known yet
            of_nodes = None
            if top_tokens.indices is not None:
                top = top_tokens.indices[number]
                after[: len(path) - 1, : top.shape[1]] = top[path[1:]]
                of_nodes = drafts[number].of_all_nodes(top)
            drafting.accept(Accepted(number, tokens, after, of_nodes))

    def _measure(self, nodes: int, verifying: float, step: float, piece: Piece, drafted: bool) -> None:
        """Take in what a step took: seconds of its forward pass, and of all of it."""
        self._costs.observe(nodes, verifying)
        if drafted:
            working = [len(tokens) for tokens in piece.tokens if tokens]
            self._payoff.observe(sum(working) / max(1, len(working)), step, self._costs.plain())
            self.statistics.pauses = self._payoff.pauses

    def _record(self, row: Row, scores: torch.Tensor | None, logits: torch.Tensor) -> None:
        if self._keeps_logits or self._keeps_scores:
            raw = logits.to(copy=True, dtype=torch.float32)
            if self._keeps_logits:
                row.logits.append(raw)
            if self._keeps_scores:
                row.scores.append(scores if scores is not None else raw)

    @staticmethod
    def _places(draft: Draft) -> dict[tuple[int, int], int]:
        """Return for each place in the step and token the place of the child with that token; of several the first."""
        below: dict[tuple[int, int], int] = {}
        nodes = zip(draft.tree.parents.tolist(), draft.tree.tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(nodes):
            below.setdefault((parent + 1, token), node + 1)
        return below

    def _vocabulary_size(self) -> int:
        return int(self._model.get_input_embeddings().num_embeddings)

    def _known_costs(self, prompt: Prompt) -> ForwardCosts:
        """Return what is known of steps like those to come; contexts of about the same length share it."""
        device = self.input_ids.device
        packed = any("forward" in vars(module) for module in self._model.modules())
        kinds = tuple(sorted({(pattern.name, pattern.window) for pattern in prompt.patterns}))
        context = max(prompt.length, 256).bit_length()
        place = (str(device), torch.get_num_threads(), prompt.logits.dtype, packed)
        key = (len(self.rows), context, self._widths, kinds, *place)
        known = _known_costs.setdefault(self._model, {})
        costs = known.setdefault(key, ForwardCosts(0.04 if device.type == "cpu" else 0.005))
        costs.begin()
        return costs

    # --- the result --------------------------------------------------------------------------------------------------

    def sequences(self) -> torch.Tensor:
        """Return all rows, int64[rows, length], padded behind their end."""
        length = max(len(row.tokens) for row in self.rows)
        padding = self.config._pad_token_tensor
        full = self.input_ids.new_full((len(self.rows), length), int(padding) if padding is not None else 0)
        for number, row in enumerate(self.rows):
            full[number, : len(row.tokens)] = torch.tensor(row.tokens)
        return full

    def kept(self, name: str) -> tuple[torch.Tensor, ...] | None:
        """Return `scores` or `logits` for each generated token, float32[rows, vocabulary], 0 behind a row's end."""
        if not (self._keeps_scores if name == "scores" else self._keeps_logits):
            return None
        columns = [getattr(row, name) for row in self.rows]
        nothing = torch.zeros_like(columns[0][0])
        steps = range(max(len(column) for column in columns))
        return tuple(torch.cat([column[s] if s < len(column) else nothing for column in columns]) for s in steps)
