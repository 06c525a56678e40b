"""A trained head beside sessions: ways of using both in a step, in replays with a cost model.

The head's recorded acceptance takes the place of the head; recordings without it are left out. Each
step is drafted in one of these ways:

- per step: the session's tree, the head's chain or both side by side, whichever promises the most
  tokens a second (`rest_store/bench/head_plans.py`).
- long matches: the session's tree where at least four tokens match, else the head's chain.
- one tree: where the first way runs the head, its tokens become nodes of the session's tree. All
  sources are asked below each of them (`look_ahead_all`), and the likeliest nodes of all are
  verified. The second lookup takes no time in the model.
- two chains: the session's chain or the head's, as vLLM's plug-in chooses.
- one chain: where the latter is the head's, the likeliest path through that tree: some tokens of
  the head, and retrieved ones below them.
- oracle: the session's tree or the head's chain, whichever the output shows to be better.

`gap` is the share of the way from the first one to the oracle, in modelled speed of all tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from suffix_rule import SuffixMemory, SuffixRule

from rest_store.bench.cost_model import CostModel, make_batches
from rest_store.bench.head_plans import Plan
from rest_store.bench.measurement_options import (
    Destination,
    cost_model_options,
    datastores_option,
    every_option,
    recordings_option,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recorded_drafters import BesideHead, Oracle, replay_beside
from rest_store.bench.recordings import read_all
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS, max_nodes_option
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.arbitration import bucket_of
from rest_store.drafting.batch import look_ahead_all
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.merge import subtree
from rest_store.live.open_store import open_datastores

Floats = npt.NDArray[np.float64]
HEAD = "eagle"
MIN_MATCH = 4  # tokens that override the head
AHEAD_NODES = 192  # of a lookup below the tokens of the head
MAX_CHAIN = 16
WRONG = 2**31 - 2  # stands for a token of the head that the model did not write


class LongMatches(BesideHead):
    """A match of four tokens or more overrides the head.

    Args:
        stores: where tokens match, besides the text itself.
        arguments: of `BesideHead`.
    """

    def __init__(self, stores: Sequence[Store], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stores = stores

    def draft(self, max_nodes: int, costs: Floats | None = None) -> TokenTree:
        """Return the session's tree, or the head's chain."""
        assert costs is not None
        plan = self._head.plan(None, costs)
        if self._match() >= MIN_MATCH:
            plan = Plan(self._session.draft(max_nodes, costs), 0, 0.0, 0.0, plan.bucket)
        self._plan = plan
        return self._with_head(plan)

    def _match(self) -> int:
        """Return the tokens of the longest match, at most four."""
        text = np.concatenate([self._recording.prompt, self._text[: self._position]])
        return max(
            SuffixRule(SuffixMemory(), text, depth=MIN_MATCH).own_continuation(1)[0],
            *(
                store.longest_suffix_match(text[-MIN_MATCH:], max_suffix=MIN_MATCH).length
                for store in self._stores
            ),
        )


class OneTree(BesideHead):
    """The tokens of the head are nodes of the session's tree."""

    def draft(self, max_nodes: int, costs: Floats | None = None) -> TokenTree:
        """Return the likeliest nodes of the tree, as many as pay."""
        assert costs is not None
        tree = self._session.draft(max_nodes)
        plan = self._plan = self._head.plan(tree, costs)
        if not plan.head_tokens:
            return self._with_head(plan)
        joined, seconds = self._joined(tree, plan)
        scores = np.asarray(joined.scores, np.float64)
        order = np.argsort(-scores, kind="stable")[:max_nodes]
        tokens = 1 + np.append(0.0, np.cumsum(scores[order]))
        count = int(np.argmax(tokens / (costs[: tokens.size] + seconds)))
        return subtree(joined, np.sort(order[:count]))

    def _joined(self, tree: TokenTree, plan: Plan) -> tuple[TokenTree, float]:
        """Return a tree with the head's tokens and the nodes below, and the head's seconds."""
        count = plan.head_tokens
        self._with_head(plan)  # takes the head's time
        chain = self._text[self._position : self._position + self._brought].tolist()
        chain += [WRONG] * (count - len(chain))
        survival = self._head.survival(plan.bucket)[:count]
        chances = survival / np.append(1.0, survival[:-1])
        [ahead] = look_ahead_all([self._session], [chain], AHEAD_NODES, length=MAX_CHAIN)
        joined = grown(chain, chances, tree, ahead)
        return joined, self._batch.beside(HEAD, self._prompt + self._position, count)

    def accept(self, tokens: npt.NDArray[np.int32], top_k: npt.NDArray[np.int32] | None) -> None:
        """Append the tokens of the model, and learn from them about the head."""
        plan = self._plan
        assert plan is not None
        if plan.head_tokens:
            self._head.learn(plan._replace(tree=TokenTree([], [], [])), 0, self._brought)
        else:
            self._head.learn(plan, len(plan.tree.longest_path(tokens)), 0)
        self._session.accept(tokens, top_k)
        self._position += tokens.size


