"""The compiled kernel as Python sees it.

The code is in `rest_store/native/`, the bindings in its `python/`.

Arrays are C-contiguous and on the CPU. Tokens are int32 on their way in. Bytes on their way out are
little-endian columns, one after the other. Nothing here is checked for callers: the modules that
use it word the errors. A ValueError names the fault of an argument. Calls that take long
release the GIL.
"""

from collections.abc import Callable, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MatchColumns
from rest_store.datastore.shard import ShardView

Tokens = npt.NDArray[np.int32]
TopK = npt.NDArray[np.int32]  # [n, k], -1 ends a row; of each row, 8 are read
# The columns of a draft: those of `TokenTree.packed`, scores float32[N] and origins uint8[N].
ScoredColumns = tuple[bytes, bytes, bytes]

FEATURES: int  # columns of a calibration's features
INSTRUCTIONS: list[int]  # instruction sets of this machine that trees can be evaluated with
MAX_SHARED_AFTER: int  # groups
MAX_STORES: int  # datastores of one session
EVIDENCE_MEMORY: int  # bytes of a session for each node and store
NODE_MEMORY: int  # bytes of a session for each node
TOKEN_MEMORY: int  # bytes of a session for each token of the text

class FileMapping:
    """A file mapped for reading (`search/file_mapping.hpp`)."""

    def __init__(self, descriptor: int, size: int) -> None: ...
    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The content, uint8[size]; keeps the mapping open."""

    @property
    def lost(self) -> bool:
        """Whether a page could not be read; from there on the content is zeros."""

    def expect_scattered_reads(self) -> None:
        """Turn read-ahead off."""

class NativeKernel:
    """The exact queries of a datastore (`trees/kernel.hpp`). Thread-safe.

    A suffix is the end of a context: 1 to 64 tokens of the vocabulary. A ValueError says that there
    are too many or too few tokens, or that a limit is out of range.

    Raises:
        DatastoreUnavailableError: a page of the files could not be read.
    """

    def __init__(
        self, shards: list[ShardView], vocabulary_size: int, sharing: Sharing | None = None
    ) -> None: ...
    def longest_suffix_match(self, suffix: Sequence[int], /) -> tuple[int, int]:
        """Return match length and count."""

    def draft(self, suffix: Sequence[int], max_nodes: int, max_depth: int, /) -> MatchColumns: ...
    def count(self, tokens: Sequence[int], /) -> int:
        """Return the occurrences of 1 to 96 tokens."""

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""

class ShardGroups:
    """The groups that wrote the occurrences in a shard (`search/shard_groups.hpp`)."""

    def __init__(self, shard: ShardView, keys: npt.NDArray[np.uint64]) -> None:
        """`keys`: of the group of each document of the shard, in its order."""

class Sharing:
    """The text of a datastore's shards that a group may learn (`search/sharing.hpp`)."""

    def __init__(self, groups: list[ShardGroups], shared_after: int, reader: int | None) -> None:
        """`groups`: of each shard. `reader`: the key of a group; None: that of no document.

        A ValueError says that `shared_after` is out of range.
        """

class SuffixCache:
    """Evidence of short suffixes (`session/suffix_cache.hpp`).

    Shared by the readers of one datastore. Thread-safe.
    """

    def __init__(self, shards: int, is_live: bool, /) -> None: ...

class NativeEvidenceReader:
    """Reads the evidence of one datastore (`session/evidence.hpp`).

    Shared by sessions. Thread-safe.
    """

    def __init__(
        self,
        shards: Sequence[ShardView],
        vocabulary_size: int,
        is_live: bool,
        cache: SuffixCache,
        sharing: Sharing | None = None,
    ) -> None: ...

class NativeCalibration:
    """Trees and online weights (`session/acceptance.hpp`); shared by sessions. Thread-safe."""

    @overload
    def __init__(self, gbdt: bytes, live_gbdt: bytes, text_gbdt: bytes, /) -> None:
        """From packed trees; empty `live_gbdt` or `text_gbdt`: there are none of this kind."""

    @overload
    def __init__(self, other: NativeCalibration, /) -> None:
        """A copy that shares the trees and learns on its own."""

    weights: list[float]  # a bias, and one for each kind of source; finite
    @property
    def gbdt(self) -> bytes: ...
    @property
    def live_gbdt(self) -> bytes: ...
    @property
    def text_gbdt(self) -> bytes: ...
    def log_odds(self, rows: npt.NDArray[np.float32], is_wide: bool, instructions: int, /) -> bytes:
        """Return the log odds of rows of features, float32[rows]; for tests."""

class NativeRecycledLogits:
    """Likely tokens by context (`session/recycled_logits.hpp`); shared by sessions. Thread-safe."""

    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, other: NativeRecycledLogits, /) -> None:
        """A copy that learns on its own."""

    def __len__(self) -> int: ...

