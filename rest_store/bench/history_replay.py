"""Replays with and without datastores and history."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from rest_store.bench.compaction import WHOLE, Context
from rest_store.bench.cost_model import Batch
from rest_store.bench.recorded_history import (
    Order,
    among_others,
    in_turn,
    learned_logits,
    new_live_datastore,
)
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Outcome, Tokens, replay
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import earlier
from rest_store.drafting.sources import PromptLookup

# By name, the other recordings that a live datastore holds while one is replayed.
OTHERS: dict[str, Order] = {"those before it": in_turn, "all of other tasks": among_others}
AGAIN = "all outputs, the same one, too"
LOGITS = "the recycled logits of all others, no live datastore"


class Variant(NamedTuple):
    """The drafting options of replays.

    Attributes:
        name: for people.
        max_nodes: budget of a step.
        batch: the costs of steps, if they are modelled.
        chains: whether drafts are chains.
    """

    name: str
    max_nodes: int
    batch: Batch | None = None
    chains: bool = False

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of a row in the results."""
        columns: dict[str, Any] = {"nodes": self.max_nodes}
        if self.batch is not None:
            columns["batch"] = self.batch.sequences
        if self.batch is not None or self.chains:
            columns["shape"] = "chain" if self.chains else "tree"
        return columns


def measure_known(
    recordings: Sequence[Recording],
    reported: Sequence[Recording],
    stores: Mapping[str, Store],
    calibration: Calibration,
    *,
    variants: Iterable[Variant],
    orders: Mapping[str, Order],
    tokenizer: TokenizerIdentity | None,
    groups: bool = False,
    contexts: Sequence[Context] = (WHOLE,),
    progress: Callable[[str], object] = lambda line: None,
) -> list[dict[str, Any]]:
    """Replay recordings with and without datastores, with each kind of history.

    Sessions share their recycled logits, which have learnt from the history, as in one program.

    Args:
        recordings: all of them, in order.
        reported: the recordings to replay, in the same order; `calibration` must not have been
            fitted to them.
        stores: datastores by name.
        calibration: the calibration of the sessions; not changed.
        variants: the drafting options.
        orders: by name, the orders that keep history in a live datastore.
        tokenizer: the tokenizer of the recordings, for a live datastore; None: no `orders`.
        groups: whether to replay also with the history of the same task as references, as with a
            `group`, beside the whole history and instead of it.
        contexts: the parts of its prompt that the session of a recording has, one after the other.
        progress: called with a line for each row.

    Returns:
        One row each: "datastores" (whether they are sources), "remembered" (the history), the
        variant, "context" if it has a name, and the figures of `Outcome.as_json`.

    Raises:
        ValueError: there are `orders` and no `tokenizer`.
    """
    if orders and tokenizer is None:
        raise ValueError("a live datastore for the history needs a tokenizer")
    reported_ids = {id(recording) for recording in reported}
    has_logits = any(recording.top_k.size for recording in recordings)
    table_rows: list[dict[str, Any]] = []

    def replay_one(
        recording: Recording,
        known: Sequence[Recording],
        sources: Sequence[object],
        variant: Variant,
        context: Context,
        learning: Calibration,
        references: Sequence[Tokens] = (),
    ) -> Outcome:
        own: list[object] = [PromptLookup()]
        if has_logits:
            own.append(learned_logits(known))
        own += sources
        replayed, archive = context.cut(recording)
        return replay(
            [replayed],
            own,
            learning,
            max_nodes=variant.max_nodes,
            share_logits=True,
            batch=variant.batch,
            chains=variant.chains,
            references=[*references, *archive],
        )

    def with_history(
        order: Order,
        sources: Sequence[object],
        variant: Variant,
        context: Context,
        *,
        reads_group: bool = False,
        reads_all: bool = True,
    ) -> Outcome:
        outcomes = []
        learning = calibration.copy()
        with new_live_datastore(cast(TokenizerIdentity, tokenizer)) as live:
            own = [*sources, live] if reads_all else sources
            for recording, known in order(recordings, live):
                if id(recording) in reported_ids:
                    group = earlier(live, recording.key, _fail) if reads_group else ()
                    outcome = replay_one(recording, known, own, variant, context, learning, group)
                    outcomes.append(outcome)
        return Outcome.from_outcomes(outcomes)

    def without_history(sources: Sequence[object], variant: Variant, context: Context) -> Outcome:
        learning = calibration.copy()
        return Outcome.from_outcomes(
            replay_one(recording, (), sources, variant, context, learning) for recording in reported
        )

    def with_logits_of_others(
        sources: Sequence[object], variant: Variant, context: Context
    ) -> Outcome:
        outcomes = []
        learning = calibration.copy()
        for recording in reported:
            others = [other for other in recordings if other is not recording]
            outcome = replay_one(recording, others, sources, variant, context, learning)
            outcomes.append(outcome)
        return Outcome.from_outcomes(outcomes)

    def outcomes_by_history(
        sources: Sequence[object], variant: Variant, context: Context
    ) -> Iterator[tuple[str, Outcome]]:
        yield "nothing", without_history(sources, variant, context)
        if orders and has_logits:
            yield LOGITS, with_logits_of_others(sources, variant, context)
        for name, order in orders.items():
            yield name, with_history(order, sources, variant, context)
            if groups:
                outcome = with_history(order, sources, variant, context, reads_group=True)
                yield f"{name}, the same task first", outcome
                outcome = with_history(
                    order, sources, variant, context, reads_group=True, reads_all=False
                )
                yield f"{name}, the same task alone", outcome

    for variant, context in itertools.product(variants, contexts):
        columns = {**variant.columns, **context.columns}
        drafting = ", ".join(filter(None, (variant.name, context.name)))
        for with_stores in (True, False) if stores else (False,):
            sources = list(stores.values()) if with_stores else []
            besides = "datastores" if with_stores else "no datastores"
            for remembered, outcome in outcomes_by_history(sources, variant, context):
                known = {"datastores": with_stores, "remembered": remembered}
                table_rows.append({**known, **columns, **outcome.as_json()})
                progress(f"{besides}, remembered: {remembered}, {drafting}: {outcome.summary()}")
    return table_rows


def _fail(error: Exception) -> None:
    raise error
