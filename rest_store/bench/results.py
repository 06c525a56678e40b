"""Results of measurements: JSON files with commit, machine,
versions and data, written here and read for reports.
"""

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
_LEFT_OUT = ("out", "as_json")  # of the arguments
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_BLOCK = 1 << 20  # bytes of a file hashed at a time


@dataclass(frozen=True)
class Result:
    """One result.

    Attributes:
        name: of its file, without `.json`.
        benchmark: which one wrote it, such as "query".
        facts: commit, machine, versions and data, as texts by name.
        figures: the measurements; their shape depends on the benchmark.
        arguments: of the command, as texts by name, without those that were not given.
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
        other = "a file" if Path(folder).exists() else "absent"
        found = "without any JSON file" if Path(folder).is_dir() else other
        raise DataFileError(
            describe(folder, "folder", found, "results that `rest-store bench` wrote with --out")
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
        raise DataFileError(
            describe(path, "content", "something else", "a result, as a benchmark writes it")
        )
    facts = {name: _text(fields[name]) for name in _FACTS if name in fields}
    given = fields.get("arguments", {}).items()
    arguments = {
        name: _text(value) for name, value in given if value is not False and value not in _EMPTY
    }
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
    """Write figures and what they were measured with.

    Args:
        out: where they go; the folder of a file is made.
        benchmark: its name.
        arguments: of its command. Paths are shortened to their last part; files and datastores are
            hashed.
        packages: packages whose versions are recorded.
        figures: the measurements.

    Raises:
        DataFileError: a file cannot be written.
    """
    if out == Destination():
        return
    kept = {name: value for name, value in arguments.items() if name not in _LEFT_OUT}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    facts = {
        "benchmark": benchmark,
        "date": date,
        "arguments": _plain(kept),
        "data": data_hashes(kept),
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
        # Names of files may be other bytes.
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataFileError(
            describe(path, "file", f"not writable ({error.strerror})", "a writable path")
        ) from error


def environment(packages: Sequence[str] = ("numpy",)) -> dict[str, Any]:
    """Return commit (without a checkout: release), processor,
    Python and the versions of `packages`.
    """
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "rest_store", "build_index")
    return {
        "commit": commit + (" with changes" if changed else "")
        if commit
        else f"release {version('rest-store')}",
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def _git(*arguments: str) -> str:
    """Return the output of git for this checkout.

    Empty if this is not a checkout, or git is not installed.
    """
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
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        "unknown",
    )


def data_hashes(arguments: Any) -> dict[str, str]:
    """Return the SHA-256 of each file in `arguments`, by the file's name.

    For a datastore it is that of the manifest, which holds the checksums of the shards.

    Args:
        arguments: texts and paths, perhaps in lists and dictionaries; anything that is not a file
            is ignored.
    """
    if isinstance(arguments, Mapping):
        arguments = list(arguments.values())
    if isinstance(arguments, list | tuple):
        return {name: text for part in arguments for name, text in data_hashes(part).items()}
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
    """Return arguments as JSON has them, with the names of files alone."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Path) or (isinstance(value, str) and os.sep in value):
        return Path(value).name
    return value
