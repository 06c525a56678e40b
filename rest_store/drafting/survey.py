"""Evidence of open datastores for a draft session that is elsewhere, read in one go."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_session_kernel
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.evidence import Evidence
from rest_store.drafting.sources import evidence_of


def survey(
    stores: Mapping[str, Datastore],
    context: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    parents: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
    *,
    max_nodes: int,
    max_suffix: int,
    max_rows: int,
) -> list[Evidence]:
    """Read what a session that drafts from `stores` and from other sources would read of `stores`.

    Which paths its tree will take is not known here. Those of the tree that its other sources would draft, and what the
    datastores continue, are read best first, by the calibration that comes with the package. Each row is exactly what
    the session would have read; a function of the arguments alone.

    Args:
        stores: by name, all of one vocabulary.
        context: the end of the text, oldest first; only the last `max_suffix` are read; may be empty.
        tokens: int32[P], the tree that the other sources would draft, of tokens of the vocabulary.
        parents: int32[P], its parents, each before its children; -1: child of the context.
        scores: float32[P], how likely each of its nodes is held to be accepted.
        max_nodes: of the session's tree, 1 or more; paths that are no beginning of such a tree's are not read.
        max_suffix: longest suffix of `context` that is looked for, in tokens, 1..64.
        max_rows: paths, 1..1024.

    Raises:
        ValueError: the arrays are no tree.
        NativeKernelError: the kernel was not compiled.

    Thread-safe; releases the GIL.
    """
    rows = native_session_kernel().survey(
        [evidence_of(store) for store in stores.values()],
        _calibration().native,
        context,
        tokens,
        parents,
        scores,
        max_rows=max_rows,
        max_suffix=max_suffix,
        max_depth=max_nodes - 1,
    )
    return [Evidence(name, packed) for name, packed in zip(stores, rows, strict=True)]


@functools.cache
def _calibration() -> Any:
    return Calibration.default()
