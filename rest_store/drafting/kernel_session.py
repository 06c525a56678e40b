"""The kernel's side of a draft session: of one here, and of one that a service runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_session_kernel
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.evidence import reader_of
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ContextTypeError

NO_COSTS = np.zeros(0)  # of a step that no tree is cut for

# Rows of most likely tokens, [n, k]; -1, or any other number that is no token, ends a row.
TopK: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def kernel_session(
    calibration: Calibration, sources: Sequence[object], *, learn: bool, max_suffix: int
) -> tuple[Any, dict[int, int]]:
    """Return the kernel's side of a session, and by place of each source with counts, its store there.

    Args:
        calibration: what evidence is weighed with.
        sources: of the session; those that are not in this process are external stores.
        learn: whether the calibration learns.
        max_suffix: longest suffix of the context that datastores are asked for, in tokens.

    Raises:
        DatastoreClosedError, DatastoreUnavailableError: a datastore is closed, or a page of it could not be read.
        NativeKernelError: the kernel was not compiled.
    """
    native = native_session_kernel().NativeSession(calibration.native)
    native.learn_online(learn)
    native.limit_suffix(max_suffix)
    stores: dict[int, int] = {}
    for place, source in enumerate(sources):
        if isinstance(source, PromptLookup):
            native.use_prompt_lookup(place)
        elif isinstance(source, RecycledLogits):
            native.use_recycled_logits(place, source.native)
        else:
            stores[place] = native.add_store(place, reader_of(source) if isinstance(source, Datastore) else None)
    return native, stores


def take_prompt(native: Any, tokens: npt.NDArray[np.int32], top_k: TopK | None) -> None:
    """Begin the text with `tokens`; raise ContextTypeError if `top_k` has more rows."""
    try:
        native.prompt(tokens, top_k)
    except ValueError as error:
        raise ContextTypeError(f"draft session: {error}") from None


def append(native: Any, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None) -> int:
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
