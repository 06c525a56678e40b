"""Results of benchmarks, read from a folder: one JSON file each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.errors import ResultsError, describe

_FACTS = ("commit", "cpu", "platform", "python", "packages", "device", "seed", "data")


@dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
        name: of its file, without `.json`.
        kind: which benchmark wrote it, such as "query".
        facts: commit, machine, versions, data and arguments, as texts by name.
        figures: the measurements; their shape depends on the benchmark.
    """

    name: str
    kind: str
    facts: Mapping[str, str]
    figures: Any


def read_results(folder: str | Path) -> dict[str, Result]:
    """Read every JSON file of `folder`.

    Returns:
        Results by name, in order of names.

    Raises:
        ResultsError: the folder does not exist or holds no JSON file, or a file is not a valid result.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        found = "without any JSON file" if Path(folder).is_dir() else "absent"
        raise ResultsError(describe(folder, "folder", found, "results that `rest-store bench` wrote with --json"))
    return {path.stem: _read(path) for path in paths}


def _read(path: Path) -> Result:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(describe(path, "file", f"unreadable ({error})", "a result as JSON")) from error
    if not isinstance(fields, dict):
        raise ResultsError(describe(path, "content", type(fields).__name__, "an object, as a benchmark writes it"))
    kind = str(fields.get("benchmark", path.stem.split("_")[0])).removeprefix("bench_")
    facts = {name: _text(fields[name]) for name in _FACTS if name in fields}
    if fields.get("arguments"):
        facts["arguments"] = _text(fields["arguments"])
    return Result(path.stem, kind, facts, fields.get("results", fields))


def _text(value: Any) -> str:
    """Return JSON as a short text, without empty values."""
    if isinstance(value, dict):
        parts = ((name, one) for name, one in value.items() if one not in (None, False, [], {}, ""))
        return ", ".join(f"{name} {_text(one)}" for name, one in parts)
    if isinstance(value, list):
        return " ".join(_text(one) for one in value)
    return str(value)
