"""Replays by what is known meanwhile: nothing, datastores, and the
outputs that a live datastore remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rest_store.bench.cost_model import Batch
from rest_store.bench.history import (
    Order,
    among_others,
    in_turn,
    logits_of,
    new_live_datastore,
)
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Outcome, Tokens, replay
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import earlier
from rest_store.drafting.sources import PromptLookup

# What a live datastore holds of the other recordings while one is replayed.
OTHERS: dict[str, Order] = {"those before it": in_turn, "all of other tasks": among_others}
LOGITS = "the recycled logits of all others, no live datastore"


class Variant(NamedTuple):
    """How replays draft.

    Attributes:
        name: for people.
        max_nodes: budget of a step.
        batch: what steps cost, if they are modelled.
        chains: whether drafts are chains.
    """

    name: str
    max_nodes: int
    batch: Batch | None = None
    chains: bool = False

    @property
    def columns(self) -> dict[str, Any]:
        """The first figures of a row."""
        shape = (
            {}
            if self.batch is None
            else {"batch": self.batch.rows, "shape": "chain" if self.chains else "tree"}
        )
        return {"nodes": self.max_nodes, **shape}


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
    """Replay recordings with and without datastores, for each way to remember the others.

    Sessions share their recycled logits, which have learnt from what is remembered, as those of one
    program do.

    Args:
        recordings: all of them, in order.
        reported: those to replay, in the same order; `calibration` must not have been fitted to
            them.
        stores: datastores by name.
        calibration: of the sessions; not changed.
        variants: how they draft.
        orders: what a live datastore holds meanwhile, by name.
        tokenizer: of the recordings, for a live datastore; None: there are no `orders`.
        groups: whether to replay also with what is remembered of the same task as references, as
            with a `group`, beside all that is remembered and instead of it.
        progress: called with a line for each row.

    Returns:
        One row each: "datastores" (whether they are sources), "remembered", the variant and the
        figures of `Outcome.as_json`.
    """
    reported_ids = {id(recording) for recording in reported}
    has_logits = any(recording.top_k.size for recording in recordings)
    rows: list[dict[str, Any]] = []

    def replay_one(
        recording: Recording,
        known: Sequence[Recording],
        sources: Sequence[object],
        variant: Variant,
        references: Sequence[Tokens] = (),
    ) -> Outcome:
        own = [PromptLookup(), *([logits_of(known)] if has_logits else []), *sources]
        _, nodes, batch, chains = variant
        options: dict[str, Any] = {
            "max_nodes": nodes,
            "batch": batch,
            "chains": chains,
            "references": references,
        }
        return replay([recording], own, calibration, share_logits=True, **options)

    def remembering(
        order: Order,
        sources: Sequence[object],
        variant: Variant,
        *,
        reads_group: bool = False,
        reads_all: bool = True,
    ) -> Outcome:
        assert tokenizer is not None
        with new_live_datastore(tokenizer) as memory:
            own = [*sources, memory] if reads_all else sources
            return Outcome.sum_of(
                replay_one(
                    recording,
                    known,
                    own,
                    variant,
                    earlier(memory, recording.key, _fail) if reads_group else (),
                )
                for recording, known in order(recordings, memory)
                if id(recording) in reported_ids
            )

    def with_logits_of_others(sources: Sequence[object], variant: Variant) -> Outcome:
        return Outcome.sum_of(
            replay_one(one, [other for other in recordings if other is not one], sources, variant)
            for one in reported
        )

    def add(with_stores: bool, remembered: str, variant: Variant, outcome: Outcome) -> None:
        rows.append(
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
            add(
                with_stores,
                "nothing",
                variant,
                Outcome.sum_of(replay_one(one, (), sources, variant) for one in reported),
            )
            if orders and has_logits:
                add(with_stores, LOGITS, variant, with_logits_of_others(sources, variant))
            for name, order in orders.items():
                add(with_stores, name, variant, remembering(order, sources, variant))
                if groups:
                    outcome = remembering(order, sources, variant, reads_group=True)
                    add(with_stores, f"{name}, the same task first", variant, outcome)
                    outcome = remembering(
                        order, sources, variant, reads_group=True, reads_all=False
                    )
                    add(with_stores, f"{name}, the same task alone", variant, outcome)
    return rows


def _fail(error: Exception) -> None:
    raise error
