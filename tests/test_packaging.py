"""What pip makes of the source: a wheel with the kernel, and without a compiler one that runs on the reference."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.shared.strategies import Corpus, write_datastore

ROOT = Path(__file__).resolve().parents[1]


def build_wheel(out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build in a copy of the environment whose editable install and compiler settings do not shine through."""
    clean = {name: value for name, value in os.environ.items() if name not in ("REST_STORE_REQUIRE_NATIVE", "CXX")}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["-C", f"build-dir={out / 'build'}", "-w", str(out), str(ROOT)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean | environment)


def unpacked(out: Path) -> Path:
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "package")
    return out / "package"


def run_info(package: Path, datastore: Path) -> subprocess.CompletedProcess[str]:
    """Run the unpacked wheel's own command with nothing of the source tree in reach."""
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from rest_store.cli import main; main(prog_name='rest-store')"
    )
    command = [sys.executable, "-P", "-S", "-c", program, str(package), "info", str(datastore)]
    site = [path for path in sys.path if path.endswith("site-packages")]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=package, env={"PYTHONPATH": os.pathsep.join(site)}
    )


@pytest.fixture
def datastore(tmp_path: Path) -> Path:
    (tmp_path / "ds").mkdir()
    return write_datastore(tmp_path / "ds", Corpus(300, [[[1, 2, 3]]]))


def test_a_wheel_carries_the_kernel_and_runs(tmp_path: Path, datastore: Path) -> None:
    done = build_wheel(tmp_path, REST_STORE_REQUIRE_NATIVE="1")
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
    assert "kernel:    native" in shown.stdout
    assert shown.stderr == ""


def test_without_a_compiler_the_package_installs_and_says_what_it_runs_on(tmp_path: Path, datastore: Path) -> None:
    done = build_wheel(tmp_path, CXX="/bin/false")
    assert done.returncode == 0, done.stdout + done.stderr
    package = unpacked(tmp_path)
    assert not list(package.rglob("*.so"))
    shown = run_info(package, datastore)
    assert shown.returncode == 0, shown.stderr
    assert "kernel:    reference" in shown.stdout
    assert shown.stderr.count("the native kernel was not built") == 1
    assert len(shown.stderr.splitlines()) == 1


def test_without_a_compiler_a_required_kernel_is_an_error(tmp_path: Path) -> None:
    done = build_wheel(tmp_path, CXX="/bin/false", REST_STORE_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert not list(tmp_path.glob("*.whl"))
