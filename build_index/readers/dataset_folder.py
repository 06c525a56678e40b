"""Folders that the package `datasets` writes, and the files in them that hold a data set.

`save_to_disk` leaves the names of the data files in `state.json`, which `load_from_disk` reads, and
the names of splits in `dataset_dict.json`. Releases up to 1.13 wrote all rows of a filtered or
shuffled data set, and the numbers of the rows that belong to it into a file of its own
(findings/datasets_old_indices.sh: later releases pass over it). The cache folder of `load_dataset`
has a file for each split. Beside them it has results of `map`, `filter` and the like, made from
these rows (`cache-*.arrow`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from build_index.documents import CorpusCounts
from build_index.readers.unreadable_files import CACHED

METADATA = "metadata of a data set"  # a reason to leave out
_STATE = "state.json"
_INFO = "dataset_info.json"
_DICT = "dataset_dict.json"
_DATA_FILES = "_data_files"
_ROW_FILES = "_indices_data_files"
_MAX_METADATA_BYTES = 1 << 24
# Folders of a repository in the cache; `snapshots` has links to the files in `blobs`.
_HUB_CACHE = {"blobs", "refs", "snapshots"}


@dataclass(frozen=True)
class DatasetFolder:
    """A folder that `datasets` wrote, or the cache of a repository of the Hugging Face hub.

    Attributes:
        metadata: names of files and directories that are no documents.
        data: names of the files of the data set; None: all that are not metadata or cached results.
        row_files: names of files with the numbers of the rows that belong to it; none: all rows do.
        missing: names of data files that are not there.
    """

    metadata: frozenset[str]
    data: frozenset[str] | None = None
    row_files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @classmethod
    def detect(cls, names: set[str], read: Callable[[str, int], bytes]) -> DatasetFolder | None:
        """Look at a directory; return None if it is no such folder.

        Args:
            names: the names of its entries.
            read: returns the first bytes of a file in it, by name and number.
        """
        if names >= _HUB_CACHE:
            return cls(frozenset(_HUB_CACHE - {"snapshots"}))
        if _STATE in names:
            state = _object(read(_STATE, _MAX_METADATA_BYTES))
            data = _file_names(state.get(_DATA_FILES))
            if data is None:
                return None
            row_files = _file_names(state.get(_ROW_FILES)) or ()
            present = frozenset(name for name in data if name in names)
            missing = tuple(name for name in (*data, *row_files) if name not in names)
            return cls(frozenset({_STATE, _INFO}), present, row_files, missing)
        if _DICT in names and "splits" in _object(read(_DICT, _MAX_METADATA_BYTES)):
            return cls(frozenset({_DICT}))
        has_tables = _INFO in names and any(name.endswith(".arrow") for name in names)
        return cls(frozenset({_INFO})) if has_tables else None

    def takes(self, name: str, size: int, where: str, counts: CorpusCounts) -> bool:
        """Return whether a file holds documents; a file that does not is counted.

        Args:
            name: the name of the file.
            size: its bytes.
            where: its path, for examples.
            counts: counts the files that are left out.
        """
        if name in self.metadata:
            counts.leave_out(METADATA, where, size)
            return False
        if name in self.row_files:
            return False
        if not name.endswith(".arrow"):
            return True
        is_cached = name.startswith("cache-") if self.data is None else name not in self.data
        if is_cached:
            counts.leave_out(CACHED, where, size)
        return not is_cached


def _object(text: bytes) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _file_names(files: object) -> tuple[str, ...] | None:
    """Return the names of files in a `state.json`; None: it has none.

    Paths that lead elsewhere are not followed.
    """
    if not isinstance(files, list):
        return None
    names = [file.get("filename") for file in files if isinstance(file, dict)]
    return tuple(name for name in names if isinstance(name, str))
