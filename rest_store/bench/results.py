"""Results of benchmarks, read from a folder: one JSON file each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rest_store.bench.json_text import parsed_json
from rest_store.errors import ResultsError, describe

_FACTS = ("commit", "cpu", "platform", "python", "packages", "device", "seed", "data")
_UNNAMED = ("recordings", "calibration")  # arguments that earlier results have among their figures
_EMPTY: tuple[Any, ...] = (None, "", [], {})


@dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
        name: of its file, without `.json`.
        kind: which benchmark wrote it, such as "query".
        facts: commit, machine, versions and data, as texts by name.
        figures: the measurements; their shape depends on the benchmark.
        arguments: of the command, as texts by name, without those that were not given.
    """

    name: str
    kind: str
    facts: Mapping[str, str]
    figures: Any
    arguments: Mapping[str, str] = field(default_factory=dict)


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
        raise ResultsError(describe(folder, "folder", found, "results that `rest-store bench` wrote with --out"))
    return {path.stem: _read(path) for path in paths}


def _read(path: Path) -> Result:
    try:
        fields = parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(describe(path, "file", f"unreadable ({error})", "a result as JSON")) from error
    if not isinstance(fields, dict):
        raise ResultsError(describe(path, "content", type(fields).__name__, "an object, as a benchmark writes it"))
    kind = str(fields.get("benchmark", path.stem.split("_")[0])).removeprefix("bench_")
    facts = {name: _text(fields[name]) for name in _FACTS if name in fields}
    arguments = fields.get("arguments", {name: fields[name] for name in _UNNAMED if name in fields})
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    given = {name: _text(value) for name, value in arguments.items() if value is not False and value not in _EMPTY}
    return Result(path.stem, kind, facts, fields.get("results", fields), given)


def _text(value: Any) -> str:
    """Return JSON as a short text, without empty values."""
    if value is True:
        return "yes"
    if isinstance(value, dict):
        parts = ((name, item) for name, item in value.items() if item is not False and item not in _EMPTY)
        return ", ".join(f"{name} {_text(item)}" for name, item in parts)
    if isinstance(value, list):
        return " ".join(_text(item) for item in value)
    return str(value)
