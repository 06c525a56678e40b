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

# Each module may import those of lower layers and, within its own, those named before it; no package of layer 3 imports
# another.
LAYERS = [
    ["errors"],
    [
        *(
            "memory",
            "header",
            "mapped_file",
            "shard",
            "tokenizer",
            "tree",
            "prepared",
            "manifest",
            "_reference",
            "kernel",
        ),
        *("statuses", "queries", "addresses", "failures", "channels", "evidence"),
    ],
    ["datastore", "check", "drawing", "calibration", "asking", "sources", "survey", "python_sources"],
    [
        *("server.logs", "server.metrics", "server.admission", "server.catalog", "server.questions"),
        *("server.generation", "server.work", "server.replies", "server.credentials", "server.health", "server.turns"),
        *("server.servicer", "server.reload", "server.server"),
        *("client.arguments", "client.forks", "client.cancellation", "client.circuit", "client.tally"),
        *("client.endpoints", "client.answers", "client.counterpart", "client.connections", "client.conversation"),
        *("client.questions", "client.client_base", "client.service_source", "client.exchange"),
        *("client.stream_base", "client.stream", "client.async_stream", "client.client", "client.async_client"),
        "session",
        *("generation.cache", "generation.drafting", "generation.costs", "generation.likeliest"),
        *(
            "generation.progress",
            "generation.attention",
            "generation.verify",
            "generation.baselines",
            "generation.assistant",
        ),
        *("generation.graphs", "generation.loading", "generation.packing", "generation.origins"),
        *(
            "generation.sampling",
            "generation.options",
            "generation.support",
            "generation.prefill",
            "generation.recordings",
        ),
        *("generation.loop", "generation.generate", "generation.generator"),
    ],
    [
        *("bench.replay", "bench.quality", "bench.serving"),
        *("bench.exhibits", "bench.charts", "bench.results", "bench.tables", "bench.sections", "bench.report"),
        *("bench.readme", "bench.plots", "bench.environment", "bench.arguments", "bench.paper", "bench.record"),
        *("bench.questions", "bench.parallel"),
    ],
    [
        *(
            "bench.datastores",
            "bench.query",
            "bench.echo",
            "bench.service_calls",
            "bench.service",
            "bench.methods",
            "bench.speed",
            "bench.build",
        ),
        *("bench.paper_command", "bench.record_command", "bench.report_command"),
        *("server.command", "bench.command", "generation.command", "cli", "__main__"),
    ],
]
ORDER = [module for layer in LAYERS for module in layer]
OF_BUILD_INDEX = {
    "errors",
    "header",
    "shard",
    "tokenizer",
    "tree",
    "prepared",
    "manifest",
    "kernel",
    "memory",
    "__init__",
}
HEAVY = {  # package: its rooms, and the modules that measure them
    "torch": {"generation", "bench.record", "bench.speed"},
    "transformers": {"generation"},
    "grpc": {"server", "client", "channels", "bench.service", "bench.service_calls", "bench.echo"},
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
    """Those of `names` that are modules of `package`, without its name; `__init__` for names of the package itself."""
    found = set()
    for name in names:
        room, *inner = name.split(".")
        if room != package or inner[:1] in (["_kernel"], ["v1"]):
            continue
        while inner and not folder.joinpath(*inner).with_suffix(".py").exists():
            inner = inner[:-1]
        found.add(".".join(inner) or "__init__")
    return found


def modules_in(folder: Path) -> list[str]:
    paths = [path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.stem != "__init__"]
    return sorted(".".join(path.parts) for path in paths if path.parts[0] != "v1")


REST_STORE_MODULES = modules_in(REST_STORE)
BUILD_INDEX_MODULES = modules_in(BUILD_INDEX)


def path_of(module: str) -> Path:
    return REST_STORE.joinpath(*module.split(".")).with_suffix(".py")


def room_of(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def test_every_module_has_a_layer() -> None:
    assert set(REST_STORE_MODULES) == set(ORDER)


@pytest.mark.parametrize("module", REST_STORE_MODULES)
def test_imports_go_down(module: str) -> None:
    names = imports(path_of(module), "rest_store")
    lower = set(ORDER[: ORDER.index(module)])
    if module in LAYERS[3]:
        lower -= {other for other in LAYERS[3] if room_of(other) != room_of(module)}
    if module in LAYERS[5]:
        lower |= {"__init__"}
    else:
        assert not {name for name in names if name.startswith("build_index")}
    assert modules_of(names, "rest_store", REST_STORE) <= lower


@pytest.mark.parametrize("module", REST_STORE_MODULES)
def test_heavy_packages_stay_in_their_rooms(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(path_of(module), "rest_store")}
    assert {
        package for package, at in HEAVY.items() if package in roots and not {room_of(module), module} & at
    } == set()


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


def test_only_bindings_know_python() -> None:
    """The kernel's headers are C++ alone; what meets Python says so by its name."""
    sources = (REST_STORE / "native").glob("*.?pp")
    knowing = {
        path for path in sources if re.search(r"#include <(nanobind/|Python\.h)", path.read_text(encoding="utf-8"))
    }
    assert "bindings.cpp" in {path.name for path in knowing}
    assert {path.name for path in knowing if not path.stem.endswith("bindings")} == set()
