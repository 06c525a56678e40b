"""The layers of the design, read from the source: imports go down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import build_index
import rest_store

REST_STORE = Path(rest_store.__file__).parent
BUILD_INDEX = Path(build_index.__file__).parent

# Each module may import those of lower layers and, within its own, those named before it; those of layer 3 never each
# other.
LAYERS = [
    ["errors"],
    [
        "memory",
        "header",
        "shard",
        "tokenizer",
        "tree",
        "manifest",
        "_reference",
        "kernel",
        "statuses",
        "queries",
        "circuit",
        "tally",
    ],
    [
        *("datastore", "check", "drawing", "calibration", "sources"),
        # The rooms of the service, below it.
        *("addresses", "logs", "metrics", "admission", "catalog", "questions", "replies"),
        *("credentials", "health", "servicer", "reload"),
        # The rooms of its clients.
        *("failures", "endpoints", "answers", "counterpart", "connections", "conversation"),
        "service_source",
        *("exchange", "stream", "async_stream"),
        # The rooms of generation, below it.
        *("cache", "drafting", "costs", "likeliest", "progress"),
    ],
    ["server", "client", "async_client", "session", "verify"],
    [
        *("replay", "quality"),
        *("baselines", "assistant", "graphs", "loading", "origins", "sampling", "support"),
        *("generation", "custom_generate", "generator"),
    ],
    ["serve", "quality_cli", "generate_command", "cli", "__main__"],
]
ORDER = [module for layer in LAYERS for module in layer]
OF_BUILD_INDEX = {"errors", "header", "shard", "tokenizer", "manifest", "kernel", "memory", "__init__"}
HEAVY = {
    "torch": {
        "assistant",
        "cache",
        "custom_generate",
        "generate_command",
        "generation",
        "generator",
        "graphs",
        "likeliest",
        "progress",
        "sampling",
        "verify",
    },
    "transformers": {
        "assistant",
        "cache",
        "custom_generate",
        "generation",
        "generator",
        "loading",
        "sampling",
        "support",
    },
    "grpc": {
        "server",
        "client",
        "async_client",
        "connections",
        "exchange",
        "async_stream",
        "credentials",
        "health",
        "servicer",
        "reload",
    },
}


def imports(path: Path, package: str) -> set[str]:
    """Every module that the file imports anywhere, dotted; `package.name` for names taken from the package itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            if node.module == package:
                found |= {f"{package}.{alias.name}" for alias in node.names}
            else:
                found.add(node.module or "")
    return found


def modules_of(names: set[str], package: str, folder: Path) -> set[str]:
    inner = {name.split(".")[1] for name in names if name.startswith(package + ".")}
    plain = {name for name in inner if (folder / f"{name}.py").exists()}
    return plain | ({"__init__"} if package in names or inner - plain - {"_kernel", "v1"} else set())


REST_STORE_MODULES = sorted(path.stem for path in REST_STORE.glob("*.py") if path.stem != "__init__")
BUILD_INDEX_MODULES = sorted(path.stem for path in BUILD_INDEX.glob("*.py"))


def test_every_module_has_a_layer() -> None:
    assert set(REST_STORE_MODULES) <= set(ORDER)


@pytest.mark.parametrize("module", REST_STORE_MODULES)
def test_imports_go_down(module: str) -> None:
    names = imports(REST_STORE / f"{module}.py", "rest_store")
    lower = set(ORDER[: ORDER.index(module)])
    if module in LAYERS[3]:
        lower -= set(LAYERS[3])
    if module not in LAYERS[5]:
        assert not {name for name in names if name.startswith("build_index")}
        assert modules_of(names, "rest_store", REST_STORE) <= lower
    else:
        assert modules_of(names, "rest_store", REST_STORE) <= lower | {"__init__"}


@pytest.mark.parametrize("module", REST_STORE_MODULES)
def test_heavy_packages_stay_in_their_rooms(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(REST_STORE / f"{module}.py", "rest_store")}
    assert {package for package, rooms in HEAVY.items() if package in roots and module not in rooms} == set()


@pytest.mark.parametrize("module", BUILD_INDEX_MODULES)
def test_the_builder_imports_the_format_and_the_kernel_only(module: str) -> None:
    names = imports(BUILD_INDEX / f"{module}.py", "build_index")
    assert modules_of(names, "rest_store", REST_STORE) <= OF_BUILD_INDEX
    assert "torch" not in {name.split(".")[0] for name in names}


def loaded_by(program: str) -> set[str]:
    """The top-level packages in memory after a fresh interpreter has run `program`."""
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
