"""Available memory: of the system, and within the limits of the control groups of this process."""

from __future__ import annotations

from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the available memory of the system, or of a control group if that is less.

    Args:
        root: directory that holds `proc` and `sys`.

    Returns:
        Bytes, at least 0; None if it is unknown.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return max(0, min([available, *_control_group_headrooms(root)]))


def _control_group_headrooms(root: Path) -> list[int]:
    """Return the bytes left in the control group (v2) of this process and in those above it."""
    try:  # names may be any bytes
        text = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    path = next(
        (line.removeprefix("0::") for line in text.splitlines() if line.startswith("0::")), ""
    )
    names = [name for name in path.split("/") if name not in ("", "..")]
    headrooms = []
    for depth in range(len(names) + 1):
        group = (root / "sys/fs/cgroup").joinpath(*names[:depth])
        limit = _number(group / "memory.max")
        usage = _number(group / "memory.current")
        if limit is not None and usage is not None:
            headrooms.append(limit - usage + _reclaimable(group / "memory.stat"))
    return headrooms


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None


def _reclaimable(path: Path) -> int:
    """Return the bytes of cached file content that a control group can drop."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
