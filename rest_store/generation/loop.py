"""One generation: the loop that drafts, verifies, accepts, and writes out (REST, Figure 1).

Torch is imported here. A `Generation` is used by one thread, and by one at a time for each model.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from rest_store.generation.cache import TreeCache
from rest_store.generation.costs import ForwardCosts, Payoff
from rest_store.generation.drafting import EMPTY, Accepted, Draft, Drafting, Session
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.likeliest import likeliest, top
from rest_store.generation.progress import Piece, Row, Statistics
from rest_store.generation.sampling import Choice, Stops
from rest_store.generation.support import require_mode, require_model
from rest_store.generation.verify import Step, Verifier, patterns_of

SessionMaker = Callable[[list[int]], Session]

_TOP_K = 8  # likeliest next tokens told to sessions that ask for them
_NOT_FORWARDED = {"attention_mask", "position_ids", "past_key_values", "cache_params", "use_cache", "logits_to_keep"}
_known_costs: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], ForwardCosts]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Options:
    """How to draft.

    Attributes:
        max_nodes: draft tokens of a step at most; None: 16, on an accelerator 64.
        draft_timeout: seconds to wait for a tree; without it the step goes on.
        adaptive: measure what steps cost and rest drafting while it does not pay.
        widths: tokens of a step, the last one included: each is padded to the next of these, and every shape is fixed,
            so that an accelerator replays recorded graphs; none: steps are as wide as their trees.
    """

    max_nodes: int | None = None
    draft_timeout: float = 0.5
    adaptive: bool = True
    widths: tuple[int, ...] = ()


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

    Raises:
        ModelNotSupportedError, ModeNotSupportedError, CacheNotSupportedError: it cannot be done with drafts.
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
        self._stops = Stops(criteria)
        require_mode(config, processors)
        require_model(model, self._stops.max_length or input_ids.shape[1])
        self._model, self._config, self._model_kwargs = model, config, model_kwargs
        self._input_ids, self._criteria = input_ids, criteria
        self._maker, self._options = maker, options
        rows = input_ids.shape[0]
        self._choice = Choice(processors, sample=bool(config.do_sample), rows=rows, device=input_ids.device)
        capacity = self._stops.max_length or 2 * input_ids.shape[1]
        self.rows = [Row(ids, capacity) for ids in input_ids]
        self.statistics = Statistics()
        self.cache: Any = None
        self._keeps_scores = bool(config.return_dict_in_generate and config.output_scores)
        self._keeps_logits = bool(config.return_dict_in_generate and config.output_logits)
        on_cpu = input_ids.device.type == "cpu"
        self._max_nodes = options.max_nodes if options.max_nodes is not None else (16 if on_cpu else 64)
        if options.widths:
            self._max_nodes = min(self._max_nodes, max(options.widths) - 1)
        known = _known_costs.setdefault(model, {})
        self._costs = known.setdefault((rows, torch.get_num_threads()), ForwardCosts(0.04 if on_cpu else 0.005))
        self._payoff = Payoff()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Piece]:
        """Run the generation; yield what each forward pass wrote, as soon as it is written."""
        began = time.perf_counter()
        drafting = Drafting([self._session_of(row) for row in range(len(self.rows))], self._vocabulary_size())
        self.statistics.drafts = drafting.counts
        try:
            with torch.no_grad():
                logits, verifier = self._prefill()
                self._forwarded(logits, began)
                nothing = [Draft(EMPTY, 0, 0)] * len(self.rows)
                piece, paths = self._write(logits, nothing)
                self._tell(drafting, piece, paths, logits, nothing)
            while self._unfinished():
                started = time.perf_counter()
                asked = self._ask(drafting)
                self.statistics.seconds = time.perf_counter() - began
                yield piece
                with torch.no_grad():
                    drafts = self._drafts(drafting, asked)
                    step = Step([row.tokens[-1] for row in self.rows], [draft.tree for draft in drafts])
                    verifying = time.perf_counter()
                    logits = self._forwarded(verifier.run(step), verifying)
                    piece, paths = self._write(logits, drafts)
                    verifier.cache.keep(paths)
                    self._tell(drafting, piece, paths, logits, drafts)
                self._measure(step.width - 1, verifying, started, piece, bool(asked))
            self.statistics.seconds = time.perf_counter() - began
            self._finish(verifier)
            yield piece
        finally:
            drafting.close()

    def run(self) -> None:
        """Run the generation to its end."""
        for _ in self.steps():
            pass

    def _prefill(self) -> tuple[torch.Tensor, Verifier]:
        """Run the prompt through the model as `generate` does; take its cache over."""
        kwargs = self._model_kwargs
        if kwargs.get("past_key_values") is None:
            kwargs["past_key_values"] = DynamicCache(config=self._model.config.get_text_config(decoder=True))
        kwargs["use_cache"] = True
        output = self._model._prefill(self._input_ids, self._config, kwargs)
        self.statistics.forward_passes += 1
        self.cache = output.past_key_values
        config = self._model.config.get_text_config(decoder=True)
        length = self._input_ids.shape[1]
        widths = self._options.widths
        fixed = (self._stops.max_length or 2 * length) + max(widths) if widths else None
        cache = TreeCache(self.cache, patterns_of(config, len(self.cache.layers)), length, fixed)
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(length).expand(len(self.rows), -1)
        given: dict[str, Any] = {
            "seen": mask.bool() if mask is not None and not bool((mask == 1).all()) else None,
            "positions": positions[..., -1:] + 1,
            "extras": {
                name: value
                for name, value in kwargs.items()
                if name not in _NOT_FORWARDED and not isinstance(value, torch.Tensor)
            },
        }
        if widths:
            return output.logits[:, -1:], FixedVerifier(self._model, cache, widths, **given)
        return output.logits[:, -1:], Verifier(self._model, cache, **given)

    def _drafts(self, drafting: Drafting, asked: list[int]) -> list[Draft]:
        """Collect the trees asked for, without what could not be accepted any more."""
        trees = drafting.trees(self._options.draft_timeout) if asked else [EMPTY] * len(self.rows)
        drafts = [Draft(tree, self._max_nodes, self._room(row) - 1) for row, tree in zip(self.rows, trees, strict=True)]
        self.statistics.drafts.nodes += sum(len(draft.tree) for draft in drafts)
        return drafts

    def _write(self, logits: torch.Tensor, drafts: Sequence[Draft]) -> tuple[Piece, list[list[int]]]:
        """Choose tokens along each row's tree until they leave it, or end; return them and the paths followed."""
        best = likeliest(logits) if self._choice.plain else None
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

    def _ask(self, drafting: Drafting) -> list[int]:
        """Ask for the trees of the next step, or only tell what was accepted; return the rows asked for."""
        rows = [number for number, row in enumerate(self.rows) if self._room(row) > 1]
        if drafting.busy or (drafting.active and self._options.adaptive and self._rests()):
            rows = []
        costs = self._costs.table(self._max_nodes) if self._options.adaptive else None
        drafting.ask(rows, self._max_nodes, costs)
        return rows if drafting.active else []

    def _rests(self) -> bool:
        """Whether the next step is a plain one, because drafting does not pay or to measure what plain steps cost."""
        return not self._payoff.drafts() or self._costs.wants_plain

    def _tell(
        self,
        drafting: Drafting,
        piece: Piece,
        paths: list[list[int]],
        logits: torch.Tensor,
        drafts: Sequence[Draft],
    ) -> None:
        """Tell the sessions what was written, with the likeliest tokens after all that was verified."""
        if not drafting.active:
            return
        for number, (tokens, path) in enumerate(zip(piece.tokens, paths, strict=True)):
            if not tokens:
                continue
            known = path[1 : len(tokens)]
            every = drafting.takes_nodes(number)
            wanted = logits[number] if every else logits[number, known]
            after = top(wanted, _TOP_K).cpu().numpy()
            rows = np.full((len(tokens), after.shape[1]), -1, dtype=np.int64)  # after the last: not known yet
            rows[: len(known)] = after[known] if every else after
            nodes = drafts[number].of_all_nodes(after) if every else None
            drafting.accept(Accepted(number, tokens, rows, nodes))

    def _measure(self, nodes: int, verifying: float, started: float, piece: Piece, drafted: bool) -> None:
        now = time.perf_counter()
        self.statistics.forward_passes += 1
        self._costs.observe(nodes, now - verifying)
        if drafted:
            working = [len(tokens) for tokens in piece.tokens if tokens]
            self._payoff.observe(sum(working) / max(1, len(working)), now - started, self._costs.plain())
            self.statistics.rests = self._payoff.rests

    def _forwarded(self, logits: torch.Tensor, since: float) -> torch.Tensor:
        """Wait for the logits of a pass begun at `since`, which are needed next anyway, and count its time."""
        if logits.device.type == "cuda":
            torch.cuda.current_stream(logits.device).synchronize()
        self.statistics.forward_seconds += time.perf_counter() - since
        return logits

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

    def _finish(self, verifier: Verifier) -> None:
        """Leave the caller's cache as plain decoding leaves it."""
        self.statistics.origins = [row.origins for row in self.rows]
        if self._config.return_dict_in_generate or getattr(self.cache, "_is_user_defined", False):
            verifier.cache.give_back(self.cache)

    # --- the result --------------------------------------------------------------------------------------------------

    def sequences(self) -> torch.Tensor:
        """Return all rows, int64[rows, length], padded behind their end."""
        length = max(len(row.tokens) for row in self.rows)
        padding = self._config._pad_token_tensor
        full = self._input_ids.new_full((len(self.rows), length), int(padding) if padding is not None else 0)
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