class TwoChains(BesideHead):
    """The session's chain or the head's, as in vLLM."""

    def draft(self, max_nodes: int, costs: Floats | None = None) -> TokenTree:
        """Return the chain that promises more, of a fixed length."""
        assert costs is not None
        count = max(1, self._head.plan(None, costs).head_tokens)  # vLLM drafts in each step
        chain = self._session.draft(min(count, max_nodes), shape="chain")
        scores = np.asarray(chain.scores).tolist()
        self._count = count
        self._scores = scores
        self._is_head = not self._head.prefers_session(scores)
        # The head drafts in any case.
        self._plan = Plan(chain, count, 0.0, 0.0, bucket_of(scores))
        both = self._with_head(self._plan._replace(tree=TokenTree([], [], [])))
        return self._chosen(chain, both)

    def _chosen(self, chain: TokenTree, head_chain: TokenTree) -> TokenTree:
        return head_chain if self._is_head else chain

    def accept(self, tokens: npt.NDArray[np.int32], top_k: npt.NDArray[np.int32] | None) -> None:
        """Append the tokens of the model, and learn from them."""
        accepted = min(tokens.size - 1, self._count)
        if self._is_head:
            accepted = min(self._brought, self._count)
        self._head.learn_chain(self._scores, accepted, is_of_head=self._is_head, tried=self._count)
        self._session.accept(tokens, top_k)
        self._position += tokens.size


class OneChain(TwoChains):
    """The head's chain has retrieved tokens below its first ones."""

    def _chosen(self, chain: TokenTree, head_chain: TokenTree) -> TokenTree:
        if not self._is_head or not self._count:
            return super()._chosen(chain, head_chain)
        tokens = np.where(head_chain.tokens < 0, WRONG, head_chain.tokens).tolist()
        survival = self._head.survival(bucket_of(self._scores))[: self._count]
        chances = survival / np.append(1.0, survival[:-1])
        [ahead] = look_ahead_all([self._session], [tokens], AHEAD_NODES, length=MAX_CHAIN)
        return best_path(grown(tokens, chances, chain, ahead), self._count)