class NativeSession:
    """One generation's text, sources and draft tree (`session/tree_builder.hpp`). Not thread-safe.

    `place` is the index of a source among the session's sources, 0..7, which is its bit in origins.
    """

    def __init__(self, calibration: NativeCalibration, /) -> None: ...

    # Before the text.
    def use_prompt_lookup(self, place: int, /) -> None: ...
    def use_recycled_logits(self, place: int, recycled: NativeRecycledLogits, /) -> None: ...
    def use_filter(
        self,
        place: int,
        function: Callable[[int, int, int, bytes, bytes], tuple[bytes, bytes] | None],
        /,
    ) -> None:
        """Filter the candidates of each expanded node by a function (`GrammarTree.filter`)."""

    def add_store(self, place: int, reader: NativeEvidenceReader, /) -> None:
        """Add a datastore.

        Raises:
            ValueError: there are `MAX_STORES` already.
        """

    def set_reader(self, place: int, reader: NativeEvidenceReader, /) -> None:
        """Read other shards of a datastore from now on; possible at any time."""

    def remove_store(self, place: int, /) -> None:
        """Draft without a datastore from now on, and discard the latest tree."""

    def limit_tokens(self, vocabulary_size: int, /) -> None:
        """End rows of likely tokens at one that is outside the vocabulary."""

    def learn_online(self, on: bool, /) -> None: ...
    def add_reference(self, tokens: Tokens, /) -> None:
        """Add a text that the output will probably resemble, before `prompt`."""

    def prompt(self, tokens: Tokens, /) -> None:
        """Begin the text."""

    # For each step.
    def draft(
        self,
        max_nodes: int,
        costs: npt.NDArray[np.float64],
        is_chain: bool,
        verified: Tokens,
        length: int,
    ) -> ScoredColumns:
        """Return the next draft, for the columns of `DraftOptions`."""

    def forget(self) -> None:
        """Discard the latest tree, as if none had been drafted since the last `accept`."""

    def length(self) -> int:
        """Return the tokens of the text."""

    def text(self) -> bytes:
        """Return the text, int32."""

    # For measurements.
    def longest_probe(self) -> int:
        """Return the most table entries that prompt lookup reads for one n-gram; for tests."""

    def record(self, on: bool, /) -> None: ...
    def recorded(self) -> tuple[bytes, bytes, bytes]:
        """Return the candidates since the last call.

        These are features float32[rows, FEATURES], labels uint8[rows] and ends uint32[places].
        """

def draft_all(
    sessions: Sequence[NativeSession],
    options: Sequence[tuple[int, npt.NDArray[np.float64], bool, Tokens, int]],
    /,
) -> list[ScoredColumns]:
    """Return the next draft of each of different sessions, on all cores."""

def accept_all(
    sessions: Sequence[NativeSession],
    tokens: Sequence[Tokens],
    top_k: Sequence[TopK | None],
    node_top_k: Sequence[TopK | None],
    /,
) -> None:
    """Append accepted tokens to each of different sessions, as `DraftSession.accept`.

    Raises:
        ValueError: a top-k has a wrong number of rows; nothing was appended.
    """

def merge_trees(
    trees: Sequence[ScoredColumns],
    max_nodes: int,
    costs: npt.NDArray[np.float64],
    is_chain: bool,
    /,
) -> tuple[ScoredColumns, list[bytes]]:
    """Return the merged tree, and for each tree the indices of its nodes there.

    The indices are int32[N], -1 for a node that was cut. `rest_store.drafting.merge` describes the
    rule.

    Raises:
        ValueError: they are no trees, or a score is not between 0 and its parent's.
    """

def top_tokens(logits: npt.NDArray[np.float32], count: int, /) -> bytes:
    """Return the `count` likeliest tokens of each row of logits, int32[n, count].

    They are -1 where there are fewer.

    Args:
        logits: [n, vocabulary]; rows may have gaps between them.
        count: 1..8.
    """

def fit_gbdt(
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.uint32],
    trees: int,
    rate: float,
    row_share: float,
    /,
) -> bytes:
    """Return packed trees fitted to recorded candidates, as `Calibration.fit`."""

def remaining_suffixes(
    shard: object,
    begins: npt.NDArray[np.uint64],
    ends: npt.NDArray[np.uint64],
    symbols: npt.NDArray[np.uint8],
    entry_count: int,
    bits: int,
    keys: npt.NDArray[np.uint64],
    entries: npt.NDArray[np.uint8],
) -> bool:
    """Pack the suffixes of a shard without some of its documents, for a suffixes file.

    Return whether there are `entry_count` of them, as there are unless the shard is damaged.

    Args:
        shard: the shard, a ShardView.
        begins: the first positions of removed documents, ascending.
        ends: the positions behind them.
        symbols: payload of the tokens file without these documents, and eight more bytes.
        entry_count: tokens in `symbols`.
        bits: of an entry.
        keys: room for the keys.
        entries: room for the entries.
    """

def sort_suffixes(
    sorter: int,
    symbols: npt.NDArray[np.uint8],
    width: int,
    bits: int,
    keys: npt.NDArray[np.uint64],
    entries: npt.NDArray[np.uint8],
) -> int:
    """Sort the suffixes of symbols and pack them for a suffixes file.

    Return 0, or the sorter's status.

    Args:
        sorter: address of the function `divsufsort`.
        symbols: payload of a tokens file, and eight more bytes.
        width: bytes of a symbol, 2 or 3.
        bits: of an entry.
        keys: room for the keys.
        entries: room for the entries.
    """
