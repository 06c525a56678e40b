"""What pip makes of a source distribution: a wheel with the kernel, and without a compiler none.

Also what PyPI shows, and which wheels are made.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.shared.strategies import Corpus, write_datastore

ROOT = Path(__file__).resolve().parents[1]


def build_sdist(source: Path, out: Path) -> Path:
    """Build a source distribution of `source` as a front end would.

    Return the folder unpacked in `out`.
    """
    out.mkdir()
    program = (
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(out)], check=True, cwd=source, capture_output=True
    )
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(out, filter="data")
    return out / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution, in a place without git."""
    return build_sdist(ROOT, tmp_path_factory.mktemp("source") / "sdist")


@pytest.fixture(scope="module")
def metadata(source: Path) -> Message:
    """What PyPI shows."""
    return message_from_bytes((source / "PKG-INFO").read_bytes())


def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings: dict[str, Any] = tomllib.load(file)
    return settings


def build_wheel(source: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build in a copy of the environment, without its editable install and compiler settings."""
    clean = {name: value for name, value in os.environ.items() if name != "CXX"}
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    command += ["--config-settings", f"build-dir={out / 'build'}", "-w", str(out), str(source)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean | environment
    )


def unpacked(out: Path) -> Path:
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "package")
    return out / "package"


def run(package: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python on the unpacked wheel with nothing of the source tree in reach."""
    site = [path for path in sys.path if path.endswith("site-packages")]
    environment = {"PYTHONPATH": os.pathsep.join([str(package), *site])}
    command = [sys.executable, "-S", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=package, env=environment
    )


def run_info(package: Path, datastore: Path) -> subprocess.CompletedProcess[str]:
    """Run the unpacked wheel's own command."""
    return run(
        package,
        "-c",
        "from rest_store.cli import main; main(prog_name='rest-store')",
        "info",
        datastore,
    )


@pytest.fixture
def datastore(tmp_path: Path) -> Path:
    (tmp_path / "ds").mkdir()
    return write_datastore(tmp_path / "ds", Corpus(300, [[[1, 2, 3]]]))


def test_a_source_distribution_holds_what_a_build_needs_and_makes_itself_again(
    source: Path, tmp_path: Path
) -> None:
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "rest_store/native/CMakeLists.txt",
        "build_index/build_command.py",
    } <= files
    assert not {
        path
        for path in files
        if path.startswith((".ci/", ".venv/", "build/", "benchmarks/results/"))
    }
    assert not {path for path in files if path.endswith((".so", ".pyc"))}
    again = build_sdist(source, tmp_path / "again")
    assert {
        path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file()
    } == files


