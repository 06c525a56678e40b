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

# What a package may import of this project, besides itself, the errors, the extras and the version.
# A module whose name ends in `command` belongs to the commands, whatever package it stands in.
LAYERS = {
    "rest_store.errors": set[str](),
    "rest_store.extras": set[str](),
    "rest_store.pages": set[str](),
    "rest_store.seam": set[str](),
    "rest_store.version": set[str](),
    "rest_store.loading": set[str](),
    "rest_store.datastore": {"loading"},
    "build_index": {"datastore", "loading"},
    "rest_store.live": {"datastore", "loading", "build_index"},
    "rest_store.agents": {"datastore", "loading", "live", "build_index"},
    "rest_store.drafting": {"datastore", "loading"},
    "rest_store.service": {"datastore", "loading", "live", "drafting", "v1", "command_options"},
    "rest_store.generation": {
        "datastore",
        "loading",
        "live",
        "drafting",
        "service",
        "pages",
        "seam",
    },
    "rest_store.engines": {"datastore", "loading", "live", "drafting", "service", "seam"},
}
# Imports that go up, inside a function. A datastore or a replica that lies elsewhere is reached
# through the client of a service, which loads gRPC.
UPWARD = {
    "rest_store.datastore.datastore": {"rest_store.service.client.service_files"},
    "rest_store.live.live_datastore": {"rest_store.service.client.service_upstream"},
}
# These may import everything.
COMMANDS = {"bench", "cli", "__main__", "command_options", "terminal"}
HEAVY = {  # package: where it may be imported
    "torch": ("rest_store.generation", "rest_store.engines", "rest_store.bench"),
    "transformers": ("rest_store.generation", "rest_store.loading"),
    "grpc": ("rest_store.service", "rest_store.v1"),
    "vllm": ("rest_store.engines.vllm",),
    "sglang": ("rest_store.engines.sglang",),
    "ray": ("build_index.ray_workers",),
}


def modules_in(package: Path) -> list[str]:
    """Return the dotted names of all modules of `package`, without generated code."""
    paths = (path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py"))
    names = (".".join(path.parts).removesuffix(".__init__") for path in paths)
    return sorted(name for name in names if not name.startswith("rest_store.v1"))


OURS = ("rest_store", "build_index")
MODULES = [*modules_in(REST_STORE), *modules_in(BUILD_INDEX)]
KERNEL = "rest_store._kernel"  # compiled


def path_of(module: str) -> Path:
    path = REST_STORE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> set[str]:
    """Return what a module imports anywhere, dotted.

    Names that it takes from a package stand for their modules.

    Without what stands under `if TYPE_CHECKING`.
    """
    imported: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path_of(module).read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in (*MODULES, KERNEL) else node.module for name in inner}
        nodes.extend(ast.iter_child_nodes(node))
    return imported


def package_of(module: str) -> str:
    """Return the package that the rules speak of: `rest_store.<package>`, or `build_index`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "rest_store" else parts[0]


def is_command(module: str) -> bool:
    return package_of(module).removeprefix("rest_store.") in COMMANDS or module.endswith(
        ("command", ".cli")
    )


IMPORTS = {module: imports_of(module) for module in MODULES}


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_down(package: str) -> None:
    shared = {KERNEL, "rest_store.errors", "rest_store.extras", "rest_store.version"}
    allowed = {package, *shared, *LAYERS[package]}
    allowed |= {f"rest_store.{name}" for name in LAYERS[package]}
    wrong = {
        module: own
        for module in MODULES
        if package_of(module) == package and not is_command(module)
        for own in [
            {
                name
                for name in map(package_of, IMPORTS[module] - UPWARD.get(module, set()))
                if name.startswith(("rest_store", "build_index"))
            }
        ]
        if not own <= allowed
    }
    assert wrong == {}


def test_every_package_has_its_layer() -> None:
    assert {package_of(module) for module in MODULES if not is_command(module)} == {
        *LAYERS,
        "rest_store",
    }


def test_there_are_no_circles() -> None:
    """No modules import each other in a circle, in functions neither; type checking may."""
    left = {
        module: {name for name in IMPORTS[module] if name in MODULES} - {module}
        for module in MODULES
    }
    while outside := {
        module for module in left if not left[module] or module not in set().union(*left.values())
    }:
        left = {
            module: imported - outside for module, imported in left.items() if module not in outside
        }
    assert left == {}


def test_the_server_and_its_clients_do_not_import_each_other() -> None:
    for side, other in (("server", "client"), ("client", "server")):
        modules = [name for name in MODULES if name.startswith(f"rest_store.service.{side}")]
        imported = {name for module in modules for name in IMPORTS[module]}
        assert not {name for name in imported if name.startswith(f"rest_store.service.{other}")}


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_stay_in_their_rooms(package: str) -> None:
    users = {
        module for module in MODULES if package in {name.split(".")[0] for name in IMPORTS[module]}
    }
    assert {module for module in users if not module.startswith(HEAVY[package])} == set()


def test_no_import_by_string_gets_around_the_layers() -> None:
    """Only the root and the command line import by name: public names, and commands."""
    users = {
        module
        for module in MODULES
        if "import_module" in path_of(module).read_text(encoding="utf-8")
    }
    assert users == {"rest_store", "rest_store.cli"}
    assert modules_named_in("rest_store") == {*rest_store._HOMES.values()} & {*MODULES}
    assert all(map(is_command, modules_named_in("rest_store.cli")))


def modules_named_in(module: str) -> set[str]:
    """Return the modules that a module names in strings, with or without an attribute."""
    strings = (
        node.value
        for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {string.partition(":")[0] for string in strings} & {*MODULES}


def loaded_by(program: str) -> set[str]:
    """Return the top-level packages in memory after a fresh interpreter has run `program`."""
    program += "\nimport sys; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not loaded_by("import rest_store") & {
        "numpy",
        "torch",
        "grpc",
        "transformers",
        "click",
        "build_index",
    }


def test_opening_datastores_needs_numpy_alone() -> None:
    loaded = loaded_by("import rest_store; rest_store.Datastore")
    assert "numpy" in loaded
    assert not loaded & {
        "torch",
        "grpc",
        "transformers",
        "tokenizers",
        "pydivsufsort",
        "click",
        "build_index",
    }


def test_the_command_line_starts_without_the_builders_packages() -> None:
    loaded = loaded_by(
        "from rest_store.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    )
    assert not loaded & {
        "torch",
        "grpc",
        "transformers",
        "tokenizers",
        "pydivsufsort",
        "pyarrow",
        "datasets",
    }


def test_public_names_exist_and_are_the_only_ones() -> None:
    assert {getattr(rest_store, name) is not None for name in rest_store.__all__} == {True}
    assert set(dir(rest_store)) == set(rest_store.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rest_store.nothing  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_are_imported() -> None:
    tree = ast.parse(path_of("rest_store").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    stated = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert stated == rest_store._HOMES


def test_only_bindings_know_python() -> None:
    """The kernel's headers are C++ alone; what meets Python stands in one folder."""
    sources = list((REST_STORE / "native").rglob("*.?pp"))
    python = {
        path
        for path in sources
        if re.search(r"#include <(nanobind/|Python\.h)", path.read_text("utf-8"))
    }
    assert python
    assert {path for path in python if path.parent.name != "python"} == set()
