"""The layers of the design, read from the source: imports go down only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import build_index
import rest_store

REST_STORE = Path(rest_store.__file__).parent
BUILD_INDEX = Path(build_index.__file__).parent

# What a package may import of this project, besides itself. A module named `command` belongs to the commands, whatever
# package it stands in.
ALLOWED = {
    "rest_store.errors": set[str](),
    "rest_store.pages": set[str](),
    "rest_store.datastore": {"rest_store.errors"},
    "rest_store.live": {"rest_store", "rest_store.errors", "rest_store.datastore", "build_index"},
    "rest_store.drafting": {"rest_store.errors", "rest_store.datastore"},
    "rest_store.loading": {"rest_store.errors"},
    "rest_store.service": {
        "rest_store",
        "rest_store.errors",
        "rest_store.options",
        "rest_store.datastore",
        "rest_store.live",
        "rest_store.drafting",
        "rest_store.v1",
    },
    "rest_store.generation": {
        "rest_store.errors",
        "rest_store.datastore",
        "rest_store.drafting",
        "rest_store.loading",
        "rest_store.pages",
    },
    "rest_store.engines": {
        "rest_store.errors",
        "rest_store.datastore",
        "rest_store.drafting",
        "rest_store.live",
        "rest_store.service",
    },
    "build_index": {
        "rest_store",
        "rest_store.errors",
        "rest_store.datastore",
        "rest_store.loading",
        "rest_store.options",
    },
}
# These may import everything.
COMMANDS = {
    *("rest_store", "rest_store.cli", "rest_store.__main__", "rest_store.bench"),
    *("rest_store.options", "rest_store.extras", "rest_store.terminal"),
}
HEAVY = {  # package: where it may be imported
    "torch": {
        *("rest_store.generation", "rest_store.engines.vllm"),
        *("rest_store.bench.record", "rest_store.bench.speed"),
    },
    "transformers": {"rest_store.generation", "build_index"},
    "grpc": {"rest_store.service", "rest_store.v1"},
    "vllm": {"rest_store.engines.vllm"},
    "ray": {"build_index.ray_workers"},
}


def modules_in(package: Path) -> list[str]:
    """Return the dotted names of all modules of `package`, without generated code."""
    paths = (path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py"))
    names = (".".join(path.parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in names if not name.startswith("rest_store.v1"))


MODULES = [*modules_in(REST_STORE), *modules_in(BUILD_INDEX)]


def path_of(module: str) -> Path:
    path = REST_STORE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> set[str]:
    """Return what a module imports anywhere, dotted; names that it takes from a package stand for their modules."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else node.module for name in inner}
    return imported


def package_of(module: str) -> str:
    """Return the package that the rules speak of: `rest_store.<package>`, or `build_index`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "rest_store" else parts[0]


def is_command(module: str) -> bool:
    return package_of(module) in COMMANDS or module.endswith(".command")


@pytest.mark.parametrize("module", [module for module in MODULES if not is_command(module)])
def test_imports_go_down(module: str) -> None:
    package = package_of(module)
    own = {package_of(name) for name in imports_of(module) if name.split(".")[0] in ("rest_store", "build_index")}
    allowed = {*ALLOWED[package], package}
    if package in ("rest_store.datastore", "rest_store.drafting"):
        allowed.add("rest_store._kernel")
        own = {"rest_store._kernel" if name == "rest_store" else name for name in own}
    assert own <= allowed


def test_the_server_and_its_clients_do_not_import_each_other() -> None:
    for side, other in (("server", "client"), ("client", "server")):
        modules = [name for name in MODULES if name.startswith(f"rest_store.service.{side}")]
        imported = {name for module in modules for name in imports_of(module)}
        assert not {name for name in imported if name.startswith(f"rest_store.service.{other}")}


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_in_their_rooms(package: str) -> None:
    users = {module for module in MODULES if package in {name.split(".")[0] for name in imports_of(module)}}
    assert {
        module for module in users if not module.startswith(tuple(HEAVY[package])) and not is_command(module)
    } == set()


def test_no_import_by_string_gets_around_the_layers() -> None:
    """Only the lazy names of the package and the commands are imported by name."""
    users = {module for module in MODULES if "import_module" in path_of(module).read_text(encoding="utf-8")}
    assert users <= {"rest_store", "rest_store.cli"}


def loaded_by(program: str) -> set[str]:
    """Return the top-level packages in memory after a fresh interpreter has run `program`."""
    program += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import rest_store") & {"numpy", "torch", "grpc", "transformers", "click", "build_index"}


def test_opening_datastores_needs_numpy_alone() -> None:
    loaded = loaded_by("import rest_store; rest_store.Datastore")
    assert "numpy" in loaded
    assert not loaded & {"torch", "grpc", "transformers", "tokenizers", "pydivsufsort", "click", "build_index"}


def test_the_command_line_starts_without_the_builders_packages() -> None:
    loaded = loaded_by("from rest_store.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass")
    assert not loaded & {"torch", "grpc", "transformers", "tokenizers", "pydivsufsort", "pyarrow", "datasets"}


def test_public_names_exist_and_are_the_only_ones() -> None:
    assert {getattr(rest_store, name) is not None for name in rest_store.__all__} == {True}
    assert set(dir(rest_store)) == set(rest_store.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rest_store.nothing  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_are_imported() -> None:
    tree = ast.parse(path_of("rest_store").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    stated = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert stated == rest_store._HOMES


def test_only_bindings_know_python() -> None:
    """The kernel's headers are C++ alone; what meets Python stands in one folder."""
    sources = list((REST_STORE / "native").rglob("*.?pp"))
    python = {path for path in sources if re.search(r"#include <(nanobind/|Python\.h)", path.read_text("utf-8"))}
    assert python
    assert {path for path in python if path.parent.name != "python"} == set()


def test_the_kernels_headers_are_listed_in_reading_order() -> None:
    """In docs/explanation/architecture.md every header stands once, after those that it includes."""
    native = REST_STORE / "native"
    page = (REST_STORE.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    listed: list[str] = []
    for part in page.split("## The kernel in reading order")[1].split("`native/")[1:]:
        folder = part.split("/")[0]
        rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
        listed += [f"{folder}/{name}" for row in rows for name in re.findall(r"`(\w+\.hpp)`", row)]
    folders = ("search", "trees", "session")
    assert sorted(listed) == sorted(
        f"{folder}/{path.name}" for folder in folders for path in (native / folder).iterdir()
    )
    for place, name in enumerate(listed):
        included = re.findall(r'#include "([^"]+)"', (native / name).read_text(encoding="utf-8"))
        assert set(included) <= set(listed[:place]), name
