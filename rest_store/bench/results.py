"""Results of measurements: JSON files with commit, machine, versions and data."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rest_store.bench.measurement_options import Destination
from rest_store.datastore.manifest import FILE_NAME
from rest_store.errors import DataFileError, describe

_ROOT = Path(__file__).resolve().parents[2]
_FACTS = ("date", "commit", "cpu", "platform", "python", "packages", "data")
_EXCLUDED_ARGUMENTS = ("out", "as_json")
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_BLOCK = 1 << 20  # bytes of a file hashed at a time


@dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
        name: the name of its file, without `.json`.
        benchmark: the name of its benchmark, such as "query".
        facts: commit, machine, versions and data, as texts by name.
        figures: the measurements; their shape depends on the benchmark.
        arguments: the arguments of the command, as texts by name, without unset ones.
    """

    name: str
    benchmark: str
    facts: Mapping[str, str]
    figures: Any
    arguments: Mapping[str, str] = field(default_factory=dict)


def read_results(folder: str | Path) -> dict[str, Result]:
    """Read every JSON file of `folder`.

    Returns:
        Results by name, in order of names.

    Raises:
        DataFileError: the folder does not exist or holds no JSON file, or a file is not a valid
            result.
    """
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        if Path(folder).is_dir():
            problem = "without any JSON file"
        else:
            problem = "a file" if Path(folder).exists() else "absent"
        raise DataFileError(
            describe(folder, "folder", problem, "results that `rest-store bench` wrote with --out")
        )
    return {path.stem: _read(path) for path in paths}


def _read(path: Path) -> Result:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataFileError(
            describe(path, "file", f"unreadable ({error})", "a result as JSON")
        ) from error
    if not isinstance(fields, dict) or not isinstance(fields.get("arguments", {}), dict):
        raise DataFileError(f"{path}: this is no result of a benchmark")
    facts = {name: _text(fields[name]) for name in _FACTS if name in fields}
    arguments = {}
    for name, value in fields.get("arguments", {}).items():
        if value is not False and value not in _EMPTY:
            arguments[name] = _text(value)
    figures = fields.get("results", {})
    return Result(path.stem, str(fields.get("benchmark", path.stem)), facts, figures, arguments)


def _text(value: Any) -> str:
    """Return JSON as a short text."""
    if value is True:
        return "yes"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return str(value)


def write_result(
    out: Destination,
    benchmark: str,
    arguments: Mapping[str, Any],
    packages: Sequence[str],
    figures: object,
) -> None:
    """Write figures with the arguments, data, versions and machine of their measurement.

    Args:
        out: the destination; the folder of a file is made.
        benchmark: its name.
        arguments: the arguments of its command. Paths are shortened to their last name; files and
            datastores are hashed.
        packages: packages whose versions are recorded.
        figures: the measurements.

    Raises:
        DataFileError: a file cannot be written.
    """
    if out == Destination():
        return
    recorded = dict(arguments)
    for name in _EXCLUDED_ARGUMENTS:
        recorded.pop(name, None)
    facts = {
        "benchmark": benchmark,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "arguments": _plain(recorded),
        "data": data_hashes(recorded),
    }
    facts |= environment(packages)
    facts["results"] = figures
    if out.file is not None:
        write_text(out.file, json.dumps(facts, indent=1) + "\n")
    if out.stream is not None:
        out.stream.write(json.dumps(facts) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, in a folder that is made.

    Raises:
        DataFileError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Names of files may hold bytes that are not UTF-8.
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataFileError(
            describe(path, "file", f"not writable ({error.strerror})", "a writable path")
        ) from error


def environment(packages: Sequence[str] = ("numpy",)) -> dict[str, Any]:
    """Return commit or release, processor, Python and the versions of `packages`."""
    commit = _git("rev-parse", "HEAD") or f"release {version('rest-store')}"
    if _git("status", "--porcelain", "rest_store", "build_index"):
        commit += " with changes"
    return {
        "commit": commit,
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def _git(*arguments: str) -> str:
    """Return the output of git for this checkout; empty: no checkout, or no git."""
    if not (_ROOT / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def data_hashes(arguments: Any) -> dict[str, str]:
    """Return the SHA-256 of each file in `arguments`, by the file's name.

    The SHA-256 of a datastore is that of its manifest, which holds the checksums of the shards.

    Args:
        arguments: texts and paths, perhaps in lists and dictionaries; anything that is not a file
            is ignored.
    """
    if isinstance(arguments, Mapping):
        arguments = list(arguments.values())
    if isinstance(arguments, list | tuple):
        hashes: dict[str, str] = {}
        for argument in arguments:
            hashes |= data_hashes(argument)
        return hashes
    if not isinstance(arguments, str | Path) or not str(arguments):
        return {}
    path = Path(arguments)
    digest = file_hash(path / FILE_NAME) or file_hash(path)
    return {path.name: digest} if digest else {}


def file_hash(path: Path) -> str:
    """Return "sha256:" and the SHA-256 of a file; empty if there is no readable file."""
    try:
        if not path.is_file():
            return ""
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError:
        return ""
    return "sha256:" + digest.hexdigest()


def _plain(value: object) -> object:
    """Return arguments as values of JSON; of paths only the last name."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path) or (isinstance(value, str) and os.sep in value):
        return Path(value).name
    return value
