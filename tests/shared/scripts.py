"""Scripts that belong to no package: those of benchmarks/ and examples/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.shared.pages import ROOT


def script(path: str | Path) -> ModuleType:
    """Return the script at a path below the root as a module, loaded anew."""
    name = f"script_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
