"""The kernel's side of a draft session: of one here, and of one that a service runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.store import Snapshot, Store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.evidence import reader_of
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ContextTypeError, DatastoreClosedError, DatastoreUnavailableError

if TYPE_CHECKING:
    from rest_store._kernel import NativeSession

NO_COSTS = np.zeros(0)  # for a draft that is not cut to the size with the most tokens per second

# Rows of most likely tokens, [n, k]; -1, or any other number that is no token, ends a row.
TopK: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class DraftLimits(NamedTuple):
    """What a session is asked for; the arguments of the kernel's `draft`.

    Attributes:
        max_nodes: most draft tokens, 0..1024.
        costs: those of `DraftSession.draft`, float64[n + 1]; empty: the draft is not cut.
        is_chain: whether it is to be a chain.
        min_score: the draft ends before the first node with a lower score.
    """

    max_nodes: int
    costs: npt.NDArray[np.float64] = NO_COSTS
    is_chain: bool = False
    min_score: float = 0.0


class Drafted(NamedTuple):
    """A draft as the kernel packs it; see `TokenTree.from_packed`."""

    packed: bytes
    scores: bytes
    origins: bytes


@dataclass
class OpenStore:
    """A datastore in this process as a session reads it: the index of its store in the kernel, its present shards."""

    index: int
    store: Store
    snapshot: Snapshot


def kernel_session(
    calibration: Calibration, sources: Sequence[object], *, learn: bool, max_suffix: int
) -> tuple[NativeSession, dict[int, OpenStore], dict[int, int]]:
    """Open the kernel's side of a session.

    Args:
        calibration: what evidence is weighed with.
        sources: of the session; those that are not in this process are external stores.
        learn: whether the calibration learns.
        max_suffix: longest suffix of the context that datastores are asked for, in tokens.

    Returns:
        The native session; the datastores in this process, by their places among `sources`; and for each external
        store, by its place, its index in the kernel.

    Raises:
        DatastoreClosedError, DatastoreUnavailableError: a datastore is closed, or a page of it could not be read.
        NativeKernelError: the kernel was not compiled.
    """
    native: NativeSession = native_kernel().NativeSession(calibration.native)
    native.learn_online(learn)
    native.limit_suffix(max_suffix)
    datastores: dict[int, OpenStore] = {}
    others: dict[int, int] = {}
    for place, source in enumerate(sources):
        if isinstance(source, PromptLookup):
            native.use_prompt_lookup(place)
        elif isinstance(source, RecycledLogits):
            native.use_recycled_logits(place, source.native)
        elif isinstance(source, Store):
            snapshot = source.snapshot  # before its reader: what comes between is read again
            datastores[place] = OpenStore(native.add_store(place, reader_of(source)), source, snapshot)
        else:
            others[place] = native.add_store(place, None)
    return native, datastores, others


def follow_changes(native: NativeSession, datastores: Iterable[OpenStore]) -> None:
    """Read the present shards of live datastores from now on."""
    for opened in datastores:
        if opened.store.is_live and (snapshot := opened.store.snapshot) is not opened.snapshot:
            with suppress(DatastoreClosedError, DatastoreUnavailableError):  # whoever reads it is told after the step
                native.set_reader(opened.index, reader_of(opened.store))
                opened.snapshot = snapshot


def take_prompt(native: NativeSession, tokens: npt.NDArray[np.int32], top_k: TopK | None) -> None:
    """Begin the text with `tokens`; raise ContextTypeError if `top_k` has more rows."""
    try:
        native.prompt(tokens, top_k)
    except ValueError as error:
        raise ContextTypeError(f"draft session: {error}") from None


def append(native: NativeSession, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None) -> int:
    """Append what the target model produced, as `DraftSession.accept`.

    Returns:
        How many of `tokens` are in the tree drafted last.

    Raises:
        ContextTypeError: another number of rows than there.
    """
    try:
        return int(native.accept(tokens, top_k, node_top_k))
    except ValueError as error:
        raise ContextTypeError(f"draft session: {error}") from None


def append_all(
    natives: Sequence[NativeSession],
    tokens: Sequence[npt.NDArray[np.int32]],
    top_k: Sequence[TopK | None],
    node_top_k: Sequence[TopK | None],
) -> list[int]:
    """Do what `append` does for each of different sessions; raise ContextTypeError before anything is appended."""
    try:
        return list(native_kernel().accept_all(natives, tokens, top_k, node_top_k))
    except ValueError as error:
        raise ContextTypeError(f"accept_all: {error}") from None
