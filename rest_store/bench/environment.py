"""Where, with what and on what a result was measured, for the JSON that keeps it."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rest_store.bench.plots import draw_charts
from rest_store.bench.results import Result
from rest_store.bench.sections import section_of
from rest_store.datastore.manifest import FILE_NAME
from rest_store.errors import ResultsError, describe

ROOT = Path(__file__).resolve().parents[2]


def environment(packages: Sequence[str] = ("numpy",)) -> dict[str, Any]:
    """Return commit, processor, Python and the versions of `packages`; without a checkout, the release."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "rest_store", "build_index")
    return {
        "commit": commit + (" with changes" if changed else "") if commit else f"release {version('rest-store')}",
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def _git(*arguments: str) -> str:
    """Return what git says of this checkout; nothing if this is none, or there is no git."""
    if not (ROOT / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def data_hashes(arguments: Any) -> dict[str, str]:
    """Return the SHA-256 of each file that `arguments` name, by its name; of a datastore that of its manifest.

    The manifest of a datastore holds the checksums of its shards.

    Args:
        arguments: texts and paths, perhaps in lists and dictionaries; what names nothing is passed over.
    """
    if isinstance(arguments, Mapping):
        return {name: text for one in arguments.values() for name, text in data_hashes(one).items()}
    if isinstance(arguments, list | tuple):
        return {name: text for one in arguments for name, text in data_hashes(one).items()}
    if not isinstance(arguments, str | Path) or not str(arguments):
        return {}
    path = Path(arguments)
    try:
        file = path / FILE_NAME if (path / FILE_NAME).exists() else path
        if not file.is_file():
            return {}
        with file.open("rb") as stream:
            digest = hashlib.sha256()
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return {}
    return {path.name: "sha256:" + digest.hexdigest()}


def write_result(
    path: Path | None,
    name: str,
    arguments: argparse.Namespace | Mapping[str, Any],
    packages: Sequence[str],
    results: object,
) -> None:
    """Write `results` with what they were measured with to `path`, if there is one, and plots if a folder is given.

    Args:
        path: a JSON file; its folder is made.
        name: of the benchmark.
        arguments: its arguments; of paths the last part is kept, and of files and datastores the hash. `plots` among
            them is a folder for the charts that a report would show.
        packages: whose versions are kept.
        results: what was measured.

    Raises:
        ResultsError: a file cannot be written, or matplotlib is missing.
    """
    asked = vars(arguments) if isinstance(arguments, argparse.Namespace) else arguments
    if asked.get("plots") is not None:
        draw_charts(section_of(Result(name, name, {}, results)).exhibits, Path(asked["plots"]), name)
    if path is None:
        return
    given = {key: value for key, value in asked.items() if key not in ("json", "plots", "plot")}
    where = environment(packages)
    report = {"benchmark": name, "arguments": _plain(given), "data": data_hashes(given), **where, "results": results}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ResultsError(describe(path, "file", f"not writable ({error.strerror})", "a place to write to")) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Path) or (isinstance(value, str) and os.sep in value):
        return Path(value).name
    return value
