"""Results as JSON, with the commit, machine, versions and data that they were measured with."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rest_store.bench.options import Destination
from rest_store.bench.results import Result
from rest_store.bench.sections import section_of
from rest_store.datastore.manifest import FILE_NAME
from rest_store.errors import ResultsError, describe

ROOT = Path(__file__).resolve().parents[2]


def environment(packages: Sequence[str] = ("numpy",)) -> dict[str, Any]:
    """Return commit (without a checkout: release), processor, Python and the versions of `packages`."""
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
    """Return the output of git for this checkout; empty if this is not a checkout, or git is not installed."""
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
    """Return the SHA-256 of each file in `arguments`, by the file's name.

    For a datastore it is that of the manifest, which holds the checksums of the shards.

    Args:
        arguments: texts and paths, perhaps in lists and dictionaries; anything that is not a file is ignored.
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
    digest = hashlib.sha256()
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return "sha256:" + digest.hexdigest()


def write_result(
    out: Destination, name: str, arguments: Mapping[str, Any], packages: Sequence[str], results: object
) -> None:
    """Write `results` and what they were measured with to `out`, and charts if a folder is given.

    Args:
        out: where the results go; the folder of a file is made.
        name: of the benchmark.
        arguments: its arguments. Paths are shortened to their last part; files and datastores are hashed. `plots` is
            a folder for the charts that a report would show.
        packages: packages whose versions are recorded.
        results: the figures.

    Raises:
        ResultsError: a file cannot be written.
    """
    if arguments.get("plots") is not None:
        from rest_store.bench.charts import write_charts

        write_charts(section_of(Result(name, name, {}, results)).exhibits, Path(arguments["plots"]), name)
    if out == Destination():
        return
    kept = {key: value for key, value in arguments.items() if key not in ("out", "as_json", "plots")}
    facts = {"benchmark": name, "arguments": _plain(kept), "data": data_hashes(kept), **environment(packages)}
    facts["results"] = results
    if out.file is not None:
        try:
            out.file.parent.mkdir(parents=True, exist_ok=True)
            out.file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            problem = f"not writable ({error.strerror})"
            raise ResultsError(describe(out.file, "file", problem, "a place to write to")) from error
    if out.stream is not None:
        out.stream.write(json.dumps(facts) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Path) or (isinstance(value, str) and os.sep in value):
        return Path(value).name
    return value