@pytest.mark.slow
def test_a_wheel_carries_the_kernel_and_runs(source: Path, tmp_path: Path, datastore: Path) -> None:
    done = build_wheel(source, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    package = unpacked(tmp_path)
    assert list((package / "rest_store").glob("_kernel*.so"))
    assert (package / "rest_store" / "py.typed").exists()
    assert (package / "rest_store" / "datastore" / "FORMAT.md").exists()
    assert (package / "rest_store" / "drafting" / "default.calibration").exists()
    assert {path.name for path in package.rglob("*.css")} == {"base.css", "page.css", "report.css"}
    assert (package / "rest_store" / "generation" / "page.js").exists()
    assert not list(package.rglob("*.hpp"))
    shown = run_info(package, datastore)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    # Run so that its folder, with other packages, is not searched.
    script = ROOT / "tests" / "installed_wheel.py"
    checked = run(
        package, "-c", f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    assert checked.returncode == 0, checked.stderr
    assert "_kernel" in checked.stdout


@pytest.mark.slow
def test_without_a_compiler_nothing_is_installed(source: Path, tmp_path: Path) -> None:
    done = build_wheel(source, tmp_path, CXX="/bin/false")
    assert done.returncode != 0
    assert "takes a C++20 compiler" in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_pypi_shows_the_readme_with_absolute_links_alone(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    shown = str(metadata.get_payload(decode=True), "utf-8")  # type: ignore[arg-type]
    assert shown.startswith("# rest-store\n")
    links = re.findall(r"\]\(([^)\s]*)|(?:src|srcset|href)=\"([^\"]*)", shown)
    assert len(links) > 5
    assert [link for link in map("".join, links) if not link.startswith("https://")] == []
    home = project()["project"]["urls"]["Homepage"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({home}/blob/main/docs/" in shown
    assert "](docs/" in readme


def test_all_addresses_of_the_project_are_in_one_place(metadata: Message) -> None:
    home = project()["project"]["urls"]["Homepage"]
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Source", "Changelog", "Issues"} <= set(urls)
    assert all(url.startswith(home) for url in urls.values())
    for url in urls.values():
        if "/blob/main/" in url:
            assert (ROOT / url.split("/blob/main/")[1]).exists()
    raw = home.replace("github.com", "raw.githubusercontent.com")
    hook = project()["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    for substitution in hook["substitutions"]:
        assert substitution["replacement"].startswith((f"\\1{home}", f"\\1{raw}"))


def test_wheels_are_made_for_the_pythons_that_are_named(metadata: Message) -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier", [])))
    built = project()["tool"]["cibuildwheel"]["build"]
    assert named == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert built == [f"cp{version.replace('.', '')}-manylinux_*" for version in named]
    assert metadata["Requires-Python"] == f">={named[0]}"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_both_architectures_have_a_runner() -> None:
    text = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["wheels"]
    runners = job["strategy"]["matrix"]["runner"]
    assert sorted(runner.endswith("-arm") for runner in runners) == [False, True]
    assert any("cibuildwheel" in step.get("run", "") for step in job["steps"])


# --- Versions -------------------------------------------------------------------------------------


def requirements() -> list[Requirement]:
    """All that the package and its extras ask for."""
    dependencies = project()["project"]
    lines = [
        *dependencies["dependencies"],
        *(line for extra in dependencies["optional-dependencies"].values() for line in extra),
    ]
    return [Requirement(line) for line in lines if not line.startswith("rest-store[")]


def pins(python: str) -> dict[str, str]:
    """The version of each package in constraints.txt for a Python."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]
    pinned = [Requirement(line) for line in lines]
    chosen = [
        one
        for one in pinned
        if one.marker is None or one.marker.evaluate({"python_version": python})
    ]
    versions = {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in chosen
    }
    assert len(versions) == len(chosen), "one pin for each package"
    return versions


@pytest.mark.parametrize("python", ["3.10", "3.12", "3.14"])
def test_pins_are_what_the_package_asks_for(python: str) -> None:
    pinned = pins(python)
    dependencies = [
        one
        for one in requirements()
        if one.marker is None or one.marker.evaluate({"python_version": python})
    ]
    missing = {one.name for one in dependencies if canonicalize_name(one.name) not in pinned}
    assert missing == set()
    wrong = {
        str(one): pinned[canonicalize_name(one.name)]
        for one in dependencies
        if not one.specifier.contains(pinned[canonicalize_name(one.name)])
    }
    assert wrong == {}


def test_a_package_has_one_lower_bound_in_all_extras() -> None:
    """The oldest of each package are tried together (`make test-oldest`)."""
    bounds: dict[str, set[str]] = {}
    for one in requirements():
        if one.specifier:
            bounds.setdefault(canonicalize_name(one.name), set()).add(str(one.specifier))
    several = [name for name, specifiers in bounds.items() if len(specifiers) > 1]
    assert several == [], bounds


def test_the_workflow_runs_the_first_and_the_last_python_and_the_oldest_torch() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    tests = workflow["jobs"]["tests"]
    matrix = tests["strategy"]["matrix"]
    named = [
        line.split(" :: ")[-1]
        for line in project()["project"]["classifiers"]
        if re.search(r":: 3\.\d", line)
    ]
    assert (matrix["python"][0], matrix["python"][-1]) == (named[0], named[-1])
    assert set(matrix["python"]) <= set(named)
    assert {*matrix["versions"], *(one["versions"] for one in matrix["include"])} == {
        "pinned",
        "newest",
        "oldest",
    }
    (torch,) = {
        str(one.specifier).removeprefix(">=") for one in requirements() if one.name == "torch"
    }
    assert f"TORCH=torch=={torch}" in "\n".join(step.get("run", "") for step in tests["steps"])
