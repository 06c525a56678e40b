"""Where a result was measured, for the JSON that keeps it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(packages: Sequence[str] = ("numpy",)) -> dict[str, object]:
    """Return commit, processor, Python and the versions of `packages`."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "rest_store", "build_index"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip() + (" with changes" if changed.stdout.strip() else ""),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def write_result(
    path: Path | None, name: str, arguments: argparse.Namespace, packages: Sequence[str], results: object
) -> None:
    """Write `results` with their environment to `path`, if there is one; of paths in `arguments` the last part only."""
    if path is None:
        return
    report = {"benchmark": name, "arguments": _plain(vars(arguments)), **environment(packages), "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items() if name != "json"}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    path = isinstance(value, Path) or (isinstance(value, str) and os.sep in value)
    return Path(value).name if path else value  # type: ignore[arg-type]
