"""Replays with and without datastores and history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from rest_store.bench.cost_model import Batch
from rest_store.bench.history import (
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
        progress: called with a line for each row.

    Returns:
        One row each: "datastores" (whether they are sources), "remembered" (the history), the
        variant and the figures of `Outcome.as_json`.

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
        own_calibration: Calibration,
        references: Sequence[Tokens] = (),
    ) -> Outcome:
        own: list[object] = [PromptLookup()]
        if has_logits:
            own.append(learned_logits(known))
        own += sources
        return replay(
            [recording],
            own,
            own_calibration,
            max_nodes=variant.max_nodes,
            share_logits=True,
            batch=variant.batch,
            chains=variant.chains,
            references=references,
        )

    def with_history(
        order: Order,
        sources: Sequence[object],
        variant: Variant,
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
                    outcome = replay_one(recording, known, own, variant, learning, group)
                    outcomes.append(outcome)
        return Outcome.from_outcomes(outcomes)

    def without_history(sources: Sequence[object], variant: Variant) -> Outcome:
        learning = calibration.copy()
        return Outcome.from_outcomes(
            replay_one(recording, (), sources, variant, learning) for recording in reported
        )

    def with_logits_of_others(sources: Sequence[object], variant: Variant) -> Outcome:
        outcomes = []
        learning = calibration.copy()
        for recording in reported:
            others = [other for other in recordings if other is not recording]
            outcomes.append(replay_one(recording, others, sources, variant, learning))
        return Outcome.from_outcomes(outcomes)

    def add(with_stores: bool, remembered: str, variant: Variant, outcome: Outcome) -> None:
        table_rows.append(
            {
                "datastores": with_stores,
                "remembered": remembered,
                **variant.columns,
                **outcome.as_json(),
            }
        )
        besides = "datastores" if with_stores else "no datastores"
        progress(f"{besides}, remembered: {remembered}, {variant.name}: {outcome.summary()}")

    for variant in variants:
        for with_stores in (True, False) if stores else (False,):
            sources = list(stores.values()) if with_stores else []
            add(with_stores, "nothing", variant, without_history(sources, variant))
            if orders and has_logits:
                add(with_stores, LOGITS, variant, with_logits_of_others(sources, variant))
            for name, order in orders.items():
                add(with_stores, name, variant, with_history(order, sources, variant))
                if groups:
                    outcome = with_history(order, sources, variant, reads_group=True)
                    add(with_stores, f"{name}, the same task first", variant, outcome)
                    outcome = with_history(
                        order, sources, variant, reads_group=True, reads_all=False
                    )
                    add(with_stores, f"{name}, the same task alone", variant, outcome)
    return table_rows


def _fail(error: Exception) -> None:
    raise error
