"""The rounds of requests that give the draft trees of the whole datastore from several parts. Sends nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rest_store.datastore.kernel import MAX_LISTED, MAX_NODES
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.service.client.answers import tree_bytes
from rest_store.service.client.codec import TreeLimits, longest
from rest_store.service.client.merged_tree import MergedTree, Path
from rest_store.service.client.requests import Request, Requests

# The requests to each part in one round, by its place, and the answers of those parts that have answered.
Round: TypeAlias = Mapping[int, Sequence[Request[Any]]]
Answers: TypeAlias = Mapping[int, Sequence[Any]]

# At first each part lists 4 times as many nodes as the tree may have, which is usually enough; then 4 times as many.
_FIRST, _MORE = 4, 4


class Drafts(NamedTuple):
    """Draft trees of several contexts, and the number of those not proved to be the trees of the whole datastore."""

    trees: list[TokenTree]
    unproved: int


class _PartLostError(Exception):
    """A part no longer answers, or answers from other data than before: its answers are no longer used."""

    def __init__(self, places: Iterable[int]) -> None:
        self.places = frozenset(places)


def merged_drafts(
    requests: Mapping[int, Requests], contexts: Sequence[IntSequence], labels: Sequence[str], bounds: TreeLimits
) -> Generator[Round, Answers, Drafts | None]:
    """Yield what to ask next until the trees are known, and return them; None if no part answers.

    With several datastores, the tree of a context is that of the longest match; of equal matches, the first.

    The first round asks every part for its match and its heaviest nodes. The next one asks for the counts of nodes that
    not all parts have listed. If that does not prove the tree, the parts list more nodes, and so on. A part that does
    not answer is left out; if it has answered before, the others begin anew.

    Args:
        requests: makes the requests to each part, by its place.
        contexts: at least one.
        labels: how messages name the contexts.
        bounds: limits of each tree, checked.
    """
    places = [*requests]
    while True:
        try:
            return (yield from _drafts({place: requests[place] for place in places}, contexts, labels, bounds))
        except _PartLostError as lost:
            places = [place for place in places if place not in lost.places]


def _drafts(
    requests: Mapping[int, Requests], contexts: Sequence[IntSequence], labels: Sequence[str], bounds: TreeLimits
) -> Generator[Round, Answers, Drafts | None]:
    max_nodes, max_suffix, max_depth = bounds
    all_contexts = range(len(contexts))
    most_listed = min((_most_listed(of_part) for of_part in requests.values()), default=MAX_LISTED)
    listed_nodes = min(_FIRST * max_nodes, most_listed)  # of each part's tree

    def list_trees(
        wanted: Mapping[int, Sequence[int]],
    ) -> Generator[Round, Answers, dict[int, dict[int, dict[str, TokenTree]]]]:
        """Ask each part for the trees of some contexts; return them by part and place of the context."""
        round_: dict[int, list[Request[Any]]] = {}
        for place, chosen in wanted.items():
            pieces = _pieces(chosen, _contexts_of_one_request(requests[place], listed_nodes))
            round_[place] = [
                requests[place].trees(
                    [contexts[i] for i in piece], [labels[i] for i in piece], (listed_nodes, max_suffix, max_depth)
                )
                for piece in pieces
            ]
        answers = yield round_
        return {
            place: dict(zip(wanted[place], (tree for piece in answered for tree in piece), strict=True))
            for place, answered in answers.items()
        }

    listed = yield from list_trees(dict.fromkeys(requests, all_contexts))
    if not listed:
        return None
    names = [*next(iter(listed.values()))[0]]
    merged = {(context, name): MergedTree(max_nodes, max_depth) for context in all_contexts for name in names}
    for (context, name), tree in merged.items():
        tree.add({place: of_part[context][name] for place, of_part in listed.items()}, listed_nodes)
    unproved = [*merged]
    while True:
        yield from _count(requests, contexts, {key: merged[key] for key in unproved})
        unproved = [key for key in unproved if not merged[key].choose()]
        if not unproved or listed_nodes >= most_listed:
            break
        listed_nodes = min(_MORE * listed_nodes, most_listed)
        wanted: dict[int, list[int]] = {}
        for context in sorted({context for context, _ in unproved}):
            of_context = [merged[key] for key in unproved if key[0] == context]
            for place in sorted({place for tree in of_context for place in tree.unfinished}):
                wanted.setdefault(place, []).append(context)
        listed = yield from list_trees(wanted)
        if lost := wanted.keys() - listed.keys():
            raise _PartLostError(lost)
        for context, name in unproved:
            tree = merged[context, name]
            more = {place: listed[place][context][name] for place in tree.unfinished}
            if lost := {place for place, of_part in more.items() if of_part.match.length != tree.match.length}:
                raise _PartLostError(lost)
            tree.add(more, listed_nodes)
    trees = [longest([merged[context, name].tree() for name in names]) for context in all_contexts]
    return Drafts(trees, len({context for context, _ in unproved}))


def _count(
    requests: Mapping[int, Requests], contexts: Sequence[IntSequence], merged: Mapping[tuple[int, str], MergedTree]
) -> Generator[Round, Answers, None]:
    """Ask for the counts that decide which nodes are the heaviest, of all contexts in one round."""
    wanted: dict[int, list[tuple[tuple[int, str], Path]]] = {}
    for key, tree in merged.items():
        for place, paths in tree.uncounted().items():
            wanted.setdefault(place, []).extend((key, path) for path in paths)
    if not wanted:
        return
    round_: dict[int, list[Request[Any]]] = {}
    for place, nodes in wanted.items():
        sequences = [[*contexts[key[0]][-merged[key].match.length :], *path] for key, path in nodes]
        pieces = _pieces(sequences, requests[place].codec.max_contexts)
        round_[place] = [requests[place].counts(piece) for piece in pieces]
    answers = yield round_
    if lost := wanted.keys() - answers.keys():
        raise _PartLostError(lost)
    for place, nodes in wanted.items():
        counts: dict[tuple[int, str], dict[Path, int]] = {}
        node = iter(nodes)
        for piece in answers[place]:
            length = len(next(iter(piece.values())))
            for i in range(length):
                key, path = next(node)
                counts.setdefault(key, {})[path] = piece[key[1]][i]
        for key, of_tree in counts.items():
            merged[key].learn(place, of_tree)


def _most_listed(requests: Requests) -> int:
    """Return how many nodes a service can list of one context in one message."""
    codec = requests.codec
    of_one = codec.max_message_bytes // max(1, len(codec.names)) - tree_bytes(0)
    by_size = of_one // (tree_bytes(1) - tree_bytes(0))
    return max(1, min(MAX_LISTED, MAX_NODES * codec.max_contexts, by_size))


def _contexts_of_one_request(requests: Requests, max_nodes: int) -> int:
    """Return how many trees of `max_nodes` a service drafts for one request, and can answer in one message."""
    codec = requests.codec
    by_size = codec.max_message_bytes // (max(1, len(codec.names)) * tree_bytes(max_nodes))
    return max(1, min(codec.max_contexts // -(-max_nodes // MAX_NODES), by_size))


def _pieces(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