def grown(chain: Sequence[int], chances: Floats, *trees: TokenTree) -> TokenTree:
    """Return the nodes of several trees of a session, with the chances of a head's chain.

    A token of the head is written with the head's chance. With the others', the text goes on as the
    session expects.

    Args:
        chain: tokens of the head.
        chances: of each, if those before it are written.
        trees: with scores, of the same text.
    """
    nodes: dict[tuple[int, ...], float] = {(): 1.0}
    size = len(chain)
    own_chain = TokenTree(chain, range(-1, size - 1), [0] * size, scores=[0.0] * size)
    for tree in (*trees, own_chain):
        paths: list[tuple[int, ...]] = []
        scores = np.asarray(tree.scores, np.float64)
        for token, parent, score in zip(
            tree.tokens.tolist(), tree.parents.tolist(), scores, strict=True
        ):
            before = () if parent < 0 else paths[parent]
            paths.append((*before, token))
            chance = score / max(1.0 if parent < 0 else scores[parent], 1e-9)
            depth = len(before)
            if depth < len(chain) and before == tuple(chain[:depth]):
                chance *= 1 - chances[depth]
                if token == chain[depth]:
                    chance += chances[depth]
            own = nodes[before] * min(chance, 1.0)
            nodes[paths[-1]] = max(nodes.get(paths[-1], 0.0), own)
    del nodes[()]
    ordered = sorted(nodes, key=len)
    numbers = {path: number for number, path in enumerate(ordered)}
    return TokenTree(
        [path[-1] for path in ordered],
        [numbers.get(path[:-1], -1) for path in ordered],
        [0] * len(ordered),
        scores=[nodes[path] for path in ordered],
    )


def best_path(tree: TokenTree, length: int) -> TokenTree:
    """Return the path of at most `length` nodes with the greatest sum of scores."""
    scores = np.asarray(tree.scores, np.float64)
    sums = scores.copy()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            sums[node] += sums[parent]
    sums[tree.depths > length] = 0.0
    path = []
    node = int(sums.argmax())
    while node >= 0:
        path.append(node)
        node = int(tree.parents[node])
    return subtree(tree, np.array(path[::-1]))


def ways(stores: Sequence[Store]) -> dict[str, Callable[..., BesideHead]]:
    """Return the ways of drafting by name, each called with the arguments of `BesideHead`."""
    return {
        "per step": BesideHead,
        "long matches": functools.partial(LongMatches, stores),
        "one tree": OneTree,
        "two chains": TwoChains,
        "one chain": OneChain,
        "oracle": Oracle,
    }


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_heads.py --recordings llama.jsonl.gz --datastore chat.ds"
        " --cost-model benchmarks/costs_h100_llama31_8b.json --batch 8 --drafting-us 6"
    ),
)
@recordings_option()
@datastores_option
@tokenizer_option
@max_nodes_option((64,), multiple=True)
@every_option
@cost_model_options
@result_options
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    max_nodes: tuple[int, ...],
    every: int,
    cost_model: Path | None,
    batches: tuple[int, ...],
    drafting_us: float | None,
    out: Destination,
) -> None:
    if cost_model is None:
        raise click.UsageError("--cost-model is needed")
    model = CostModel.read(cost_model)
    stores = open_datastores(datastores)
    chosen = read_all(recordings, stores, tokenizer)[::every]
    table_rows: list[dict[str, Any]] = []
    for batch in make_batches(model, batches, drafting_us):
        outcomes = {}
        for name, way in ways(list(stores.values())).items():
            outcomes[name] = replay_beside(
                chosen,
                list(stores.values()),
                Calibration.default(),
                HEAD,
                batch,
                max(max_nodes),
                kind=way,
            )
            print(batch.sequences, name, outcomes[name].summary(), flush=True)
        begin, end = (outcomes[name].modelled_speeds for name in ("per step", "oracle"))
        for name, outcome in outcomes.items():
            speeds = outcome.modelled_speeds
            gaps = [
                (own - low) / (high - low)
                for own, low, high in zip(speeds, begin, end, strict=True)
            ]
            table_rows.append(
                {
                    "batch": batch.sequences,
                    "way": name,
                    "gap, median": round(gaps[0], 4),
                    "gap": round(gaps[1], 4),
                    **outcome.as_json(),
                }
            )
    results = {"cost_model": model.source, "head": HEAD, "rows": table_rows}
    write_result(out, "heads", click.get_current_context().params, ("numpy", "rest-store"), results)


if __name__ == "__main__":
    main()
